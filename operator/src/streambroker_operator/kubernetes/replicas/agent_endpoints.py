"""Addresses of agents, from the statuses of their resources.

- Every resource of a PE carries the endpoint of the PE's agent, so each replica knows it, also
  after a restart.
- The resources of a PE are not written at one moment. So a change counts only if the same resource
  had another value before.
- For one resource the newer version counts; between resources the later write counts.
- An account in a status is valid for all replicas and precedes one reported to this process.
- An agent of a PE without resources is known only to this process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from streambroker_core.board import AgentRegistered
from streambroker_core.errors import ManifestError
from streambroker_core.model import PeKey
from streambroker_core.wire.broker import registration
from streambroker_core.wire.broker.registration import Registration
from streambroker_core.wire.encoding.canonical import JsonObject
from streambroker_operator.kubernetes.client.documents import Document
from streambroker_operator.kubernetes.client.http_api import object_at
from streambroker_operator.kubernetes.client.managed_fields import AGENT, written_at

K = TypeVar("K")

_NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedAgent:
    """Agent information in the status of one resource.

    Attributes:
        registration: None if missing or invalid.
        account: service account that the job is bound to, or None.
        at: time of the write, to the second.
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
    """Read the agent information of a resource's status."""
    status = object_at(document, "status")
    account = status.get("serviceAccount")
    return PublishedAgent(
        pe=pe,
        registration=_parse_registration(status.get("endpoint")),
        account=account if isinstance(account, str) and account else None,
        at=written_at(document, AGENT, subresource="status") or _NEVER,
    )


def _parse_registration(endpoint: object) -> Registration | None:
    if not isinstance(endpoint, Mapping):
        return None
    try:
        return registration.decode(endpoint)
    except ManifestError:
        return None


def agent_status(agent: Registration, account: str | None) -> JsonObject:
    """Return the fields of a status that describe the agent."""
    endpoint = {n: v for n, v in registration.encode(agent).items() if v is not None}
    service_account = {} if account is None else {"serviceAccount": account}
    return {"endpoint": endpoint, **service_account}


def _now() -> datetime:
    return datetime.now(UTC)


class Endpoints:
    """State of all agents, from observed statuses and from their registrations."""

    def __init__(self, now: Callable[[], datetime] = _now) -> None:
        self._now = now
        self._published: dict[str, PublishedAgent] = {}
        self._versions: dict[str, int] = {}
        self._uids_by_pe: dict[PeKey, set[str]] = {}
        self._uids_by_job: dict[tuple[str, str], set[str]] = {}
        self._latest: dict[PeKey, _LatestAgent] = {}
        # Accounts registered at this process, for jobs whose resources do not have one yet.
        self._reported_accounts: dict[tuple[str, str], str] = {}
        self._accounts: dict[tuple[str, str], str] = {}
        self._floor = 0  # minimum version of registrations after a withdrawal

    def observe(self, uid: str, published: PublishedAgent, version: int) -> AgentRegistered | None:
        """Apply a resource's status; return the event if it changes the agent."""
        before = self._published.get(uid)
        if before is not None and before.pe != published.pe:
            self.on_deleted(uid)
            before = None
        is_newer_version = before is not None and version > self._versions[uid]
        self._published[uid], self._versions[uid] = published, version
        self._uids_by_pe.setdefault(published.pe, set()).add(uid)
        self._uids_by_job.setdefault(_job(published.pe), set()).add(uid)
        self._update_account(_job(published.pe))
        if published.registration is None:
            return None
        if before is not None and before.registration == published.registration:
            return None
        latest = self._latest.get(published.pe)
        if latest is not None:
            # Clocks of API servers may differ; the version order of one resource is certain.
            had_latest = before is not None and before.registration == latest.registration
            written_later = (published.at, version) >= (latest.at, latest.version)
            if not written_later and not (had_latest and is_newer_version):
                return None
        return self._record(published.pe, published.registration, version, published.at)

    def on_deleted(self, uid: str) -> None:
        """Drop a deleted resource; its agent stays known."""
        published = self._published.pop(uid, None)
        if published is not None:
            del self._versions[uid]
            _discard(self._uids_by_pe, published.pe, uid)
            _discard(self._uids_by_job, _job(published.pe), uid)
            self._update_account(_job(published.pe))

    def on_registered(
        self, pe: PeKey, agent: Registration, account: str | None, version: int
    ) -> AgentRegistered:
        """Record a registration, after it was written to the statuses of the PE's resources.

        `version` is the version of the last written resource; 0 without any.
        """
        if account is not None:
            self._reported_accounts.setdefault(_job(pe), account)
            self._update_account(_job(pe))
        statuses = (self._published[uid] for uid in self._uids_by_pe.get(pe, ()))
        write_times = [status.at for status in statuses if status.registration == agent]
        return self._record(pe, agent, version, max(write_times, default=self._now()))

    def _record(
        self, pe: PeKey, agent: Registration, version: int, at: datetime
    ) -> AgentRegistered:
        latest = self._latest.get(pe)
        version = max(version, self._floor, 0 if latest is None else latest.version)
        self._latest[pe] = _LatestAgent(registration=agent, version=version, at=at)
        return AgentRegistered(pe=pe, registration=agent, version=version)

    def is_behind(self, uid: str) -> bool:
        """Return whether a resource's status lacks its agent or has an older one.

        A different agent written no earlier is not behind: it registered at another replica.
        """
        published = self._published.get(uid)
        latest = None if published is None else self._latest.get(published.pe)
        if published is None or latest is None:
            return False
        if published.registration != latest.registration:
            return published.registration is None or published.at < latest.at
        return published.account is None and self.account(published.pe) is not None

    def is_published(self, uid: str, agent: Registration, account: str | None) -> bool:
        """Return whether a resource's status already has this agent and account."""
        published = self._published.get(uid)
        return published is not None and (published.registration, published.account) == (
            agent,
            account,
        )

    def registration(self, pe: PeKey) -> tuple[Registration, int] | None:
        """Return the latest registration of a PE and its version."""
        latest = self._latest.get(pe)
        return None if latest is None else (latest.registration, latest.version)

    def account(self, pe: PeKey) -> str | None:
        """Return the service account that a PE's job is bound to, or None."""
        return self.account_for(pe.namespace, pe.job)

    def account_for(self, namespace: str, job: str) -> str | None:
        """Return the service account that a job is bound to, or None."""
        return self._accounts.get((namespace, job))

    def _update_account(self, job: tuple[str, str]) -> None:
        """Set the account of a job: the earliest in a status, else the first registered here."""
        statuses = (self._published[uid] for uid in self._uids_by_job.get(job, ()))
        accounts = [
            (status.at, status.account) for status in statuses if status.account is not None
        ]
        account = min(accounts)[1] if accounts else self._reported_accounts.get(job)
        if account is None:
            self._accounts.pop(job, None)
        else:
            self._accounts[job] = account

    def jobs_for(self, namespace: str, account: str) -> list[str]:
        """Return the jobs of a namespace that are bound to a service account."""
        return [
            job
            for (job_namespace, job), name in self._accounts.items()
            if (job_namespace, name) == (namespace, account)
        ]

    def withdraw(self, pe: PeKey) -> int:
        """Remove a PE; return the version of that change.

        The job stays bound to its service account while any of its PEs is known.
        """
        latest = self._latest.pop(pe, None)
        if not any(_job(other) == _job(pe) for other in (*self._latest, *self._uids_by_pe)):
            self._reported_accounts.pop(_job(pe), None)
            self._update_account(_job(pe))
        self._floor = max(self._floor, 0 if latest is None else latest.version)
        return self._floor

    def pes(self) -> list[PeKey]:
        """Return the PEs with known agents, sorted."""
        return sorted(self._latest)


def _job(pe: PeKey) -> tuple[str, str]:
    return pe.namespace, pe.job


def _discard(sets: dict[K, set[str]], key: K, uid: str) -> None:
    sets[key].discard(uid)
    if not sets[key]:
        del sets[key]
