"""State that the runner itself keeps for a bucket, next to the operator's state.

- ``~meta`` identifies the operator, its state version, the buckets and the key.
- ``~waiting`` holds control tuples until their time.
- ``~clock`` is the event time to which the operator was last advanced.

State of another operator, number of buckets or key, or of a newer release is rejected before any
change.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from streambroker_core.control.operators.operator import Blobs, Changes, StateError
from streambroker_core.control.runtime.buckets import HASH
from streambroker_core.control.runtime.emitter import Stage
from streambroker_core.control.tuples import (
    ControlLimitError,
    ControlTuple,
    IdentityError,
    sort_key,
)
from streambroker_core.control.tuples.envelope import decode, encode
from streambroker_core.wire.encoding.canonical import canonical

VERSION = 2
"""Format 1 stored waiting tuples by name; format 2 stores them in arrival order."""
RUNNER_PREFIX = "~"
_META, _WAITING, _CLOCK = "~meta", "~waiting", "~clock"


class OperatorBlobs(Mapping[str, bytes]):
    """The operator's part of a bucket's blobs."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    def __getitem__(self, name: str) -> bytes:
        if name.startswith(RUNNER_PREFIX):
            raise KeyError(name)
        return self._blobs[name]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and not name.startswith(RUNNER_PREFIX) and name in self._blobs

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._blobs if not name.startswith(RUNNER_PREFIX))

    def __len__(self) -> int:
        return sum(1 for _ in self)


@dataclass(slots=True)
class RunnerState:
    """The runner's own state of a bucket.

    Attributes:
        state: ``state_version`` of the operator that wrote blobs; None if none did.
        layouts: layout texts of the ports seen so far.
        waiting: tuples that wait for their time, by port and id, in arrival order.
        clock: the event time to which the operator was last advanced.
    """

    state: int | None = None
    layouts: dict[str, str] = field(default_factory=dict)
    waiting: dict[tuple[str, str], ControlTuple] = field(default_factory=dict)
    clock: int | None = None
    _read: dict[str, bytes] = field(default_factory=dict)
    _waiting_changed: bool = False
    _new: set[tuple[str, str]] = field(default_factory=set)

    def add_waiting(self, port: str, control: ControlTuple) -> None:
        """Store a tuple until its time; raise IdentityError if a different one has its identity."""
        existing = self.waiting.get((port, control.id))
        if existing is not None:
            if existing.differs_from(control):
                raise IdentityError(existing, control)
            return
        self.waiting[port, control.id] = control
        self._waiting_changed = True
        self._new.add((port, control.id))

    def check_waiting_limit(self, stage: Stage) -> None:
        """Check the number of tuples that wait since earlier windows.

        Tuples of this window do not count: when a query catches up they may be many and due in the
        next window.

        Raises:
            ControlLimitError: too many wait.
        """
        limit = stage.limits.tuples
        if len(self.waiting) <= limit:
            return
        old = [one for key, one in self.waiting.items() if key not in self._new]
        if len(old) > limit:
            raise ControlLimitError(
                f"{len(old)} control tuples of earlier windows wait for their time at operator"
                f" {stage.operator}, the limit is {limit}. Does its watermark advance? The last"
                f" one is a {old[-1].type} for {old[-1].at}. Raise the limit with"
                " limits=Limits(tuples=…)."
            )

    def remove_waiting(self, port: str, control: ControlTuple) -> None:
        """Remove a tuple that was delivered."""
        del self.waiting[port, control.id]
        self._waiting_changed = True

    def changes(self, stage: Stage, written: Changes, state_version: int) -> Changes:
        """Return all blobs to write: the operator's, and the runner's changed ones.

        Raises:
            StateError: the operator uses a blob name that is not allowed.
        """
        for name in written:
            if not name[:1].isalpha():
                raise StateError(
                    f"operator {stage.operator} writes state {name!r}: names begin with a letter."
                )
        if written:
            self.state = state_version
        own: dict[str, bytes | None] = {
            _WAITING: self._encode_waiting(),
            _CLOCK: None if self.clock is None else str(self.clock).encode(),
        }
        if written or self._read or any(own.values()):
            own[_META] = canonical(
                {
                    "v": VERSION,
                    "operator": stage.operator,
                    "state": self.state,
                    "buckets": stage.buckets,
                    "hash": HASH,
                    "layouts": self.layouts,
                }
            )
        changed = {name: blob for name, blob in own.items() if blob != self._read.get(name)}
        return {**changed, **written}

    def _encode_waiting(self) -> bytes | None:
        if not self._waiting_changed:
            return self._read.get(_WAITING)
        if not self.waiting:
            return None
        return canonical([[port, encode(one)] for (port, _), one in self.waiting.items()])


def operator_name(blobs: Blobs) -> str | None:
    """Return the name of the operator that owns the state; None if there is none yet."""
    meta = blobs.get(_META)
    return None if meta is None else str(json.loads(meta)["operator"])


def read_runner_state(
    blobs: Blobs, stage: Stage, state_version: int, ports: Sequence[str]
) -> RunnerState:
    """Read the runner's own blobs, and check that the state is this operator's.

    Raises:
        StateError: it is not, or it is damaged.
        FormatTooNewError: a waiting tuple is of a newer release.
    """
    runner_state = RunnerState()
    for name in (_META, _WAITING, _CLOCK):
        blob = blobs.get(name)
        if blob is not None:
            runner_state._read[name] = bytes(blob)
    if _META not in runner_state._read:
        return runner_state
    try:
        meta = json.loads(runner_state._read[_META])
        _check_meta(meta, stage, state_version)
        runner_state.state, runner_state.layouts = meta["state"], dict(meta["layouts"])
        runner_state.clock = (
            int(runner_state._read[_CLOCK]) if _CLOCK in runner_state._read else None
        )
        waiting = json.loads(runner_state._read.get(_WAITING, b"[]"))
        waiting_tuples = [(port, decode(one, "waiting")) for port, one in waiting]
        if meta["v"] < VERSION:
            waiting_tuples.sort(key=lambda one: sort_key(one[1]))
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"state of operator {stage.operator} is damaged: {error!r}.") from error
    for port, control in waiting_tuples:
        if port not in ports:
            raise _state_error(
                stage, f"has tuples that wait at input {port}, which the operator does not have"
            )
        runner_state.waiting[port, control.id] = control
    return runner_state


def _check_meta(meta: Mapping[str, Any], stage: Stage, state_version: int) -> None:
    if meta["v"] > VERSION:
        raise _state_error(stage, f"has form {meta['v']}, of a newer release; this reads {VERSION}")
    if meta["operator"] != stage.operator:
        raise _state_error(stage, f"belongs to operator {meta['operator']}")
    if meta["buckets"] != stage.buckets:
        raise _state_error(stage, f"has {meta['buckets']} buckets and the query {stage.buckets}")
    if meta["hash"] != HASH:
        raise _state_error(
            stage, f"has its keys hashed by {meta['hash']} and this release by {HASH}"
        )
    if meta["state"] is not None and meta["state"] > state_version:
        raise _state_error(
            stage, f"has version {meta['state']} and the operator reads up to {state_version}"
        )


def check_layouts(runner_state: RunnerState, layouts: Mapping[str, str], stage: Stage) -> None:
    """Store the layouts of new ports; raise StateError if that of a known port differs."""
    for port, layout in layouts.items():
        stored = runner_state.layouts.setdefault(port, layout)
        if stored != layout:
            raise _state_error(
                stage, f"has input {port} distributed as {stored} and the query as {layout}"
            )


def _state_error(stage: Stage, reason: str) -> StateError:
    return StateError(
        f"state of operator {stage.operator} in this checkpoint {reason}. Nothing was"
        " overwritten: go back to the release or query that wrote it, or start a new checkpoint."
    )
