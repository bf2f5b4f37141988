"""A table of rates for tests of side inputs, and an agent that keeps what it is told."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from streambroker_core.wire.reports.side_status import SideStatus

RATES = pa.schema([("currency", pa.string()), ("rate", pa.float64())])


def put_rates(folder: Path, **rates: float) -> None:
    """Write the one file of a folder again, whole."""
    folder.mkdir(exist_ok=True)
    table = pa.table({"currency": list(rates), "rate": list(rates.values())}, schema=RATES)
    pq.write_table(table, folder / ".a")
    (folder / ".a").rename(folder / "a.parquet")


class RecordingAgent:
    """What the agent is told."""

    operator = "join"

    def __init__(self) -> None:
        self.given: list[tuple[int, int, list[SideStatus]]] = []

    def __call__(self, bucket: int, window: int, sides: list[SideStatus]) -> None:
        self.given.append((bucket, window, sides))
