"""Side inputs that are imports: rows and what is said of them come from another job."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame

from streambroker import PE
from streambroker.operators import OperatorOptions, Stream
from streambroker.side import SideComplete, side_map
from support.processes.waiting import until
from support.spark.session import SECONDS, Session


class Exported:
    """A folder of files, and a query that exports their rows."""

    def __init__(self, jobs: Session, pe: PE, port: str, ddl: str) -> None:
        self.port, self._ddl = port, ddl
        self._folder = jobs.folder / f"files-{port}"
        self._folder.mkdir()
        frame = jobs.spark.readStream.schema(ddl).parquet(str(self._folder))
        checkpoint = jobs.folder / f"ck-{port}"
        jobs.queries.append(
            pe.publish(frame, port, properties={"kind": port}, checkpoint=checkpoint)
        )

    def put(self, **columns: list[Any]) -> None:
        name = f"{len(list(self._folder.iterdir()))}.parquet"
        pq.write_table(pa.table(columns), self._folder / f".{name}")
        (self._folder / f".{name}").rename(self._folder / name)

    def imported(self, pe: PE) -> Stream:
        reported: dict[str, Any] = {"start": "earliest", "schema": self._ddl}
        return pe.subscribe_stream(self.port, f'kind == "{self.port}"', **reported)


class Seen:
    """Rows that came out, and of each bucket the last figures of ``rates``."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, float | None]] = []
        self._last: dict[int, dict[str, Any]] = {}

    def __call__(self, frames: dict[str, DataFrame], window: int) -> None:
        del window
        for row in frames["figures"].where("input = 'rates'").collect():
            self._last[row.bucket] = row.asDict()
        self.rows += [(row.id, row.rate) for row in frames["out"].collect()]

    def sum(self, figure: str) -> int:
        return sum(row[figure] for row in self._last.values())

    def await_rows(self, *rows: tuple[str, float | None]) -> None:
        until(lambda: self.rows == list(rows), SECONDS, f"{rows}, not {self.rows}")


@pytest.mark.long
def test_rows_of_an_import_wait_until_the_other_job_says_that_its_rows_are_complete(
    jobs: Session,
) -> None:
    """And a second load is not seen until the own job says so."""
    exporter, importer = jobs.pe("feed"), jobs.pe("alerts")
    trades = Exported(jobs, exporter, "trades", "id string, currency string")
    rates = Exported(jobs, exporter, "rates", "currency string, rate double")
    side = side_map(rates.imported(importer), key="currency", keyed=True, ready="complete")
    main = trades.imported(importer).key_by("currency")
    sides = main.join_side(rates=side).enrich("rates", on="currency")
    seen = Seen()
    made = sides.to_stream(options=OperatorOptions(buckets=2, metrics=True))
    jobs.queries.append(made.foreach_batch(seen, checkpoint=jobs.folder / "ck-in"))
    trades.put(id=["a"], currency=["EUR"])
    rates.put(currency=["EUR", "USD"], rate=[1.0, 2.0])
    until(lambda: (seen.sum("waiting_rows"), seen.sum("staged")) == (1, 2), SECONDS, "both wait")
    exporter.exports["rates"].send(SideComplete(input="rates"), delivery="BEGIN").wait_applied(
        SECONDS
    )
    seen.await_rows(("a", 1.0))
    rates.put(currency=["EUR"], rate=[3.0])
    until(lambda: seen.sum("staged") == 1, SECONDS, "a second load")
    trades.put(id=["b"], currency=["EUR"])
    seen.await_rows(("a", 1.0), ("b", 1.0))
    importer.operators.send(SideComplete(input="rates"), delivery="BEGIN").wait_applied(SECONDS)
    trades.put(id=["c"], currency=["EUR"])
    seen.await_rows(("a", 1.0), ("b", 1.0), ("c", 3.0))
