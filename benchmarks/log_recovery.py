"""Start an agent over a log of 10 GB, until it listens: with its indexes, and without any.

An agent over an empty directory says what of it is the process itself. The logs are made once by
appending, as a job would, once with frames as bulk work makes them (800 kB) and once with short
ones (8 kB); the agents are killed, so that no start profits from an orderly end. For a cold start
the log's pages are dropped from the cache. Where the disk has no room for 10 GB and half as much
again, the logs are smaller, and the figures' names say how large.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
from measure import Figures, Settings, turns
from processes import Child

from pe_agent.agent.exports.export import AgentExport
from pe_agent.agent.exports.export_state import ExportState
from pe_agent.agent.state.store import Store
from pe_agent.log.commit import Committer
from streambroker_core.ledger.retention import RetentionLimits
from streambroker_core.model import PeKey

PURPOSE = "an agent's start over a log of 10 GB, with its indexes and without"
LOG_BYTES = 10_000_000_000
QUICK_BYTES = 200_000_000
EPOCH_BYTES = 8_000_000
FRAMES = {"800 kB": 800_000, "8 kB": 8_000}
PE = PeKey.parse("default/feed/0")
SCHEMA = pa.schema([("text", pa.binary())])


def fill(home: Path, frame_bytes: int, log_bytes: int) -> None:
    """Publish epochs of 8 MB until the log of one export has its size."""
    home.mkdir()
    store, committer = Store(home / "state.sqlite"), Committer()
    store.set("pe", str(PE))
    state = ExportState(
        f"{PE}/trades", home / "log" / "trades", store, committer, notify=lambda: None
    )
    export = AgentExport(state)
    export.set_limits(RetentionLimits(max_bytes=4 * log_bytes))
    batch = pa.record_batch([pa.array([os.urandom(frame_bytes)])], schema=SCHEMA)
    who: dict[str, Any] = {"query": "q", "run": "r"}
    for number in range(log_bytes // EPOCH_BYTES):
        export.publisher.admit(batch=number, ddl="text binary", renewed=None, **who)
        stage = export.publisher.stage(
            batch=number,
            ddl="text binary",
            schema=SCHEMA,
            batches=[batch] * (EPOCH_BYTES // frame_bytes),
            **who,
        )
        export.publisher.publish(batch=number, stages=[stage], ddl="text binary", **who)
    export.state.close()
    committer.close()
    store.close()


def start(home: Path, log: Path) -> float:
    """Return the seconds an agent takes until it listens; it is killed then."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "pe_agent.agent", "--home", str(home), "--job", PE.job]
    agent = Child([*command, "--linger", "-1"], log)
    agent.line(f"agent {PE} listening on ", 600.0)
    seconds = time.perf_counter() - began
    agent.process.kill()
    agent.process.wait()
    return seconds


def drop_cache(home: Path) -> None:
    """Have the next start read the log from the disk."""
    os.sync()
    for path in (home / "log").rglob("*.*"):
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def drop_indexes(home: Path) -> None:
    """Leave the log as a release without indexes would."""
    for path in (home / "log").rglob("*.index"):
        path.unlink()


def run(settings: Settings) -> Figures:
    """Measure; one start of each kind warms up and is left out."""
    figures = Figures()
    size = QUICK_BYTES if settings.quick else LOG_BYTES
    free = shutil.disk_usage(settings.place).free
    size = min(size, int(free / 1.5))
    for name, frame_bytes in FRAMES.items():
        home = settings.place / "home"
        settings.say(f"filling a log of {size / 1e9:.1f} GB with frames of {name}")
        fill(home, frame_bytes, size)
        what = f"{size / 1e9:.1f} GB in frames of {name}"
        _measure(settings, figures, home, what)
        shutil.rmtree(home)
    return figures


def _measure(settings: Settings, figures: Figures, home: Path, what: str) -> None:
    log = settings.place / "agent.log"
    variants = ("index, warm", "index, cold", "no index, warm", "no index, cold", "empty")
    for round_ in range(settings.rounds + 1):
        if round_:
            figures.yardstick()
        for variant in turns(variants, round_):
            of = home
            if variant == "empty":
                of = settings.place / f"empty-{round_}"
            elif variant.startswith("no index"):
                drop_indexes(home)
            if variant.endswith("cold"):
                drop_cache(home)
            seconds = start(of, log)
            if round_:
                figures.add(f"{what}: {variant}", seconds, "s")
            if of != home:
                shutil.rmtree(of)
    took = sum(p.stat().st_size for p in (home / "log").rglob("*.index"))
    figures.note(f"{what}: the indexes take {took / 1e6:,.1f} MB.")
