"""Storage interface of the broker: implemented by SQLite and by the API server of a cluster."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from streambroker_core.board import events
from streambroker_core.diagnose import Proposal
from streambroker_core.model import Export, Kind, PeKey, PortKey, Resource, Rule, RuleKey, kind_of
from streambroker_core.wire.broker.registration import Registration
from streambroker_operator.storage.responses import ResponseStore
from streambroker_operator.storage.write_options import UNCONDITIONAL, Touched, WriteOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResource:
    """A stored resource.

    Attributes:
        version: of its last change.
        created: whether this write created it.
        changed: whether this write changed it.
        warnings: warnings for the caller, one sentence each.
    """

    resource: Resource
    version: int
    created: bool = False
    changed: bool = False
    warnings: tuple[str, ...] = ()

    def with_board_warning(self, status: events.Status | None) -> StoredResource:
        """Return a copy with a warning if the board does not accept the resource."""
        if status is None or status.accepted:
            return self
        warning = f"It is stored, but not accepted ({status.reason}): {status.message.rstrip('.')}."
        return replace(self, warnings=(*self.warnings, warning))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRule:
    """A stored pattern rule; attributes as in `StoredResource`."""

    rule: Rule
    version: int
    created: bool = False
    changed: bool = False
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPe:
    """A PE that was registered or had a resource; no registration if it never had an agent."""

    pe: PeKey
    version: int
    registration: Registration | None


def port_sort_key(stored: StoredResource) -> PortKey:
    """Return the sort key of resources of one kind: the port."""
    return stored.resource.key


def applied_event(stored: StoredResource) -> events.ExportApplied | events.ImportApplied:
    """Return the board event for a resource that was put."""
    resource = stored.resource
    if isinstance(resource, Export):
        return events.ExportApplied(export=resource, version=stored.version)
    return events.ImportApplied(import_=resource, version=stored.version)


def removed_event(stored: StoredResource) -> events.ExportRemoved | events.ImportRemoved:
    """Return the board event for a resource that was deleted."""
    removed = events.ExportRemoved if kind_of(stored.resource) == "Export" else events.ImportRemoved
    return removed(uid=stored.resource.uid, version=stored.version)


class StorageBackend(Protocol):
    """Storage of Exports, Imports, rules and registrations of agents.

    Reads return at once. Writes may wait for other processes; writes to SQLite never yield to other
    tasks.

    Attributes:
        is_sole_writer: whether versions are one sequence of this process's own writes. If not,
            others write too, and a feed reports all changes.
        secret: signing key material.
        responses: stored responses for repeated requests.
    """

    @property
    def is_sole_writer(self) -> bool:
        """Whether versions are one sequence of this process's own writes."""
        ...

    @property
    def secret(self) -> bytes:
        """Signing key material."""
        ...

    @property
    def responses(self) -> ResponseStore:
        """Stored responses for repeated requests."""
        ...

    def load(self) -> Iterable[events.BoardEvent]:
        """Return the events that fill a board; none if a feed does that."""
        ...

    def get(self, kind: Kind, key: PortKey) -> StoredResource | None:
        """Return the resource of a port."""
        ...

    def unordered_resources(self, kind: Kind) -> tuple[StoredResource, ...]:
        """Return all resources of one kind, in no order."""
        ...

    def owner(self, pe: PeKey) -> str | None:
        """Return the name that a PE's agent is bound to; None if it is unbound."""
        ...

    async def write(
        self,
        proposal: Proposal,
        *,
        touched: Touched | None = None,
        options: WriteOptions = UNCONDITIONAL,
    ) -> list[StoredResource]:
        """Make changes; return the resource of each put, then each removed resource.

        Args:
            proposal: puts of resources without uid, and removals of existing resources.
            touched: parts of a put to change; None for all.
            options: preconditions and field ownership of the write.

        Raises:
            RequestError: the write failed; nothing is changed unless the error states it.
        """
        ...

    async def release(
        self, kind: Kind, key: PortKey, *, options: WriteOptions = UNCONDITIONAL
    ) -> StoredResource:
        """Release the fields changed here, so that what others declare applies again.

        Raises:
            RequestError: 404, there is none; 409, only the broker declares it.
        """
        ...

    async def put_rule(
        self, rule: Rule, *, touched: Touched | None = None, options: WriteOptions = UNCONDITIONAL
    ) -> StoredRule:
        """Create or replace a rule, passed without uid; `touched` None changes its whole spec.

        Raises:
            RequestError: the write failed; nothing is changed.
        """
        ...

    async def delete_rule(
        self, key: RuleKey, *, options: WriteOptions = UNCONDITIONAL
    ) -> StoredRule | None:
        """Delete a rule; return the deleted rule, None if there is none."""
        ...

    async def register(
        self, pe: PeKey, registration: Registration, owner: str | None = None
    ) -> int:
        """Store a PE's agent and the name it is bound to; return the version."""
        ...

    async def withdraw(self, pe: PeKey) -> int:
        """Remove a PE; return the version of the removal."""
        ...
