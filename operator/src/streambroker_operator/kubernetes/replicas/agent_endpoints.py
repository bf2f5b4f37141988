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
class PublishedAgent:
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
class _LatestAgent:
    registration: Registration
    version: int
    at: datetime


def read_agent(pe: PeKey, document: Document) -> PublishedAgent:
    """Read what a resource's status says of its agent."""
    status = document.get("status") or {}
    account = status.get("serviceAccount")
    return PublishedAgent(
        pe=pe,
        registration=_parse_registration(status.get("endpoint")),
        account=account if isinstance(account, str) and account else None,
        at=written_at(document, AGENT, subresource="status") or _NEVER,
    )


def _parse_registration(endpoint: Any) -> Registration | None:
    if not isinstance(endpoint, Mapping):
        return None
    try:
        return registration.decode(endpoint)
    except ManifestError:
        return None


def agent_status(agent: Registration, account: str | None) -> dict[str, Any]:
    """Return the part of a status that is the agents'."""
    endpoint = {n: v for n, v in registration.encode(agent).items() if v is not None}
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
        self._published: dict[str, PublishedAgent] = {}
        self._versions: dict[str, int] = {}
        self._uids_by_pe: dict[PeKey, set[str]] = {}
        self._uids_by_job: dict[tuple[str, str], set[str]] = {}
        self._latest: dict[PeKey, _LatestAgent] = {}
        # What agents said here, for jobs whose resources do not say it yet.
        self._reported_accounts: dict[tuple[str, str], str] = {}
        self._accounts: dict[tuple[str, str], str] = {}
        self._floor = 0  # what comes after a withdrawal may not look older than it

    def observe(self, uid: str, published: PublishedAgent, version: int) -> AgentRegistered | None:
        """Take in a resource's status; return the event if it tells of an agent.

        Args:
            uid: of the resource.
            published: what its status says.
            version: of the resource.
        """
        before = self._published.get(uid)
        if before is not None and before.pe != published.pe:
            self.on_deleted(uid)
            before = None
        follows = before is not None and version > self._versions[uid]
        self._published[uid], self._versions[uid] = published, version
        self._uids_by_pe.setdefault(published.pe, set()).add(uid)
        self._uids_by_job.setdefault(_job(published.pe), set()).add(uid)
        self._update_account(_job(published.pe))
        if published.registration is None:
            return None
        if before is not None and before.registration == published.registration:
            return None
        known = self._latest.get(published.pe)
        if known is not None:
            # Clocks of API servers may differ; the order of one resource's versions is certain.
            told = before is not None and before.registration == known.registration
            later = (published.at, version) >= (known.at, known.version)
            if not later and not (told and follows):
                return None
        return self._record(published.pe, published.registration, version, published.at)

    def on_deleted(self, uid: str) -> None:
        """Take in that a resource is gone; its agent stays known."""
        shown = self._published.pop(uid, None)
        if shown is not None:
            del self._versions[uid]
            _discard(self._uids_by_pe, shown.pe, uid)
            _discard(self._uids_by_job, _job(shown.pe), uid)
            self._update_account(_job(shown.pe))

    def on_registered(
        self, pe: PeKey, agent: Registration, account: str | None, version: int
    ) -> AgentRegistered:
        """Take in what an agent said itself, after the status of its resources was written.

        Args:
            pe: whose agent it is.
            agent: what it said.
            account: the service account it belongs to, if that is known.
            version: of the last write of its resources; 0 without any.
        """
        if account is not None:
            self._reported_accounts.setdefault(_job(pe), account)
            self._update_account(_job(pe))
        said = (self._published[uid] for uid in self._uids_by_pe.get(pe, ()))
        written = [shown.at for shown in said if shown.registration == agent]
        return self._record(pe, agent, version, max(written, default=self._now()))

    def _record(
        self, pe: PeKey, agent: Registration, version: int, at: datetime
    ) -> AgentRegistered:
        known = self._latest.get(pe)
        version = max(version, self._floor, 0 if known is None else known.version)
        self._latest[pe] = _LatestAgent(registration=agent, version=version, at=at)
        return AgentRegistered(pe=pe, registration=agent, version=version)

    def is_behind(self, uid: str) -> bool:
        """Say whether a resource's status lacks its agent, or has one from before.

        One that says something else and was written no sooner is no mistake: another replica
        was told of an agent, and this one learns of it.
        """
        shown = self._published.get(uid)
        known = None if shown is None else self._latest.get(shown.pe)
        if shown is None or known is None:
            return False
        if shown.registration != known.registration:
            return shown.registration is None or shown.at < known.at
        return shown.account is None and self.account(shown.pe) is not None

    def is_published(self, uid: str, agent: Registration, account: str | None) -> bool:
        """Say whether a resource's status says this of its agent already."""
        shown = self._published.get(uid)
        return shown is not None and (shown.registration, shown.account) == (agent, account)

    def registration(self, pe: PeKey) -> tuple[Registration, int] | None:
        """Return what a PE's agent said last, and the version of that."""
        known = self._latest.get(pe)
        return None if known is None else (known.registration, known.version)

    def account(self, pe: PeKey) -> str | None:
        """Return the service account that a PE's job is bound to; None while to none."""
        return self.account_for(pe.namespace, pe.job)

    def account_for(self, namespace: str, job: str) -> str | None:
        """Return the service account that a job is bound to; None while to none."""
        return self._accounts.get((namespace, job))

    def _update_account(self, job: tuple[str, str]) -> None:
        """Find the account of a job anew: the first that a status says, else the first heard."""
        shown = (self._published[uid] for uid in self._uids_by_job.get(job, ()))
        said = [(one.at, one.account) for one in shown if one.account is not None]
        account = min(said)[1] if said else self._reported_accounts.get(job)
        if account is None:
            self._accounts.pop(job, None)
        else:
            self._accounts[job] = account

    def jobs_for(self, namespace: str, account: str) -> list[str]:
        """Return the jobs of a namespace that are bound to a service account."""
        return [
            job for (of, job), name in self._accounts.items() if (of, name) == (namespace, account)
        ]

    def withdraw(self, pe: PeKey) -> int:
        """Forget a PE; return the version of that.

        The job stays bound to its service account as long as any of its PEs is known.
        """
        known = self._latest.pop(pe, None)
        if not any(_job(other) == _job(pe) for other in self._remaining_pes()):
            self._reported_accounts.pop(_job(pe), None)
            self._update_account(_job(pe))
        self._floor = max(self._floor, 0 if known is None else known.version)
        return self._floor

    def _remaining_pes(self) -> set[PeKey]:
        return {*self._latest, *self._uids_by_pe}

    def pes(self) -> list[PeKey]:
        """Return the PEs whose agents are known, in order."""
        return sorted(self._latest)


def _job(pe: PeKey) -> tuple[str, str]:
    return pe.namespace, pe.job


def _discard(sets: dict[K, set[str]], key: K, uid: str) -> None:
    sets[key].discard(uid)
    if not sets[key]:
        del sets[key]
