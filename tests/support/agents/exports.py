"""One hosted export in this process, on a log and a store of its own, under a clock in hand."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pe_agent.agent.exports.export import AgentExport
from pe_agent.agent.exports.export_state import ExportState
from pe_agent.agent.exports.reader_plans import RegisteredPlan
from pe_agent.agent.state.store import Store
from pe_agent.agent.storage.tier import StorageTier
from pe_agent.log.commit import Committer
from pe_agent.log.objects.bucket import Bucket
from streambroker_core.ledger.plan import Plan, PlanRequest
from streambroker_core.ledger.retention import RetentionLimits

IMPORT = "default/alerts/0/trades"
SCHEMA = pa.schema([("n", pa.int64()), ("name", pa.string())])
DDL = "`n` bigint, `name` string"
PUBLISHER = {"query": "q", "run": "r", "ddl": DDL}
READER: dict[str, Any] = {
    "reader": "reader", "import_": IMPORT, "policy": "wait", "start": "earliest",
}  # fmt: skip


class Killed(BaseException):
    """Stands for the end of the process at this point."""


@contextlib.contextmanager
def killed_in(monkeypatch: pytest.MonkeyPatch, where: object, name: str) -> Iterator[None]:
    """Let the process end, as it were, where the block calls ``name``; it has to call it."""

    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(where, name, killed)
        try:
            yield
        except Killed:
            return
    raise AssertionError(f"{name} was not called")


def rows(first: int, count: int, size: int = 5) -> pa.RecordBatch:
    """Return rows ``n`` = first, first + 1, … with a text of ``size`` characters each."""
    columns = {"n": list(range(first, first + count)), "name": ["x" * size] * count}
    return pa.RecordBatch.from_pydict(columns, schema=SCHEMA)


def plan_one(
    export: AgentExport, request: PlanRequest, *, filter_: str | None, columns: list[str] | None
) -> Plan:
    """Plan for one reader; raise its error."""
    (plan,) = export.plans.plan_all([request], filter_=filter_, columns=columns)
    if isinstance(plan, Exception):
        raise plan
    return plan


@dataclass
class Bench:
    """A hosted export and what it stands on."""

    directory: Path
    now: float = 1000.0
    notified: int = 0
    segment_bytes: int = 1 << 20
    bucket: Bucket | None = None
    storage: StorageTier | None = None
    export: AgentExport = field(init=False)
    store: Store = field(init=False)
    committer: Committer = field(init=False)

    def open(self) -> AgentExport:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.storage = StorageTier(self.bucket, self.directory) if self.bucket else None
        self.store = Store(self.directory / "state.sqlite")
        self.committer = Committer(threads=1)
        self.export = AgentExport(
            ExportState(
                "default/feed/0/trades",
                self.directory / "log",
                self.store,
                self.committer,
                notify=self._notify,
                clock=lambda: self.now,
                segment_bytes=self.segment_bytes,
                storage=self.storage,
            )
        )
        self.export.recover()
        if self.storage is not None:
            self.storage.start(self.store)
        return self.export

    def _notify(self) -> None:
        self.notified += 1

    def close(self) -> None:
        if self.storage is not None:
            self.storage.close()
        self.export.state.close()
        self.committer.close()
        self.store.close()

    def reopen(self) -> AgentExport:
        self.close()
        return self.open()

    def limit(self, **limits: Any) -> None:
        self.export.set_limits(RetentionLimits(**limits))

    def route(self, policy: str = "wait") -> None:
        self.export.set_routes({IMPORT: policy})

    def admit(self, batch: int, **more: str) -> Any:
        named: dict[str, Any] = {**PUBLISHER, **more}
        return self.export.publisher.admit(**named, batch=batch, renewed=None)

    def stage(self, batch: int, *batches: pa.RecordBatch, **more: str) -> dict[str, Any]:
        named: dict[str, Any] = {**PUBLISHER, **more, "batch": batch}
        return self.export.publisher.stage(**named, schema=batches[0].schema, batches=batches)

    def commit(self, batch: int, *stages: dict[str, Any], **more: str) -> dict[str, Any]:
        named: dict[str, Any] = {**PUBLISHER, **more, **({} if stages else {"ddl": None})}
        return self.export.publisher.publish(**named, batch=batch, stages=list(stages))

    def publish(self, batch: int, *batches: pa.RecordBatch, **more: str) -> dict[str, Any]:
        assert self.admit(batch, **more)["admitted"]
        return self.commit(batch, self.stage(batch, *batches, **more), **more)

    def plan(
        self,
        positions: Mapping[str, int] | None = None,
        *,
        filter_: str | None = None,
        columns: list[str] | None = None,
        **more: Any,
    ) -> Plan:
        more |= {"positions": positions or {}, "has_opened": positions is not None}
        ask = PlanRequest(**{**READER, **more})
        return plan_one(self.export, ask, filter_=filter_, columns=columns)

    def replan(
        self,
        ranges: Mapping[str, tuple[int, int]],
        *,
        filter_: str | None = None,
        columns: list[str] | None = None,
        **more: Any,
    ) -> RegisteredPlan:
        ask = PlanRequest(**{**READER, "positions": {}, **more})
        return self.export.plans.register_plan(ask, ranges, filter_=filter_, columns=columns)

    @property
    def stream(self) -> str:
        return list(self.export.state.streams)[-1]


@contextlib.contextmanager
def bench(directory: Path, **more: Any) -> Iterator[Bench]:
    made = Bench(directory / "agent", **more)
    made.open()
    try:
        yield made
    finally:
        made.close()
