"""Letters that one job exports and whose patterns another one looks for, side by side."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from pe_agent.datasource.schemas import as_arrow_schema
from streambroker import PE
from streambroker.operators import OperatorOptions
from streambroker.patterns import PatternStream
from support.patterns.spark import Given, events_of
from support.spark.feeds import put_file
from support.spark.session import Session

DDL = "t timestamp, n string, user string"
SCHEMA = as_arrow_schema(DDL)
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def rule(name: str, word: str, version: int = 1, join: str = "followed_by") -> dict[str, Any]:
    stages: list[dict[str, Any]] = [{"name": f"s{n}", "where": f'n == "{n}"'} for n in word]
    for stage in stages[1:]:
        stage["join"] = join
    pattern = {"stages": stages, "within": "200s"}
    return {"id": name, "version": version, "pattern": pattern}


class Letters:
    """Files of letters, one second after the other, for one user, and noise of others."""

    def __init__(self, jobs: Session, exporter: PE) -> None:
        self._folder, self._files, self._exporter = jobs.folder / "in", 0, exporter
        self._folder.mkdir()
        self.last = BEGIN
        frame = jobs.spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1)
        self._query = exporter.publish(
            frame.parquet(str(self._folder)), "out", properties={"kind": "a"},
            checkpoint=jobs.folder / "ck-out",
        )  # fmt: skip
        jobs.queries.append(self._query)

    def give(self, second: int, word: str) -> datetime:
        """Publish an epoch; return the time of its last row."""
        times = [BEGIN + timedelta(seconds=second + n) for n in range(len(word))]
        rows = [{"t": t, "n": n, "user": "u"} for t, n in zip(times, word, strict=True)]
        rows += [{"t": times[-1], "n": "noise", "user": f"v{n}"} for n in range(50)]
        table = pa.Table.from_pylist(rows, schema=SCHEMA)
        put_file(self._folder, f"{self._files:03}", table)
        self._files += 1
        self.last = times[-1]
        return self.last


class Rules:
    """A query with rules on an import."""

    def __init__(
        self,
        jobs: Session,
        name: str,
        make: Callable[..., Any] = lambda pe, first: Given(first),
        **settings: Any,
    ) -> None:
        self._jobs, self._make, self._settings = jobs, make, settings
        self.pe, self._name = jobs.pe(name), name
        self.windows: dict[int, tuple[list[list[Any]], int]] = {}

    def start(self, *first: Any) -> None:
        stream = self.pe.subscribe_stream("in", 'kind == "a"', start="earliest", schema=DDL)
        self.made: PatternStream = stream.with_watermark("t", "0 seconds").match_rules(
            self._make(self.pe, first),
            key="user",
            options=OperatorOptions(buckets=2),
            **self._settings,
        )
        self.query: StreamingQuery = self.made.foreach_batch(
            self._take, checkpoint=self._jobs.folder / f"ck-{self._name}"
        )
        self._jobs.queries.append(self.query)

    def _take(self, frames: dict[str, DataFrame], window: int) -> None:
        found = []
        for tag in ("matches", "timeouts"):
            for row in frames[tag].collect():
                events = [event["n"] for event in events_of(row)]
                found.append([tag, row.rule, row.version, "".join(events), str(row.time)])
        self.windows[window] = found, frames["late"].count()

    @property
    def found(self) -> list[list[Any]]:
        """Matches and time-outs: output, rule, version, letters, time."""
        return [one for _, (found, _) in sorted(self.windows.items()) for one in found]

    @property
    def late(self) -> int:
        return sum(late for _, late in self.windows.values())

    def time(self) -> datetime:
        """Return what time has passed."""
        progress: Any = self.query.lastProgress or {}
        reached = progress.get("eventTime", {}).get("watermark", "1970-01-01")
        return datetime.fromisoformat(reached[:19]).replace(tzinfo=UTC)

    def put(self, *rules: Any) -> None:
        self.made.rules.manager.on_pattern_processors_updated(rules)

    def pinned(self) -> dict[str, Any]:
        (reader,) = self.pe.status()["imports"]["readers"].values()
        return dict(reader.get("rules", {}))
