"""Ticks for operators with timeouts by wall-clock time.

Spark wakes an operator by event time or by the clock, not by both. So an operator with side inputs,
or with patterns in processing time, gets a source of ticks. Each tick is a control tuple that gives
every bucket a window. Its number is in the checkpoint; timeouts use the pinned clock of the
micro-batch. Without a time limit the source emits nothing, but it exists, so that setting a limit
later adds no source.
"""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from pyspark import SparkFiles

from pe_agent.aligned.control_source import ControlSource, control_source_plan
from pe_agent.aligned.plan import StreamPlan
from pe_agent.aligned.runtime.frames import encode_control
from pe_agent.log.atomic_file import replace_file
from pe_agent.spark.session import is_connect
from streambroker_core.control.tuples import Delivery, SideTick, make_logged_tuple
from streambroker_core.control.tuples.payloads import encode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT = "streambroker-side-ticks"
MIN_TICK_SECONDS = 0.5
TICKS_PER_TIMEOUT = 4
"""Maximum number of ticks per timeout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TickPlan:
    """The ticks that an operator needs.

    Attributes:
        seconds: minimum time between two ticks; 0 for no ticks.
        due: pinned time, in microseconds, from which on a tick is needed; None for no such time.
    """

    seconds: float = 0.0
    due: int | None = None


class TickFile:
    """A plan in a file, written by the driver and read by its source of ticks.

    The source runs in a process of its own. The offset pins each tick, so a replay needs no file.
    """

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / f"ticks-{uuid.uuid4().hex}"
        self._lock = threading.Lock()
        self._plan: TickPlan | None = None
        self.update()

    @classmethod
    def create(cls, spark: SparkSession) -> TickFile:
        """Return a new file in a folder that ends with the session, or with this process."""
        return cls(_temporary_folder() if is_connect(spark) else SparkFiles.getRootDirectory())

    def update(self, **changes: Any) -> None:
        """Change fields of the plan; on OSError of the file the plan is unchanged."""
        with self._lock:
            plan = replace(self._plan or TickPlan(), **changes)
            if plan != self._plan:
                replace_file(self.path, json.dumps(asdict(plan)))
                self._plan = plan


@cache
def _temporary_folder() -> str:
    folder = tempfile.mkdtemp(prefix="streambroker-ticks-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def tick_seconds(timeout: float) -> float:
    """Return the tick interval that lets a row wait at most a quarter longer than its timeout."""
    return max(MIN_TICK_SECONDS, timeout / TICKS_PER_TIMEOUT)


def tick_source_plan(spark: SparkSession, plan: TickPlan | TickFile) -> StreamPlan:
    """Return ticks for ``union``; ``plan`` is a file if it changes during the query."""
    options = {"path": str(plan.path)} if isinstance(plan, TickFile) else asdict(plan)
    return control_source_plan(spark, TickSource, **options)


class TickSource(ControlSource):
    """``format("streambroker-side-ticks")``."""

    FORMAT = FORMAT

    def control_offsets(self) -> TickOffsets:
        """Return the offsets of a plan or its file."""
        path = self.options.get("path")
        if path is not None:
            return TickOffsets(Path(path))
        seconds, due = float(self.options["seconds"]), int(self.options["due"])
        return TickOffsets(TickPlan(seconds=seconds, due=due))


class TickOffset(TypedDict):
    """Offset of a source of ticks: the number of the last one, its time in milliseconds."""

    tick: int


class TickOffsets:
    """Emits one tuple for each micro-batch that has a tick."""

    def __init__(self, plan: TickPlan | Path) -> None:
        self._path = plan if isinstance(plan, Path) else None
        self._plan = TickPlan() if isinstance(plan, Path) else plan
        self._started_at = _now_millis()
        self._available_at: int | None = None

    def first(self) -> TickOffset:
        """Return the offset before any tick."""
        return {"tick": 0}

    def latest(self, start: TickOffset) -> TickOffset:
        """Return the offset of the next tick if it is due; a clock that was set back yields none.

        Each bucket needs one window before its due time is known. So the first tick ignores the
        plan's due time.
        """
        plan, last = self._read_plan(), start["tick"]
        now = _now_millis() if self._available_at is None else self._available_at
        if not plan.seconds or now < last + round(plan.seconds * 1000):
            return start
        if last >= self._started_at and (plan.due is None or plan.due > now * 1000):
            return start
        return {"tick": now}

    def freeze_end(self) -> None:
        """Allow one tick, and no more."""
        self._available_at = _now_millis()

    def read(self, start: TickOffset, end: TickOffset) -> list[bytes]:
        """Return the tick, if there is one."""
        if end == start:
            return []
        kind, text = encode(SideTick(end["tick"]))
        tick = make_logged_tuple(
            "side-ticks", end["tick"], type_=kind, text=text, delivery=Delivery.BEGIN
        )
        return [encode_control(tick)]

    def _read_plan(self) -> TickPlan:
        if self._path is not None:
            with suppress(OSError):
                self._plan = TickPlan(**json.loads(self._path.read_text()))
        return self._plan


def _now_millis() -> int:
    """Return the time in milliseconds, which numbers ticks and rises even if the interval grows."""
    return int(time.time() * 1000)
