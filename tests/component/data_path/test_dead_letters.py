"""What operators of a job refuse is an export: each once, and found as any other."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

import streambroker as sb
from streambroker import PE
from streambroker.operators import (
    AlignedError,
    ControlFile,
    OperatorOptions,
    OperatorStream,
    control_stream,
)
from streambroker.side import side_map
from support.spark.operators import Multiply
from support.spark.session import Session

OPTIONS = OperatorOptions(buckets=2, dead_letters=True)
HOUR = 3600.0
"""A limit that no query of a test reaches, however slow the machine is."""


def files(jobs: Session, name: str, ddl: str, *rows: Mapping[str, Any]) -> DataFrame:
    """Return a stream of one file."""
    folder = jobs.folder / name
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(list(rows)), folder / "0.parquet")
    return jobs.spark.readStream.schema(ddl).parquet(str(folder))


def publish_twice(
    jobs: Session, make: Callable[[], OperatorStream], output: str, **properties: Any
) -> None:
    """Publish an output as ``alerts`` and dead letters as ``bad``, and repeat the last batch."""
    checkpoint = jobs.folder / "ck"

    def run() -> StreamingQuery:
        query = make().publish_outputs(
            {output: "alerts", "dead_letters": "bad"},
            checkpoint=checkpoint,
            properties={output: {"kind": "alert"}, **properties},
            trigger={"availableNow": True},
        )
        jobs.queries.append(query)
        query.awaitTermination()
        return query

    run()
    last = _last_commit(checkpoint)
    for one in (last, last.with_name(f".{last.name}.crc")):
        one.unlink(missing_ok=True)
    run()
    assert last.exists(), "the batch was repeated"


def _last_commit(checkpoint: Path) -> Path:
    commits = [one for one in (checkpoint / "commits").iterdir() if one.name.isdigit()]
    return max(commits, key=lambda one: int(one.name))


def read(jobs: Session, reader: PE, port: str, subscription: str) -> list[dict[str, Any]]:
    """Return all rows of the exports of a subscription."""
    frame = reader.subscribe(port, subscription, start="earliest")
    query, sink = jobs.collect(frame, port, availableNow=True)
    query.awaitTermination()
    return [row for batch in sink.batches.values() for row in batch]


def test_a_row_on_which_a_rule_fails_is_a_dead_letter_once(jobs: Session) -> None:
    def no_two(row: Mapping[str, Any], run: Any) -> bool:
        if row["v"] == 2:
            raise ValueError("2 is not known")
        return True

    rows = [{"user": "a", "v": 1}, {"user": "b", "v": 2}, {"user": "b", "v": 3}]
    frame = files(jobs, "in", "user string, v bigint", *rows)
    exporter, reader = jobs.pe("feed"), jobs.pe("reader")
    pattern = sb.Pattern.begin("any").where(no_two)

    def found() -> OperatorStream:
        return exporter.stream(frame).match(
            pattern, key="user", name="any", timer=False, options=OPTIONS
        )

    publish_twice(jobs, found, "matches")

    (letter,) = read(jobs, reader, "bad", 'kind == "dead-letter" && "alerts" in of')
    assert (letter["source"], letter["kind"], letter["code"]) == (
        "any/in",
        "rule_error",
        "RuleFailed",
    )
    assert (letter["rule"], letter["version"], letter["key"]) == ("any", 1, '["b"]')
    assert json.loads(letter["row"]) == {"user": "b", "v": 2}
    assert "ValueError: 2 is not known" in letter["message"]
    assert (letter["cut"], letter["window"]) == (False, 0)
    alerts = read(jobs, reader, "alerts", 'kind == "alert"')
    assert sorted(one["key"]["user"] for one in alerts) == ["a", "b"], "the rule goes on"
    with pytest.raises(AlignedError, match="any has dead letters, and this query would lose them"):
        found().publish("alerts", checkpoint="ck")
    with pytest.raises(AlignedError, match="any has dead letters, and this query would lose them"):
        found().publish_outputs({"matches": "alerts"}, checkpoint="ck")
    with pytest.raises(AlignedError, match="any has dead letters, and this query would lose them"):
        found().select("rule").publish("alerts", checkpoint="ck")


def test_a_refused_row_of_a_side_input_is_a_dead_letter_once(jobs: Session) -> None:
    trades = files(jobs, "trades", "id string, currency string", {"id": "a", "currency": "EUR"})
    rows: list[dict[str, Any]] = [
        {"currency": None, "rate": 1.0},
        {"currency": "EUR", "rate": 2.0},
    ]
    rates = files(jobs, "rates", "currency string, rate double", *rows)
    exporter, reader = jobs.pe("feed"), jobs.pe("reader")

    def rated() -> OperatorStream:
        side = side_map(sb.stream(rates), key="currency", timeout=HOUR)
        sides = exporter.stream(trades).key_by("id").join_side(rates=side)
        return sides.enrich("rates", on="currency").to_stream(name="rated", options=OPTIONS)

    publish_twice(jobs, rated, "out", dead_letters={"region": "eu"})

    (letter,) = read(jobs, reader, "bad", 'kind == "dead-letter" && region == "eu"')
    assert (letter["source"], letter["kind"]) == ("rated/rates", "side_row")
    assert (letter["code"], letter["rule"]) == ("SideRowRefused", None)
    assert json.loads(letter["row"]) == {"currency": None, "rate": 1.0}
    (trade,) = read(jobs, reader, "alerts", 'kind == "alert"')
    assert (trade["id"], trade["rate"]) == ("a", 2.0)


def test_a_refused_control_tuple_is_a_dead_letter_once(jobs: Session) -> None:
    @dataclass
    class SetFactor:
        """As the operator's, with the name of the field in error."""

        factr: float

    frame = files(jobs, "in", "line bigint, price double", {"line": 1, "price": 2.0})
    control = ControlFile(jobs.folder / "control")
    sent = control.append(SetFactor(3.0), delivery="BEGIN")
    exporter, reader = jobs.pe("feed"), jobs.pe("reader")

    def multiplied() -> OperatorStream:
        both = exporter.stream(frame).union(control_stream(jobs.spark, control.path))
        return both.key_by("line").apply(Multiply, name="multiply", options=OPTIONS)

    publish_twice(jobs, multiplied, "out")

    (letter,) = read(jobs, reader, "bad", 'kind == "dead-letter" && operator == "multiply"')
    assert (letter["source"], letter["kind"]) == ("multiply/in", "control")
    assert letter["code"] == "ControlInvalid"
    assert "SetFactor has the field factr" in letter["message"]
    row = json.loads(letter["row"])
    assert (row["id"], row["payload"]) == (sent.id, {"factr": 3.0})
    (price,) = read(jobs, reader, "alerts", 'kind == "alert"')
    assert price["price"] == 2.0
