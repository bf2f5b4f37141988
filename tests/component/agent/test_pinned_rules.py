"""Rules that an import carries, through two real agents: rows, their filter and time, replays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pe_agent.datasource.columns import parse_struct
from pe_agent.datasource.options import Options
from pe_agent.datasource.packer import PACKED_DDL, Packing
from pe_agent.datasource.source import StreambrokerStreamReader
from streambroker.operators import ControlFile
from streambroker_core.cep.operator import PatternRules
from streambroker_core.control.runtime.packing import NO_BUCKET, by_bucket, unpack
from support.agents.agents import Pair, Publishing, pair
from support.processes.waiting import until

DDL = "`n` bigint, `t` timestamp"
SCHEMA = pa.schema([("n", pa.int64()), ("t", pa.timestamp("us", "UTC"))])


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Pair]:
    yield from pair(tmp_path, only={"trades": {"filter": "n < 100"}})


class Query:
    """A query with rules on an import, without Spark: reads batches, and reads them again."""

    def __init__(self, agents: Pair, file: ControlFile) -> None:
        packing = Packing(columns=DDL, buckets=2, key="n", event_time="t", rules=str(file.path))
        importer, token = agents.importer, str(agents.importer.address["token"])
        options = Options("trades", importer.location, token, packing=packing, reconnect=20)
        self.source = StreambrokerStreamReader(parse_struct(PACKED_DDL), options)
        self.at = self.source.initialOffset()

    def next(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the offsets of the next batch."""
        start = self.at

        def planned() -> bool:
            self.at = self.source.latestOffset(start, ReadAllAvailable())
            return self.at != start

        until(planned, 10, "a batch")
        return start, self.at

    def read(self, offsets: tuple[dict[str, Any], dict[str, Any]]) -> tuple[list[int], str, Any]:
        """Return a batch: its rows, what its rules say of rows, and the largest time told."""
        rows, rules, times = list[int](), dict[int, list[str]](), list[int]()
        for part in self.source.partitions(*offsets):
            for batch in self.source.read(part):
                times += [t.value for t in batch.column("event_time") if t.is_valid]
                for bucket, one in by_bucket(batch):
                    got = unpack(one)
                    if got.rows is not None:
                        rows += got.rows.column("n").to_pylist()
                    elif bucket != NO_BUCKET:
                        rules.setdefault(bucket, []).extend(
                            str(each.payload["relevant"]) for _, each in got.control
                        )
        assert rules.get(0) == rules.get(1), "rules go to every bucket"
        return sorted(rows), " ".join(rules.get(0, [])), max(times, default=None)


def test_rows_are_those_of_the_rules_of_their_batch_and_time_is_that_of_all(
    agents: Pair, tmp_path: Path
) -> None:
    def publish(number: int, *rows: int) -> None:
        batch = pa.RecordBatch.from_pylist([{"n": n, "t": n * 10} for n in rows], schema=SCHEMA)
        Publishing(agents.exporter, ddl=DDL).publish(number, batch)

    def say(relevant: str | None) -> None:
        file.append(PatternRules(rules={}, relevant=relevant))

    file = ControlFile(tmp_path / "rules")
    say("n == 1")
    publish(0, 1, 2, 9, 500)
    query = Query(agents, file)
    batches = [query.next()]
    while not batches[-1][1]["streams"]:
        batches.append(query.next())
    first = [query.read(one) for one in batches]
    assert [rows for rows, _, _ in first if rows] == [[1]]
    assert first[0][1] == "n == 1"
    assert first[-1][2] == 90  # of 9, which is not sent, and not of 500, which the import has not

    say("n == 2")
    changed = query.next()
    assert query.read(changed) == ([], "n == 2", None)
    publish(1, 1, 2, 3)
    second = query.next()
    assert query.read(second) == ([2], "", 30)
    say(None)
    publish(2, 4, 3)
    third = query.next()
    while not query.read(third)[0]:
        third = query.next()
    assert (query.read(third)[0], third[1]["filter"]) == ([3, 4], "n < 100")
    query.source.stop()

    again = Query(agents, file)  # the process of the source is another one
    assert again.read(second) == ([2], "", 30)
    again.source.stop()
