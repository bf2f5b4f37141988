"""The steps of the protocol between two queries, and how a process is held at one of them.

A step is the begin or the end of a call inside the product, named by what has happened so far. A
process that comes to the step a test has armed says so in a file and stands still there, with all
the locks it holds, until the test has killed whom it wants to kill: this process or another one.

Only the standard library is imported here: it runs before anything else in each process.
"""

from __future__ import annotations

import fcntl
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

VARIABLE = "STREAMBROKER_CUTS"
SEGMENTS = "STREAMBROKER_SEGMENT_BYTES"
"""Bytes of a segment of processes that stop at armed steps; without it, those of the product."""
MANIFEST, STAGE_END = 2, 3
"""Kinds of frames in the log."""

PUBLISHER = "pe_agent.agent.exports.publisher:ExportPublisher"
PLANS = "pe_agent.agent.exports.reader_plans:ReaderPlans"
CONTROL = "pe_agent.agent.exports.control_sender:ControlSender"
EPOCHS = "pe_agent.agent.exports.epoch_writer:EpochWriter"
STATE = "pe_agent.agent.exports.export_state:ExportState"
READERS = "pe_agent.agent.imports.readers:ImportReaders"
STREAMS = "pe_agent.agent.exports.stream.export_stream:ExportStream"
IMPORTS = "pe_agent.agent.imports.offset_planner:OffsetPlanner"
PLAN_BATCHES = "pe_agent.agent.imports.plan_batches:PlanBatches"
SLICES = "pe_agent.agent.imports.slice_planner:SlicePlanner"
CONTROL_LOG = "pe_agent.agent.state.control_log:ControlLog"
LOG = "pe_agent.log.log:StreamLog"
LEDGER = "streambroker_core.ledger.ledger:Ledger"
SINK = "pe_agent.datasource.sink:StreambrokerStreamWriter"
STAGES = "pe_agent.transport.rows.stage_writer:StageWriter"
SOURCE = "pe_agent.datasource.source:StreambrokerStreamReader"
SLICE_READER = "pe_agent.datasource.slice_reader:SliceReader"
CHAIN = "pe_agent.log.objects.chain:Chain"
BUCKET = "pe_agent.log.objects.bucket:Bucket"
FOLDER = "pe_agent.log.objects.stream_folder:StreamFolder"
UPLOADER = "pe_agent.log.objects.uploader:LogUploader"
OWNERSHIP = "pe_agent.agent.storage.ownership"
TIER = "pe_agent.agent.storage.tier"
SNAPSHOTS = "pe_agent.agent.snapshots"
AGENT_STORE = "pe_agent.agent.state.store:Store"
STAND_IN = "support.cuts.queries"
FEEDS, READS = f"{STAND_IN}:Exporting", f"{STAND_IN}:Importing"


@dataclass(frozen=True)
class Step:
    """One step.

    Attributes:
        call: ``module:Class.function`` or ``module:function`` that begins or ends there.
        end: whether it is the end of the call.
        passes: at which time it is armed; late enough that rows flow.
        where: the process that passes it.
        only: which calls count, by their positional arguments.
    """

    call: str
    end: bool
    passes: int
    where: str
    only: Callable[[Sequence[Any]], bool] = lambda args: True


def _before(call: str, passes: int, where: str) -> Step:
    return Step(call, False, passes, where)


def _after(call: str, passes: int, where: str) -> Step:
    return Step(call, True, passes, where)


def _last_batch(epochs: Any) -> int:
    last = epochs._state.publisher.last
    return -1 if last is None else int(last.batch)


def _frame(kind: int, passes: int) -> Step:
    return Step(f"{LOG}.append", True, passes, FEED_AGENT, lambda args: args[1] == kind)


FEED_DRIVER, FEED_WORKER, FEED_AGENT = "exporting driver", "exporting worker", "exporter's agent"
DRIVER, WORKER, AGENT = "importing driver", "importing worker", "importer's agent"
BROKER = "broker"

EXPORTING: dict[str, Step] = {
    "before the batch is in the exporter's checkpoint": _before(f"{FEEDS}.plan", 2, FEED_DRIVER),
    "batch in the exporter's checkpoint, before its tasks": _after(f"{FEEDS}.plan", 2, FEED_DRIVER),
    "before admission": _before(f"{PUBLISHER}.admit", 3, FEED_AGENT),
    "admitted, not answered": _after(f"{PUBLISHER}.admit", 3, FEED_AGENT),
    "admission answered, before the rows": _before(f"{STAGES}._send_rows", 3, FEED_WORKER),
    "before the stream's log is made": _before(f"{EPOCHS}._open_stream", 1, FEED_AGENT),
    "log made, before the stream is in the store": _after(f"{STREAMS}.__init__", 1, FEED_AGENT),
    "stream in the store, before its first rows": _after(f"{EPOCHS}._open_stream", 1, FEED_AGENT),
    "before the first rows of a stage": _before(f"{STREAMS}.append", 5, FEED_AGENT),
    "between two blocks of a stage": _after(f"{STREAMS}.append", 5, FEED_AGENT),
    "all rows of a stage, before its end": _before(f"{STREAMS}.finish", 3, FEED_AGENT),
    "end of the stage written, before it is on the disk": _frame(STAGE_END, 3),
    "stage on the disk, not answered": _after(f"{STREAMS}.finish", 3, FEED_AGENT),
    "stage answered, before the task ends": _after(f"{SINK}.write", 3, FEED_WORKER),
    "all tasks ended, before the commit": _before(f"{SINK}.commit", 2, FEED_DRIVER),
    "before publish": _before(f"{PUBLISHER}.publish", 2, FEED_AGENT),
    "manifest written, before it is on the disk": _frame(MANIFEST, 2),
    "epoch on the disk, before the store": _after(f"{STREAMS}.add_epoch", 2, FEED_AGENT),
    "epoch in the ledger, before the publisher's batch": _after(f"{LEDGER}.publish", 2, FEED_AGENT),
    "published, before the stages are swept": Step(
        f"{EPOCHS}.sweep_stages", False, 1, FEED_AGENT, lambda args: _last_batch(args[0]) > 0
    ),
    "published, not answered": _after(f"{PUBLISHER}.publish", 2, FEED_AGENT),
    "publish answered, before the commit log": _after(f"{SINK}.commit", 2, FEED_DRIVER),
    "in the exporter's commit log": _after(f"{FEEDS}.commit", 2, FEED_DRIVER),
}

FAILING: dict[str, Step] = {
    "before abort": _before(f"{PUBLISHER}.abort", 1, FEED_AGENT),
    "aborted, not answered": _after(f"{PUBLISHER}.abort", 1, FEED_AGENT),
    "abort answered, before the query fails": _after(f"{SINK}.abort", 1, FEED_DRIVER),
}
"""Steps of a batch that fails at the exporter."""

IMPORTING: dict[str, Step] = {
    "latestOffset asked": _before(f"{IMPORTS}.next_offset", 5, AGENT),
    "before plan": _before(f"{PLAN_BATCHES}.send", 2, AGENT),
    "plan asked": _before(f"{PLANS}.plan_all", 2, FEED_AGENT),
    "acknowledged, before the plan": _after(f"{PLANS}._finish_plan", 2, FEED_AGENT),
    "planned, before the reader is saved": _before(f"{STATE}.save_rows", 3, FEED_AGENT),
    "plan saved, not answered": _after(f"{PLANS}.plan_all", 2, FEED_AGENT),
    "plan answered, before the streams are remembered": _after(f"{PLAN_BATCHES}.send", 2, AGENT),
    "offset made, not answered": _after(f"{IMPORTS}._advance", 2, AGENT),
    "offset answered, before it is in the checkpoint": _before(f"{READS}.plan", 2, DRIVER),
    "offset in the checkpoint, before partitions": _before(f"{SOURCE}.partitions", 2, DRIVER),
    "partitions asked": _before(f"{SLICES}.plan_slices", 2, AGENT),
    "plan asked again": _before(f"{PLANS}.register_plan", 2, FEED_AGENT),
    "planned again, not answered": _after(f"{PLANS}.register_plan", 2, FEED_AGENT),
    "partitions made, not answered": _after(f"{SLICES}.plan_slices", 2, AGENT),
    "partitions answered, before the tasks": _after(f"{SOURCE}.partitions", 2, DRIVER),
    "before read": _before(f"{SOURCE}.read", 2, WORKER),
    "read asked": _before(f"{PLANS}.find_readable", 2, FEED_AGENT),
    "between two blocks of a read": _after(f"{PLANS}.count_block", 6, FEED_AGENT),
    "between two blocks in the task": _after(f"{SLICE_READER}._cast_batch", 6, WORKER),
    "all read, before the sink": _before(f"{READS}.write", 2, WORKER),
    "in the task's file of the sink": _after(f"{READS}.write", 2, WORKER),
    "before the sink's commit": _before(f"{READS}.sink", 2, DRIVER),
    "in the sink, before the commit log": _after(f"{READS}.sink", 2, DRIVER),
    "in the importer's commit log, before the acknowledgement": _after(
        f"{READS}.commit", 2, DRIVER
    ),
    "lease of the reader renewed": _after(f"{READERS}.renew", 1, AGENT),
    "reader renewed at the exporter": _after(f"{PLANS}.renew_reader", 2, FEED_AGENT),
}

DROPPING: dict[str, Step] = {
    "epochs dropped, before they are taken out of the log": _before(
        f"{STREAMS}.remove", 1, FEED_AGENT
    ),
    "epochs taken out of the log": _after(f"{STREAMS}.remove", 1, FEED_AGENT),
}
"""Steps of an export whose reader is slow, under ``drop``."""

OUTSIDE: dict[str, Step] = {
    "before the tuple is kept": _before(f"{CONTROL}.emit", 1, FEED_AGENT),
    "tuple kept, before its epoch": _before(f"{CONTROL}._extend_end", 1, FEED_AGENT),
    "tuple in its epoch, not answered": _after(f"{CONTROL}.emit", 1, FEED_AGENT),
    "before the tuple is in the control log": _before(f"{CONTROL_LOG}.append", 1, FEED_AGENT),
    "tuple in the control log, not answered": _after(f"{CONTROL_LOG}.append", 1, FEED_AGENT),
}
"""Steps of a control tuple from outside, which a broker has the agent take."""


def _link(what: str, passes: int, *, end: bool) -> Step:
    return Step(f"{CHAIN}.append", end, passes, FEED_AGENT, lambda args: what in args[1])


def _put(suffix: str, passes: int) -> Step:
    return Step(f"{BUCKET}.put", True, passes, FEED_AGENT, lambda args: args[1].endswith(suffix))


STORING: dict[str, Step] = {
    "before a part is put": _link("start", 4, end=False),
    "part in the bucket, before it counts": _link("start", 4, end=True),
    "before a segment is put": _before(f"{FOLDER}.merge", 1, FEED_AGENT),
    "index in the bucket, before its segment": _put(".index", 1),
    "segment in the bucket, before its mark": _put(".segment", 1),
    "mark in the bucket, before the parts are obsolete": _link("whole", 1, end=True),
    "merged, before obsolete parts are deleted": _after(f"{FOLDER}.merge", 1, FEED_AGENT),
    "obsolete parts deleted": Step(
        f"{CHAIN}.delete", True, 1, FEED_AGENT, lambda args: args[0]._name == "parts"
    ),
    "before the first snapshot": _link("format", 1, end=False),
    "before a snapshot": _link("format", 2, end=False),
    "snapshot in the bucket, before it is noted": _link("format", 2, end=True),
    "before old snapshots are deleted": _before(f"{CHAIN}.delete", 2, FEED_AGENT),
    "segment dropped, before its objects are deleted": _before(f"{FOLDER}.delete", 1, FEED_AGENT),
    "objects of a dropped segment deleted": _after(f"{FOLDER}.delete", 1, FEED_AGENT),
    "uploaded, before the next upload": _after(f"{UPLOADER}.flush", 5, FEED_AGENT),
}
"""Steps of uploads to object storage."""

TAKING_OVER: dict[str, Step] = {
    "number taken": _after(f"{OWNERSHIP}:claim", 1, FEED_AGENT),
    "state of the earlier owner sealed": _after(f"{OWNERSHIP}:seal", 1, FEED_AGENT),
    "earlier owner ended, before its database": _after(f"{OWNERSHIP}:take_over", 1, FEED_AGENT),
    "database there, before the logs": _after(
        f"{TIER}:StorageTier._restore_database", 1, FEED_AGENT
    ),
    "before the parts are sealed": _before(f"{TIER}:read_stored_log", 1, FEED_AGENT),
    "parts sealed, before files": _after(f"{TIER}:read_stored_log", 1, FEED_AGENT),
    "first file there": _after("pe_agent.log.objects.restore:_write", 1, FEED_AGENT),
    "files there, before the log is open": _after(f"{TIER}:restore_files", 1, FEED_AGENT),
    "logs open, before the owner is recorded": _before(f"{TIER}:StorageTier.start", 1, FEED_AGENT),
    "owner recorded, before its snapshot": _link("format", 1, end=False),
    "snapshot of the new owner, before those of earlier ones go": _before(
        f"{OWNERSHIP}:delete_earlier", 1, FEED_AGENT
    ),
    "snapshots of earlier owners deleted": _after(f"{OWNERSHIP}:delete_earlier", 1, FEED_AGENT),
}
"""Steps of an agent that starts with what the bucket has."""

SAVING: dict[str, Step] = {
    "before the exports stand still": _before(f"{SNAPSHOTS}:Snapshots._capture", 1, FEED_AGENT),
    "database copied, before the logs": _after(f"{AGENT_STORE}.save_copy", 1, FEED_AGENT),
    "segments linked, exports still": _after(f"{SNAPSHOTS}:_link_segments", 1, FEED_AGENT),
    "captured, before segments are copied": _after(
        f"{SNAPSHOTS}:Snapshots._capture", 1, FEED_AGENT
    ),
    "segment copied, before checksums": _after(f"{SNAPSHOTS}:_copy_segment", 1, FEED_AGENT),
    "between two checksums": _after(f"{SNAPSHOTS}:_seal_file", 2, FEED_AGENT),
    "before the manifest": _before(f"{SNAPSHOTS}:_write_manifest", 1, FEED_AGENT),
    "manifest written": _after(f"{SNAPSHOTS}:_write_manifest", 1, FEED_AGENT),
}
"""Steps of a snapshot of an agent."""

RESTORED: dict[str, Step] = {
    "restored, before streams are sealed": _before(f"{AGENT_STORE}.branch", 1, FEED_AGENT),
    "streams sealed, before the logs are open": _after(f"{AGENT_STORE}.branch", 1, FEED_AGENT),
    "restored log noted, before the marker is deleted": _after(
        "pe_agent.agent.exports.export:AgentExport.note_restored", 1, FEED_AGENT
    ),
}
"""Steps of the first start on a restored directory."""

STEPS = {
    **EXPORTING,
    **FAILING,
    **IMPORTING,
    **DROPPING,
    **OUTSIDE,
    **STORING,
    **TAKING_OVER,
    **SAVING,
    **RESTORED,
}


# ---- inside the process that is held ---------------------------------------------------


def install() -> None:
    """Wrap the calls of all steps when their modules are imported."""
    by_module: dict[str, list[tuple[str, str, Step]]] = {}
    for name, step in STEPS.items():
        module, _, path = step.call.partition(":")
        by_module.setdefault(module, []).append((name, path, step))
    sys.meta_path.insert(0, _Finder(by_module))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds modules as Python does, and wraps what they define once they are loaded."""

    def __init__(self, wanted: dict[str, list[tuple[str, str, Step]]]) -> None:
        self._wanted = wanted

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._wanted:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        assert spec is not None
        assert spec.loader is not None
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            for name, call, step in self._wanted[fullname]:
                _wrap(module, name, call, step)
            if fullname == STATE.partition(":")[0]:
                _take_segment_size(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def find(module: ModuleType, path: str) -> tuple[Any, str, Any]:
    """Return the class or module of a step's call, the call's name and what has that name."""
    class_name, _, function = path.rpartition(".")
    owner = getattr(module, class_name) if class_name else module
    return owner, function, inspect.getattr_static(owner, function)


def _wrap(module: ModuleType, name: str, path: str, step: Step) -> None:
    owner, function, found = find(module, path)
    call = found.__func__ if isinstance(found, staticmethod) else found

    @functools.wraps(call)
    def wrapped(*args: Any, **more: Any) -> Any:
        if not step.end and step.only(args):
            _pass(name)
        result = call(*args, **more)
        if step.end and step.only(args):
            _pass(name)
        return result

    setattr(owner, function, staticmethod(wrapped) if isinstance(found, staticmethod) else wrapped)


def _take_segment_size(module: ModuleType) -> None:
    """Have segments of exports the size that a test gives."""
    init = module.ExportState.__init__

    @functools.wraps(init)
    def wrapped(*args: Any, **more: Any) -> None:
        if size := os.environ.get(SEGMENTS):
            more.setdefault("segment_bytes", int(size))
        init(*args, **more)

    module.ExportState.__init__ = wrapped


def _pass(name: str) -> None:
    """Count a pass of a step; stand still at the one that is armed."""
    folder = Path(os.environ[VARIABLE])
    text = _armed(folder)
    try:
        armed = json.loads(text)
    except ValueError:
        return
    if armed["step"] != name or _count(folder / "passes") != armed["pass"]:
        return
    fresh = folder / "reached.new"
    fresh.write_text(json.dumps({"pid": os.getpid()}))
    fresh.rename(folder / "reached")
    tester = Path(f"/proc/{armed['by']}")
    while not (folder / "go").exists() and _armed(folder) == text and tester.exists():
        time.sleep(0.002)


def _armed(folder: Path) -> str:
    """Return what is armed at this moment, nothing if no step is."""
    try:
        return (folder / "armed").read_text()
    except OSError:
        return ""


def _count(path: Path) -> int:
    """Add one to a number that all processes share, and return it."""
    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(".")
        file.flush()
        return os.fstat(file.fileno()).st_size


# ---- the test's side -------------------------------------------------------------------


EXAMPLES = (".", "03-control-tuples", "05-side-inputs")
"""Folders of examples from which tests take operators, also in Spark's workers."""


def search_path(*, held: bool) -> str:
    """Return where a process of the tests looks for modules; ``held``: it stops at armed steps."""
    here = Path(__file__).parent
    tests = here.parents[1]
    site = [str(here / "site")] if held else []
    examples = [str(tests.parent / "examples" / name) for name in EXAMPLES]
    return os.pathsep.join([*site, str(tests), *examples])


class Cut:
    def __init__(self, folder: Path, step: str, passes: int | None = None) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.disarm()
        armed = {
            "step": step,
            "pass": passes or STEPS[step].passes,
            "by": os.getpid(),
            "id": secrets.token_hex(8),
        }
        (folder / "armed").write_text(json.dumps(armed))

    def reached(self) -> int | None:
        """Return the process that stands at the step, None if none does yet."""
        try:
            return int(json.loads((self._folder / "reached").read_text())["pid"])
        except OSError:
            return None

    def go(self) -> None:
        """Let the process go on, if it lives."""
        (self._folder / "go").touch()

    def disarm(self) -> None:
        """Let nobody stop any more, and who stands there go on."""
        for name in ("armed", "go", "reached", "passes"):
            (self._folder / name).unlink(missing_ok=True)
