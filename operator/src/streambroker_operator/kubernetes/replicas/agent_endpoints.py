"""Where agents are, as the status of their resources says it.

Every resource of a PE carries the endpoint of the PE's agent, so that each replica
knows it, also after a restart. Not all of them are written at one moment: a change
of one is news only if that very resource said something else before. What one resource
says now is younger than what it said before; of two resources the one that was written
last counts.

What a status says of an account holds for all replicas, and so before what this process
heard itself. Of a PE that has no resource, this process alone knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, TypeVar

from streambroker_core.board import AgentRegistered
from streambroker_core.errors import ManifestError
from streambroker_core.model import PeKey
from streambroker_core.wire.broker import registration
from streambroker_core.wire.broker.registration import Registration
from streambroker_operator.kubernetes.client.managed_fields import AGENT, Document, written_at

K = TypeVar("K")

_NEVER = datetime.min.replace(tzinfo=timezone.utc)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownAgent:
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


def read_agent(pe: PeKey, document: Document) -> ShownAgent:
    """Read what a resource's status says of its agent."""
    status = document.get("status") or {}
    account = status.get("serviceAccount")
    return ShownAgent(
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


def _now() -> datetime:
    return datetime.now(timezone.utc)


class Endpoints:
    """What is known of agents, from all statuses that were seen and from agents themselves.

    Args:
        now: the time, UTC.
    """

    def __init__(self, now: Callable[[], datetime] = _now) -> None:
        self._now = now
        self._shown: dict[str, ShownAgent] = {}
        self._versions: dict[str, int] = {}
        self._of_pe: dict[PeKey, set[str]] = {}
        self._of_job: dict[tuple[str, str], set[str]] = {}
        self._known: dict[PeKey, _Known] = {}
        # What agents said here, for jobs whose resources do not say it yet.
        self._heard: dict[tuple[str, str], str] = {}
        self._accounts: dict[tuple[str, str], str] = {}
        self._floor = 0  # what comes after a withdrawal may not look older than it

    def saw(self, uid: str, shown: ShownAgent, version: int) -> AgentRegistered | None:
        """Take in a resource's status; return the event if it tells of an agent.

        Args:
            uid: of the resource.
            shown: what its status says.
            version: of the resource.
        """
        before = self._shown.get(uid)
        if before is not None and before.pe != shown.pe:
            self.gone(uid)
            before = None
        follows = before is not None and version > self._versions[uid]
        self._shown[uid], self._versions[uid] = shown, version
        self._of_pe.setdefault(shown.pe, set()).add(uid)
        self._of_job.setdefault(_job(shown.pe), set()).add(uid)
        self._bind(_job(shown.pe))
        if shown.registration is None:
            return None
        if before is not None and before.registration == shown.registration:
            return None
        known = self._known.get(shown.pe)
        if known is not None:
            # Clocks of API servers may differ; the order of one resource's versions is certain.
            told = before is not None and before.registration == known.registration
            later = (shown.at, version) >= (known.at, known.version)
            if not later and not (told and follows):
                return None
        return self._know(shown.pe, shown.registration, version, shown.at)

    def gone(self, uid: str) -> None:
        """Take in that a resource is gone; its agent stays known."""
        shown = self._shown.pop(uid, None)
        if shown is not None:
            del self._versions[uid]
            _take(self._of_pe, shown.pe, uid)
            _take(self._of_job, _job(shown.pe), uid)
            self._bind(_job(shown.pe))

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
            self._heard.setdefault(_job(pe), account)
            self._bind(_job(pe))
        said = (self._shown[uid] for uid in self._of_pe.get(pe, ()))
        written = [shown.at for shown in said if shown.registration == found]
        return self._know(pe, found, version, max(written, default=self._now()))

    def _know(self, pe: PeKey, found: Registration, version: int, at: datetime) -> AgentRegistered:
        known = self._known.get(pe)
        version = max(version, self._floor, 0 if known is None else known.version)
        self._known[pe] = _Known(registration=found, version=version, at=at)
        return AgentRegistered(pe=pe, registration=found, version=version)

    def is_behind(self, uid: str) -> bool:
        """Say whether a resource's status lacks its agent, or has one from before.

        One that says something else and was written no sooner is no mistake: another replica
        was told of an agent, and this one learns of it.
        """
        shown = self._shown.get(uid)
        known = None if shown is None else self._known.get(shown.pe)
        if shown is None or known is None:
            return False
        if shown.registration != known.registration:
            return shown.registration is None or shown.at < known.at
        return shown.account is None and self.account(shown.pe) is not None

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

    def _bind(self, job: tuple[str, str]) -> None:
        """Find the account of a job anew: the first that a status says, else the first heard."""
        shown = (self._shown[uid] for uid in self._of_job.get(job, ()))
        said = [(one.at, one.account) for one in shown if one.account is not None]
        account = min(said)[1] if said else self._heard.get(job)
        if account is None:
            self._accounts.pop(job, None)
        else:
            self._accounts[job] = account

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
        if not any(_job(other) == _job(pe) for other in self._left()):
            self._heard.pop(_job(pe), None)
            self._bind(_job(pe))
        self._floor = max(self._floor, 0 if known is None else known.version)
        return self._floor

    def _left(self) -> set[PeKey]:
        return {*self._known, *self._of_pe}

    def pes(self) -> list[PeKey]:
        """Return the PEs whose agents are known, in order."""
        return sorted(self._known)


def _job(pe: PeKey) -> tuple[str, str]:
    return pe.namespace, pe.job


def _take(sets: dict[K, set[str]], key: K, uid: str) -> None:
    sets[key].discard(uid)
    if not sets[key]:
        del sets[key]
