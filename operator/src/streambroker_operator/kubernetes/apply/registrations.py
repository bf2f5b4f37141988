"""Agents' registrations, written into the status of their PEs' resources.

Manager `streambroker-agent` holds ``status.endpoint`` and ``status.serviceAccount``, and
writes them only where they say something else. The service account is fixed by the
first registration of any of a job's PEs.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from streambroker_core.board import AgentRegistered, Board
from streambroker_core.errors import ManifestError
from streambroker_core.model import Kind, PeKey, Resource, kind_of
from streambroker_core.wire.broker.registration import Registration
from streambroker_operator.errors import RequestError
from streambroker_operator.kubernetes.apply.patch import object_identity
from streambroker_operator.kubernetes.client.managed_fields import AGENT, Document
from streambroker_operator.kubernetes.client.objects import ObjectPath, Objects
from streambroker_operator.kubernetes.client.rate_limiter import WriteRateLimiter
from streambroker_operator.kubernetes.replicas.agent_endpoints import (
    Endpoints,
    agent_status,
    read_agent,
)
from streambroker_operator.storage.backend import StoredPe

_log = logging.getLogger("streambroker.kubernetes")

_MAX_ROUNDS = 60


@dataclass(slots=True)
class _RetryState:
    """A PE whose resources are behind: how often that could not be mended, and what to sit out."""

    failures: int = 0
    rounds_to_skip: int = 0

    def is_due(self) -> bool:
        self.rounds_to_skip -= 1
        return self.rounds_to_skip < 0

    def on_failed(self) -> None:
        self.rounds_to_skip = min(_MAX_ROUNDS, 2**self.failures - 1)
        self.failures += 1


class Registrations:
    """Who runs where, for all replicas as far as there are resources to say it.

    Args:
        objects: single objects of the API server.
        board: filled by the feed.
        rate_limiter: how fast statuses may be written; shared with others who write some.
    """

    def __init__(
        self, objects: Objects, board: Board, rate_limiter: WriteRateLimiter | None = None
    ) -> None:
        self._objects = objects
        self._rate_limiter = WriteRateLimiter() if rate_limiter is None else rate_limiter
        self._board = board
        self._endpoints = Endpoints()
        self._unannounced: dict[PeKey, _RetryState] = {}

    def pes(self) -> list[StoredPe]:
        """Return all PEs whose agent is known."""
        found = ((pe, self._endpoints.registration(pe)) for pe in self._endpoints.pes())
        return [
            StoredPe(pe=pe, version=known[1], registration=known[0])
            for pe, known in found
            if known is not None
        ]

    def observe(self, kind: Kind, document: Document) -> AgentRegistered | None:
        """Take in an object as the feed shows it; return the event if it tells of an agent."""
        pe = _parse_pe(document)
        if pe is None:
            return None
        metadata = document["metadata"]
        shown = read_agent(pe, document)
        uid = metadata["uid"]
        event = self._endpoints.observe(uid, shown, int(metadata["resourceVersion"]))
        if self._endpoints.is_behind(uid):
            self._unannounced.setdefault(pe, _RetryState())
        return event

    def on_deleted(self, uid: str) -> None:
        """Take in that an object is gone."""
        self._endpoints.on_deleted(uid)

    def owner(self, pe: PeKey) -> str | None:
        """Return the service account that a PE's job is bound to; None while to none."""
        return self._endpoints.account(pe)

    def account_for(self, namespace: str, job: str) -> str | None:
        """Return the service account that a job is bound to; None while to none."""
        return self._endpoints.account_for(namespace, job)

    def jobs_for(self, namespace: str, account: str) -> list[str]:
        """Return the jobs of a namespace that are bound to a service account."""
        return self._endpoints.jobs_for(namespace, account)

    async def register(
        self, pe: PeKey, registration: Registration, owner: str | None = None
    ) -> int:
        """Write where a PE's agent is into the status of its resources; return the version.

        Only where the status says something else. A PE without resources is known to this
        process alone.

        Args:
            pe: the PE.
            registration: what its agent says.
            owner: the service account that its job is bound to from now on.

        Raises:
            RequestError: 403, the job is bound to another one; 503 as `put`.
        """
        account = self._endpoints.account(pe)
        if account is not None and owner is not None and account != owner:
            raise _bound_error(pe, account)
        version = await self._announce(pe, registration, owner or account)
        event = self._endpoints.on_registered(pe, registration, owner or account, version)
        return event.version

    async def announce(self) -> None:
        """Write where agents are into the status of resources that came after them.

        Called again and again: what cannot be written of one PE sits out more and more rounds,
        and holds no other one up.
        """
        for pe, waiting in list(self._unannounced.items()):
            known = self._endpoints.registration(pe)
            if known is None or not waiting.is_due():
                continue
            try:
                # Nobody waits for this.
                await self._rate_limiter.wait_for_token()
                await self._announce(pe, known[0], self._endpoints.account(pe), only_behind=True)
            except RequestError as error:
                waiting.on_failed()
                level = logging.WARNING if waiting.failures == 1 else logging.DEBUG
                _log.log(level, "the resources of %s do not say where its agent is: %s", pe, error)

    async def _announce(
        self,
        pe: PeKey,
        registration: Registration,
        account: str | None,
        *,
        only_behind: bool = False,
    ) -> int:
        """Tell all of a PE's resources; what is known is another only if all were told."""
        told: list[tuple[Kind, Document]] = []
        for resource in self._board.resources_of(pe):
            behind = not only_behind or self._endpoints.is_behind(resource.uid)
            if behind and not self._endpoints.is_published(resource.uid, registration, account):
                document = await self._write_status(
                    resource, registration, account, not only_behind
                )
                if document is not None:
                    told.append((kind_of(resource), document))
        for kind, document in told:
            self.observe(kind, document)
        self._unannounced.pop(pe, None)
        return max((int(one["metadata"]["resourceVersion"]) for _, one in told), default=0)

    async def _write_status(
        self, resource: Resource, registration: Registration, account: str | None, ahead: bool
    ) -> Document | None:
        kind, pe = kind_of(resource), resource.key.owner
        place = ObjectPath(kind=kind, namespace=pe.namespace, name=resource.name)

        async def once(live: Document | None) -> Document | None:
            # A status lands on whatever has the name: it is for us to see that it is the same.
            if live is None or live["metadata"]["uid"] != resource.uid:
                return None
            bound = read_agent(pe, live).account
            if bound is not None and account is not None and bound != account:
                raise _bound_error(pe, bound)
            status = agent_status(registration, account or bound)
            if all(live.get("status", {}).get(name) == value for name, value in status.items()):
                return live
            body = {**object_identity(live), "status": status}
            async with self._rate_limiter.write(has_priority=ahead):
                applied = await self._objects.apply(
                    place, body, manager=AGENT, force=True, status=True
                )
            return applied.document

        return await self._objects.read_modify_write(place, once)

    def withdraw(self, pe: PeKey) -> int:
        """Forget a PE that has no resource; return the version of that."""
        self._unannounced.pop(pe, None)
        return self._endpoints.withdraw(pe)


def _parse_pe(document: Document) -> PeKey | None:
    """Return the PE of an object; None where that cannot be read."""
    spec = document.get("spec") or {}
    namespace = document["metadata"]["namespace"]
    try:
        return PeKey.parse(f"{namespace}/{spec.get('job')}/{spec.get('pe', 0)}")
    except ManifestError:
        return None


def _bound_error(pe: PeKey, account: str) -> RequestError:
    return RequestError(
        403,
        "NotYours",
        f"The job {pe.namespace}/{pe.job} is bound to the service account {account!r} by its first"
        " registration, and this is another one. Run it under that account, or delete the"
        " resources of the job and wait for ten minutes.",
    )
