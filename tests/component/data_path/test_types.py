"""Rows of all types, with nulls and edges, arrive as they were."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from support.spark.session import Session

TYPES = {
    "line": ("bigint", ["1", "-9223372036854775808"]),
    "tiny": ("tinyint", ["-128"]),
    "small": ("smallint", ["32767"]),
    "n": ("int", ["0"]),
    "part": ("float", ["0.1", "'NaN'"]),
    "price": ("double", ["-0.0", "'Infinity'"]),
    "exact": ("decimal(38,18)", ["12345678901234567890.123456789012345678"]),
    "live": ("boolean", ["true", "false"]),
    "word": ("string", ["''", "'\u00e4\U0001f600'"]),
    "raw": ("binary", ["X'00FF'", "X''"]),
    "day": ("date", ["'1582-10-15'", "'9999-12-31'"]),
    "at": ("timestamp", ["'1969-12-31 23:59:59.999999Z'", "'2026-03-29 01:30:00Z'"]),
    "local": ("timestamp_ntz", ["'2026-03-29 02:30:00.000001'"]),
    "list": ("array<int>", ["array()", "array(1, null)"]),
    "map": ("map<string,double>", ["map()", "map('a', null, 'b', 1.5)"]),
    "pair": (
        "struct<a:bigint,b:array<struct<c:string>>>",
        ["struct(null, array(struct('x')))", "struct(1, null)"],
    ),
}
"""By column: its type, and SQL of values; each row has one of them or null."""
DDL = ", ".join(f"{name} {kind}" for name, (kind, _) in TYPES.items())


def texts(rows: list[Any]) -> Counter[str]:
    """Return rows as text: there, NaN equals itself, and -0.0 does not equal 0.0."""
    return Counter(map(str, rows))


def test_rows_of_all_types_arrive_as_they_were(jobs: Session, tmp_path: Path) -> None:
    source = str(tmp_path / "source")
    values = [[*of, "null"] for _, of in TYPES.values()]
    for number in range(3):
        row = ", ".join(
            f"CAST({of[number % len(of)]} AS {kind}) AS {name}"
            for of, (name, (kind, _)) in zip(values, TYPES.items(), strict=True)
        )
        jobs.spark.sql(f"SELECT {row}").write.mode("append").parquet(source)
    exporter, importer = jobs.pe("feed"), jobs.pe("alerts")
    made = jobs.spark.readStream.schema(DDL).parquet(source)
    jobs.queries.append(
        exporter.publish(made, "out", properties={"kind": "a"}, checkpoint=tmp_path / "ck")
    )
    frame = importer.subscribe("in", 'kind == "a"', start="earliest", schema=DDL)
    _, sink = jobs.collect(frame, "in")
    sink.await_rows(3)

    rows = [row for batch in sink.batches.values() for row in batch]
    assert texts(rows) == texts(pq.read_table(source).to_pylist())
