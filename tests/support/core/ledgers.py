"""Ledgers with epochs and readers in a line each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streambroker_core.ledger.epochs import Epoch
from streambroker_core.ledger.ledger import Ledger
from streambroker_core.ledger.plan import Plan, PlanRequest
from streambroker_core.ledger.retention import RetentionLimits

IMPORT = "default/alerts/0/trades"
QUERY = "query-1"


def ledger(*, max_bytes: int = 1000, grace: float = 600.0, max_age: float | None = None) -> Ledger:
    """Return a ledger with small limits and the route of `IMPORT` as ``wait``."""
    made = Ledger(RetentionLimits(max_bytes=max_bytes, grace=grace, max_age=max_age))
    made.set_routes({IMPORT: "wait"})
    return made


def put(
    made: Ledger,
    stream: str,
    count: int = 1,
    *,
    bytes_: int = 100,
    memory: int = 0,
    rows: int = 10,
    now: float = 0.0,
    query: str = QUERY,
    batch: int | None = None,
) -> None:
    """Publish epochs; the stream is opened if it is new. Batch ids are epoch numbers."""
    if stream not in made.streams:
        made.open(stream)
    for _ in range(count):
        number = made.streams[stream].next
        id_ = number if batch is None else batch
        made.publish(
            stream,
            Epoch(
                number=number,
                rows=rows,
                bytes=bytes_,
                published=now,
                query=query,
                batch=id_,
                memory=memory,
            ),
        )


def ask(positions: Mapping[str, int] | None = None, **more: Any) -> PlanRequest:
    """Return the request of reader ``r`` of `IMPORT`, from the earliest, unless given otherwise."""
    usual: dict[str, Any] = {"reader": "r", "import_": IMPORT, "policy": "wait"}
    return PlanRequest(positions=positions or {}, **{**usual, "start": "earliest", **more})


def planned(answer: Plan) -> dict[str, tuple[int, int]]:
    return {p.stream: (p.from_, p.next) for p in answer.planned}


def retained(made: Ledger, stream: str = "A") -> list[int]:
    return list(made.streams[stream].epochs)
