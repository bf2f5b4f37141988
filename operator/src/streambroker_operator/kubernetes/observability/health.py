"""Results of the probes ``/livez`` and ``/readyz``.

- Failures that a restart does not fix (API server, feed, Lease) do not affect liveness.
- A broker that has read all resources once stays ready, also if a watched namespace can no longer
  be listed. Its answers remain good enough, and otherwise agents would have no broker while the
  API server is unavailable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from streambroker_core.model import AnyKind
from streambroker_core.wire.manifests.ports import OBJECTS
from streambroker_operator.kubernetes.watch.lister import Refusal

STUCK_S = 30.0
"""Delay of the event loop, in seconds, after which the process counts as stuck."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerState:
    """State of a broker.

    Attributes:
        beat_age_s: seconds since the last heartbeat of the event loop, which beats every second.
        synced: both kinds have been read once.
        stale: a feed is currently lost.
        refused: why watched namespaces are not followed, by kind and namespace.
        lineage: why lineage cannot be sent; empty if it can or is not to be sent.
    """

    beat_age_s: float
    synced: bool
    closing: bool = False
    stale: bool = False
    leads: bool = False
    reason: str = ""
    refused: Mapping[tuple[AnyKind, str], Refusal] = field(default_factory=dict)
    lineage: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Result of a probe: 200 if all checks pass, else 503, with a line for each check."""

    is_ok: bool
    text: str

    @property
    def status(self) -> int:
        """HTTP status."""
        return 200 if self.is_ok else 503


def check_live(state: BrokerState) -> Probe:
    """Check whether the process works; if not, it should be restarted."""
    return _probe([("loop", state.beat_age_s <= STUCK_S, f"{state.beat_age_s:.0f} s late")], [])


def check_ready(state: BrokerState) -> Probe:
    """Check whether requests should be sent to this broker."""
    lines = [f"[+]lease {'held' if state.leads else 'not held'}"]
    lines.append(f"[+]feed {'lost ' + state.reason if state.stale else 'well'}".rstrip())
    lines += [
        f"[+]namespace {namespace} of {OBJECTS[kind]} not followed: {why}"
        for (kind, namespace), why in sorted(state.refused.items())
    ]
    if state.lineage:
        lines.append(f"[+]lineage not sent: {' '.join(state.lineage.split())}")
    return _probe(
        [
            ("synced", state.synced, "resources have not been read yet"),
            ("running", not state.closing, "the broker is stopping"),
        ],
        lines,
    )


def _probe(checks: list[tuple[str, bool, str]], extra_lines: list[str]) -> Probe:
    lines = [
        f"[+]{name} ok" if is_ok else f"[-]{name} failed: {why}" for name, is_ok, why in checks
    ]
    is_ok = all(is_ok for _, is_ok, _ in checks)
    return Probe(
        is_ok=is_ok, text="\n".join([*lines, *extra_lines, "ok" if is_ok else "failed", ""])
    )
