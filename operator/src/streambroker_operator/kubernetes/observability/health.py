"""What the probes are answered: ``/livez`` and ``/readyz``.

Rule 1: what a restart does not mend does not make the broker unalive: the API server, the feed,
the Lease.
Rule 2: a broker that has read everything once stays ready, since its answers stay right enough:
without it, agents would have nobody to ask while the API server is away. That is also true of a
single watched namespace that can no longer be listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from streambroker_core.model import AnyKind
from streambroker_core.wire.manifests.ports import OBJECTS
from streambroker_operator.kubernetes.watch.refused_namespaces import Refusal

STUCK_S = 30.0
"""How late the event loop may be before the process counts as stuck, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerState:
    """How a broker is.

    Attributes:
        beat_age_s: seconds since the event loop last did what it does every second.
        synced: both kinds have been read once.
        closing: it was told to stop.
        stale: a feed is lost at the moment.
        leads: it holds the Lease.
        reason: a word for why the feed is lost, or empty.
        refused: why watched namespaces are not followed, by kind and namespace.
    """

    beat_age_s: float
    synced: bool
    closing: bool = False
    stale: bool = False
    leads: bool = False
    reason: str = ""
    refused: Mapping[tuple[AnyKind, str], Refusal] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """The answer to a probe: 200 if all is well, else 503, with a line for each check."""

    is_ok: bool
    text: str

    @property
    def status(self) -> int:
        """Status of the HTTP answer."""
        return 200 if self.is_ok else 503


def check_live(state: BrokerState) -> Probe:
    """Say whether the process works; if not, it should be ended and started again."""
    return _probe([("loop", state.beat_age_s <= STUCK_S, f"{state.beat_age_s:.0f} s late")], [])


def check_ready(state: BrokerState) -> Probe:
    """Say whether requests should be sent here."""
    lines = [f"[+]lease {'held' if state.leads else 'not held'}"]
    lines.append(f"[+]feed {'lost ' + state.reason if state.stale else 'well'}".rstrip())
    lines += [
        f"[+]namespace {namespace} of {OBJECTS[kind]} not followed: {why}"
        for (kind, namespace), why in sorted(state.refused.items())
    ]
    return _probe(
        [
            ("synced", state.synced, "resources have not been read yet"),
            ("running", not state.closing, "it is stopping"),
        ],
        lines,
    )


def _probe(checks: list[tuple[str, bool, str]], extra_lines: list[str]) -> Probe:
    lines = [f"[+]{name} ok" if well else f"[-]{name} failed: {why}" for name, well, why in checks]
    well = all(well for _, well, _ in checks)
    return Probe(is_ok=well, text="\n".join([*lines, *extra_lines, "ok" if well else "failed", ""]))
