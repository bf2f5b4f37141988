"""A table of rates for tests of side inputs, and an agent that keeps what is reported to it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from streambroker_core.wire.reports.side_status import SideStatus
from support.spark.feeds import put_file

RATES = pa.schema([("currency", pa.string()), ("rate", pa.float64())])


def put_rates(folder: Path, **rates: float) -> None:
    """Write the one file of a folder again, whole."""
    folder.mkdir(exist_ok=True)
    table = pa.table({"currency": list(rates), "rate": list(rates.values())}, schema=RATES)
    put_file(folder, "a", table)


class RecordingAgent:
    """Keeps what is reported to it."""

    operator = "join"

    def __init__(self) -> None:
        self.given: list[tuple[int, int, list[SideStatus]]] = []

    def __call__(self, bucket: int, window: int, sides: list[SideStatus]) -> None:
        self.given.append((bucket, window, sides))
