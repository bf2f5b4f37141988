"""Operators of tests whose tasks run in other processes, which import them from here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from streambroker.operators import TypedOperator, handles


@dataclass
class SetFactor:
    factor: float


@dataclass
class Multiply(TypedOperator):
    """Multiplies prices by a factor, which a control tuple changes."""

    factor: float = 1.0

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        del port
        at = batch.schema.get_field_index("price")
        prices = pc.multiply(batch.column("price"), self.factor)
        self.emit(batch.set_column(at, "price", prices))

    @handles(SetFactor)
    def change(self, port: str, payload: SetFactor, control: object) -> bool:
        del port, control
        self.factor = payload.factor
        return False


REFUSED = 50
"""One row of so many is refused, and the one after it is a match."""


def marked(row: Mapping[str, Any], run: object) -> bool:
    """A condition of a pattern that fails on some rows."""
    del run
    if row["line"] % REFUSED == 0:
        raise ValueError(f"{row['line']} is refused")
    return bool(row["line"] % REFUSED == 1)
