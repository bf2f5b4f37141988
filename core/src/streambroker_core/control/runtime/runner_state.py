"""What the runner itself keeps for a bucket, beside the operator's state.

``~meta`` says whose state it is, ``~waiting`` holds control tuples until their time, ``~clock`` the
time that has passed. State of another operator, of another number of buckets or key, or of a newer
release is refused before anything is changed.
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
"""Up to 1 waiting tuples were written by name, from 2 on in the order in which they came."""
RUNNER_PREFIX = "~"
_META, _WAITING, _CLOCK = "~meta", "~waiting", "~clock"

WaitingControl = tuple[str, ControlTuple]
"""A port and a tuple that waits there for its time."""


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
        layouts: of the ports seen so far.
        waiting: tuples that wait for their time, by port and id, in the order in which they came.
        clock: the event time that the operator was last advanced to.
    """

    state: int | None = None
    layouts: dict[str, str] = field(default_factory=dict)
    waiting: dict[tuple[str, str], ControlTuple] = field(default_factory=dict)
    clock: int | None = None
    _read: dict[str, bytes] = field(default_factory=dict)
    _waiting_changed: bool = False
    _new: set[tuple[str, str]] = field(default_factory=set)

    def add_waiting(self, port: str, control: ControlTuple) -> None:
        """Keep a tuple until its time.

        Raises:
            IdentityError: another tuple with its identity waits.
        """
        known = self.waiting.get((port, control.id))
        if known is not None:
            if known.differs_from(control):
                raise IdentityError(known, control)
            return
        self.waiting[port, control.id] = control
        self._waiting_changed = True
        self._new.add((port, control.id))

    def check_waiting_limit(self, stage: Stage) -> None:
        """Refuse too many that have waited since windows before.

        Those that came with this one may be many where a query catches up, and be due in the next.

        Raises:
            ControlLimitError: they are too many.
        """
        limit = stage.limits.tuples
        if len(self.waiting) <= limit:
            return
        old = [one for key, one in self.waiting.items() if key not in self._new]
        if len(old) > limit:
            raise ControlLimitError(
                f"{len(old)} control tuples of windows before wait for their time at operator"
                f" {stage.operator}, the limit is {limit}. Does its watermark move? The last one is"
                f" a {old[-1].type} for {old[-1].at}. More may wait with limits=Limits(tuples=…)."
            )

    def remove_waiting(self, port: str, control: ControlTuple) -> None:
        """Forget a tuple that was delivered."""
        del self.waiting[port, control.id]
        self._waiting_changed = True

    def changes(self, stage: Stage, written: Changes, state_version: int) -> Changes:
        """Return all blobs to write: the operator's, and what changed of our own.

        Raises:
            StateError: the operator names a blob that it may not.
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
    """Return the name of the operator whose state it is; None if there is none yet."""
    meta = blobs.get(_META)
    return None if meta is None else str(json.loads(meta)["operator"])


def read_runner_state(
    blobs: Blobs, stage: Stage, state_version: int, ports: Sequence[str]
) -> RunnerState:
    """Read the runner's own blobs, and check that the state is this operator's.

    Raises:
        StateError: it is not, or it is damaged.
        FormatTooNewError: a tuple that waits is of a newer release.
    """
    kept = RunnerState()
    for name in (_META, _WAITING, _CLOCK):
        blob = blobs.get(name)
        if blob is not None:
            kept._read[name] = bytes(blob)
    if _META not in kept._read:
        return kept
    try:
        meta = json.loads(kept._read[_META])
        _check_meta(meta, stage, state_version)
        kept.state, kept.layouts = meta["state"], dict(meta["layouts"])
        kept.clock = int(kept._read[_CLOCK]) if _CLOCK in kept._read else None
        waiting = json.loads(kept._read.get(_WAITING, b"[]"))
        given = [(port, decode(one, "waiting")) for port, one in waiting]
        if meta["v"] < VERSION:
            given.sort(key=lambda one: sort_key(one[1]))
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"state of operator {stage.operator} is damaged: {error!r}.") from error
    for port, control in given:
        if port not in ports:
            raise _state_error(
                stage, f"has tuples that wait at input {port}, which the operator does not have"
            )
        kept.waiting[port, control.id] = control
    return kept


def _check_meta(meta: Mapping[str, Any], stage: Stage, state_version: int) -> None:
    if meta["v"] > VERSION:
        raise _state_error(stage, f"has form {meta['v']}, of a newer release; this reads {VERSION}")
    if meta["operator"] != stage.operator:
        raise _state_error(stage, f"is that of operator {meta['operator']}")
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
    """Compare how rows are spread with how they were when the state was made.

    Raises:
        StateError: another number of buckets, or another key.
    """
    for port, layout in layouts.items():
        known = runner_state.layouts.setdefault(port, layout)
        if known != layout:
            raise _state_error(
                stage, f"has input {port} spread as {known} and the query as {layout}"
            )


def _state_error(stage: Stage, reason: str) -> StateError:
    return StateError(
        f"state of operator {stage.operator} in this checkpoint {reason}. Nothing was overwritten:"
        " go back to what wrote it, or begin a new checkpoint."
    )
