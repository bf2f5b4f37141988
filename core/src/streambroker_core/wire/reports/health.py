"""Whether the ports of an agent work, as the agent reports it to the broker.

An agent merges the problems of a port to one state, whose text changes only with the problems. So a
condition made of it is not written again with each report.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from streambroker_core.model import Kind
from streambroker_core.wire.encoding.canonical import JsonObject
from streambroker_core.wire.encoding.fields import Fields

MAX_PORTS = 10_000
"""Maximum ports of one kind in a report."""
MAX_MESSAGE = 600
"""Characters of a message."""
AS_EXPECTED = "AsExpected"
"""Reason of a port without a problem."""
_MINOR = ("RuleFailed", "SideInputWaits", "RowsLost", "Behind")
"""Problems of a port that goes on, the worst first. All others come before them."""
_REASON = re.compile(r"[A-Za-z][A-Za-z0-9]{0,63}")
_KEYS: Mapping[Kind, str] = {"Export": "exports", "Import": "imports"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthState:
    """Whether a port works; as a problem of a port, one reason why it does not.

    Attributes:
        reason: `AS_EXPECTED`, an error code, or another word for the problem.
        message: what is wrong and what to do, as sentences; empty if nothing is.
    """

    reason: str = AS_EXPECTED
    message: str = ""

    @property
    def is_healthy(self) -> bool:
        """Whether the port has no problem."""
        return self.reason == AS_EXPECTED


HEALTHY = HealthState()
PortId: TypeAlias = tuple[Kind, str]
"""Kind and name of a port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Health of all ports of an agent.

    Attributes:
        problems: states of the ports that have a problem.
        is_reported: False from an agent of a release that does not report it.
    """

    problems: Mapping[PortId, HealthState] = field(default_factory=dict)
    is_reported: bool = True

    def find(self, kind: Kind, port: str) -> HealthState | None:
        """Return the state of a port; None if the agent does not report it."""
        return self.problems.get((kind, port), HEALTHY) if self.is_reported else None


def merge_problems(problems: Iterable[HealthState]) -> HealthState:
    """Return the state of a port: the worst problem, and the names of the others."""
    ordered = sorted(
        problems, key=lambda one: _MINOR.index(one.reason) + 1 if one.reason in _MINOR else 0
    )
    if not ordered:
        return HEALTHY
    worst = ordered[0]
    others = dict.fromkeys(one.reason for one in ordered if one.reason != worst.reason)
    more = f" There is also {', '.join(others)}." if others else ""
    room = MAX_MESSAGE - len(more)
    text = worst.message if len(worst.message) <= room else f"{worst.message[: room - 1]}…"
    return HealthState(reason=worst.reason, message=f"{text}{more}")


def write_health(health: Health) -> JsonObject:
    """Return the health of ports as JSON-like data."""
    return {
        key: {
            port: {"reason": _valid_reason(state.reason), "message": state.message}
            for (kind, port), state in sorted(health.problems.items())
            if kind == wanted
        }
        for wanted, key in _KEYS.items()
    }


def _valid_reason(reason: str) -> str:
    """Return a reason that a broker takes: codes of other agents may be any text."""
    return reason if _REASON.fullmatch(reason) else "Refused"


def read_health(report: Fields) -> Health:
    """Read ``health`` of a report; without it, the agent is of a release that lacks it.

    Raises:
        ManifestError: a field is wrong; the error names it.
    """
    if not report.has("health"):
        return Health(is_reported=False)
    fields = report.child("health")
    problems: dict[PortId, HealthState] = {}
    for kind, key in _KEYS.items():
        ports = fields.child(key)
        names = ports.names()
        if len(names) > MAX_PORTS:
            raise fields.error_at(key, f"has {len(names)} ports, the limit is {MAX_PORTS}")
        for port in names:
            problems[kind, port] = _read_state(ports.child(port))
    return Health(problems=problems)


def _read_state(fields: Fields) -> HealthState:
    reason = fields.text(
        "reason",
        longest=64,
        check=lambda text: _REASON.fullmatch(text) is not None,
        expected="a word of letters and digits",
    )
    return HealthState(
        reason=reason, message=fields.text("message", "", longest=4 * MAX_MESSAGE)[:MAX_MESSAGE]
    )
