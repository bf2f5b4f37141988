"""Registrations of agents, stored in the status of the resources of their PEs.

The manager `streambroker-agent` owns ``status.endpoint`` and ``status.serviceAccount``, and writes
them only if they differ. The first registration of any PE of a job binds the service account.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from streambroker_core.board import AgentRegistered, BoardReader
from streambroker_core.errors import ManifestError
from streambroker_core.model import PeKey, Resource, kind_of
from streambroker_core.wire.broker.registration import Registration
from streambroker_operator.errors import RequestError
from streambroker_operator.kubernetes.apply.patch import object_identity
from streambroker_operator.kubernetes.client.documents import Document
from streambroker_operator.kubernetes.client.http_api import object_at
from streambroker_operator.kubernetes.client.managed_fields import AGENT
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
    """Retry state of a PE whose resources lack its agent: failures, and rounds to skip."""

    failures: int = 0
    rounds_to_skip: int = 0

    def is_due(self) -> bool:
        self.rounds_to_skip -= 1
        return self.rounds_to_skip < 0

    def on_failed(self) -> None:
        self.rounds_to_skip = min(_MAX_ROUNDS, 2**self.failures - 1)
        self.failures += 1


class Registrations:
    """Addresses and accounts of agents, shared by all replicas through the resources.

    Args:
        rate_limiter: limits status writes; shared with the other status writers.

    Attributes:
        endpoints: agents and accounts, as observed and registered.
    """

    def __init__(
        self, objects: Objects, board: BoardReader, rate_limiter: WriteRateLimiter | None = None
    ) -> None:
        self._objects = objects
        self._rate_limiter = WriteRateLimiter() if rate_limiter is None else rate_limiter
        self._board = board
        self.endpoints = Endpoints()
        self._unannounced: dict[PeKey, _RetryState] = {}

    def pes(self) -> list[StoredPe]:
        """Return all PEs with a known agent."""
        registrations = ((pe, self.endpoints.registration(pe)) for pe in self.endpoints.pes())
        return [
            StoredPe(pe=pe, version=registration[1], registration=registration[0])
            for pe, registration in registrations
            if registration is not None
        ]

    def observe(self, document: Document) -> AgentRegistered | None:
        """Process an observation of an object; return the event if it changes an agent."""
        pe = _parse_pe(document)
        if pe is None:
            return None
        metadata = document["metadata"]
        published = read_agent(pe, document)
        uid = metadata["uid"]
        event = self.endpoints.observe(uid, published, int(metadata["resourceVersion"]))
        if self.endpoints.is_behind(uid):
            self._unannounced.setdefault(pe, _RetryState())
        return event

    async def register(
        self, pe: PeKey, registration: Registration, owner: str | None = None
    ) -> int:
        """Write the registration of an agent to its resources' statuses; return the version.

        Unchanged statuses are not written. A PE without resources is known only to this process.
        `owner` is the service account that the job is bound to from now on.

        Raises:
            RequestError: 403, the job is bound to another account; 503, the API server is
                unavailable, or a resource keeps changing.
        """
        account = self.endpoints.account(pe)
        if account is not None and owner is not None and account != owner:
            raise _bound_error(pe, account)
        version = await self._announce(pe, registration, owner or account)
        event = self.endpoints.on_registered(pe, registration, owner or account, version)
        return event.version

    async def announce(self) -> None:
        """Write registrations to the statuses of resources that were created after them.

        Call this periodically. After failures a PE skips more and more rounds, without delaying
        the others.
        """
        for pe, retry in list(self._unannounced.items()):
            registration = self.endpoints.registration(pe)
            if registration is None or not retry.is_due():
                continue
            try:
                # Low priority: no agent waits for this write.
                await self._rate_limiter.wait_for_token()
                await self._announce(
                    pe, registration[0], self.endpoints.account(pe), only_behind=True
                )
            except RequestError as error:
                retry.on_failed()
                level = logging.WARNING if retry.failures == 1 else logging.DEBUG
                _log.log(
                    level,
                    "the address of the agent is not written to the resources of %s: %s",
                    pe,
                    error,
                )

    async def _announce(
        self,
        pe: PeKey,
        registration: Registration,
        account: str | None,
        *,
        only_behind: bool = False,
    ) -> int:
        """Write the statuses of a PE's resources; apply the changes only if all writes succeed."""
        written: list[Document] = []
        for resource in self._board.resources_of(pe):
            is_due = not only_behind or self.endpoints.is_behind(resource.uid)
            if is_due and not self.endpoints.is_published(resource.uid, registration, account):
                document = await self._write_status(
                    resource, registration, account, not only_behind
                )
                if document is not None:
                    written.append(document)
        for document in written:
            self.observe(document)
        self._unannounced.pop(pe, None)
        return max(
            (int(document["metadata"]["resourceVersion"]) for document in written), default=0
        )

    async def _write_status(
        self, resource: Resource, registration: Registration, account: str | None, ahead: bool
    ) -> Document | None:
        kind, pe = kind_of(resource), resource.key.owner
        target = ObjectPath(kind=kind, namespace=pe.namespace, name=resource.name)

        async def once(live: Document | None) -> Document | None:
            # A status write addresses the object by name only: check that it is the same object.
            if live is None or live["metadata"]["uid"] != resource.uid:
                return None
            bound_account = read_agent(pe, live).account
            if bound_account is not None and account is not None and bound_account != account:
                raise _bound_error(pe, bound_account)
            status = agent_status(registration, account or bound_account)
            published = object_at(live, "status")
            if all(published.get(name) == value for name, value in status.items()):
                return live
            body: Document = {**object_identity(live), "status": status}
            async with self._rate_limiter.write(has_priority=ahead):
                applied = await self._objects.apply(
                    target, body, manager=AGENT, force=True, status=True
                )
            return applied.document

        return await self._objects.read_modify_write(target, once)

    async def withdraw(self, pe: PeKey) -> int:
        """Remove a PE that has no resource; return the version of that change."""
        self._unannounced.pop(pe, None)
        return self.endpoints.withdraw(pe)


def _parse_pe(document: Document) -> PeKey | None:
    """Return the PE of an object; None if it is invalid."""
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
