"""Where agents are, as the status of their resources says it.

Every resource of a PE carries the endpoint of the PE's agent, so that each replica
knows it, also after a restart. Not all of them are written at one moment: a change
of one is news only if that very resource said something else before.

Of a PE that has no resource, this process alone knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from streambroker_core.board import AgentRegistered
from streambroker_core.errors import ManifestError
from streambroker_core.model import PeKey
from streambroker_core.wire import registration
from streambroker_core.wire.registration import Registration
from streambroker_operator.kubernetes.ownership import AGENT, Document, written_at

_NEVER = datetime.min.replace(tzinfo=timezone.utc)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What one resource's status says of its agent.

    Attributes:
        pe: whose agent it is.
        registration: None where it says nothing, or nothing that can be read.
        account: the service account that the job is bound to; None while to none.
        at: when it was written, to the second.
    """

    pe: PeKey
    registration: Registration | None
    account: str | None
    at: datetime = _NEVER


@dataclass(slots=True, kw_only=True)
class _Known:
    registration: Registration
    version: int
    at: datetime


def read_shown(pe: PeKey, document: Document) -> Shown:
    """Read what a resource's status says of its agent."""
    status = document.get("status") or {}
    account = status.get("serviceAccount")
    return Shown(
        pe=pe,
        registration=_registration(status.get("endpoint")),
        account=account if isinstance(account, str) and account else None,
        at=written_at(document, AGENT, subresource="status") or _NEVER,
    )


def _registration(endpoint: Any) -> Registration | None:
    if not isinstance(endpoint, Mapping):
        return None
    try:
        return registration.decode(endpoint)
    except ManifestError:
        return None


def status_of(found: Registration, account: str | None) -> dict[str, Any]:
    """Return the part of a status that is the agents'."""
    endpoint = {n: v for n, v in registration.encode(found).items() if v is not None}
    bound = {} if account is None else {"serviceAccount": account}
    return {"endpoint": endpoint, **bound}


class Endpoints:
    """What is known of agents, from all statuses that were seen and from agents themselves."""

    def __init__(self) -> None:
        self._shown: dict[str, Shown] = {}
        self._of_pe: dict[PeKey, set[str]] = {}
        self._known: dict[PeKey, _Known] = {}
        self._accounts: dict[tuple[str, str], str] = {}
        self._floor = 0  # what comes after a withdrawal may not look older than it

    def saw(self, uid: str, shown: Shown, version: int) -> AgentRegistered | None:
        """Take in a resource's status; return the event if it tells of an agent.

        Args:
            uid: of the resource.
            shown: what its status says.
            version: of the resource.
        """
        before = self._shown.get(uid)
        if before is not None and before.pe != shown.pe:
            self.gone(uid)
        self._shown[uid] = shown
        self._of_pe.setdefault(shown.pe, set()).add(uid)
        if shown.account is not None:
            self._accounts.setdefault((shown.pe.namespace, shown.pe.job), shown.account)
        news = before is None or before.registration != shown.registration
        if not news or shown.registration is None:
            return None
        known = self._known.get(shown.pe)
        if known is not None and (known.at, known.version) > (shown.at, version):
            return None
        return self._know(shown.pe, shown.registration, version, shown.at)

    def gone(self, uid: str) -> None:
        """Take in that a resource is gone; its agent stays known."""
        shown = self._shown.pop(uid, None)
        if shown is not None:
            uids = self._of_pe[shown.pe]
            uids.discard(uid)
            if not uids:
                del self._of_pe[shown.pe]

    def registered(
        self, pe: PeKey, found: Registration, account: str | None, version: int
    ) -> AgentRegistered:
        """Take in what an agent said itself, after the status of its resources was written.

        Args:
            pe: whose agent it is.
            found: what it said.
            account: the service account it belongs to, if that is known.
            version: of the last write of its resources; 0 without any.
        """
        if account is not None:
            self._accounts.setdefault((pe.namespace, pe.job), account)
        written = (self._shown[uid].at for uid in self._of_pe.get(pe, ()))
        return self._know(pe, found, version, max(written, default=_NEVER))

    def _know(self, pe: PeKey, found: Registration, version: int, at: datetime) -> AgentRegistered:
        known = self._known.get(pe)
        version = max(version, self._floor, 0 if known is None else known.version)
        self._known[pe] = _Known(registration=found, version=version, at=at)
        return AgentRegistered(pe=pe, registration=found, version=version)

    def says(self, uid: str, found: Registration, account: str | None) -> bool:
        """Say whether a resource's status says this of its agent already."""
        shown = self._shown.get(uid)
        return shown is not None and (shown.registration, shown.account) == (found, account)

    def registration(self, pe: PeKey) -> tuple[Registration, int] | None:
        """Return what a PE's agent said last, and the version of that."""
        known = self._known.get(pe)
        return None if known is None else (known.registration, known.version)

    def account(self, pe: PeKey) -> str | None:
        """Return the service account that a PE's job is bound to; None while to none."""
        return self.account_of(pe.namespace, pe.job)

    def account_of(self, namespace: str, job: str) -> str | None:
        """Return the service account that a job is bound to; None while to none."""
        return self._accounts.get((namespace, job))

    def jobs_of(self, namespace: str, account: str) -> list[str]:
        """Return the jobs of a namespace that are bound to a service account."""
        return [
            job for (of, job), name in self._accounts.items() if (of, name) == (namespace, account)
        ]

    def withdraw(self, pe: PeKey) -> int:
        """Forget a PE; return the version of that.

        The job stays bound to its service account as long as any of its PEs is known.
        """
        known = self._known.pop(pe, None)
        job = (pe.namespace, pe.job)
        if not any((other.namespace, other.job) == job for other in self._left()):
            self._accounts.pop(job, None)
        self._floor = max(self._floor, 0 if known is None else known.version)
        return self._floor

    def _left(self) -> set[PeKey]:
        return {*self._known, *self._of_pe}

    def pes(self) -> list[PeKey]:
        """Return the PEs whose agents are known, in order."""
        return sorted(self._known)
