"""What the broker's state stands on: a SQLite file, or the API server of a cluster."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from streambroker_core.board import (
    BoardEvent,
    ExportApplied,
    ExportRemoved,
    ImportApplied,
    ImportRemoved,
    Status,
)
from streambroker_core.diagnose import Proposal
from streambroker_core.model import Export, Kind, PeKey, PortKey, Resource, Rule, RuleKey, kind_of
from streambroker_core.wire.broker.registration import Registration
from streambroker_operator.storage.responses import ResponseStore
from streambroker_operator.storage.write_options import UNCONDITIONAL, Touched, WriteOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResource:
    """A resource as it is kept.

    Attributes:
        version: of its last change.
        created: whether this write made it.
        changed: whether this write changed it at all.
        warnings: what the caller should know of it, each a sentence.
    """

    resource: Resource
    version: int
    created: bool = False
    changed: bool = False
    warnings: tuple[str, ...] = ()

    def with_board_warning(self, status: Status | None) -> StoredResource:
        """Return the same with a warning if the board does not accept the resource."""
        if status is None or status.accepted:
            return self
        found = f"It is stored, but not accepted ({status.reason}): {status.message.rstrip('.')}."
        return replace(self, warnings=(*self.warnings, found))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRule:
    """A rule of patterns as it is kept; attributes as of `StoredResource`."""

    rule: Rule
    version: int
    created: bool = False
    changed: bool = False
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPe:
    """A PE that was registered or had a resource; without an agent if it never registered."""

    pe: PeKey
    version: int
    registration: Registration | None


def port_sort_key(stored: StoredResource) -> PortKey:
    """Return what orders resources of one kind: their ports."""
    return stored.resource.key


def applied_event(stored: StoredResource) -> ExportApplied | ImportApplied:
    """Return what to tell a board of a resource that was put."""
    resource = stored.resource
    if isinstance(resource, Export):
        return ExportApplied(export=resource, version=stored.version)
    return ImportApplied(import_=resource, version=stored.version)


def removed_event(stored: StoredResource) -> ExportRemoved | ImportRemoved:
    """Return what to tell a board of a resource that was deleted."""
    removed = ExportRemoved if kind_of(stored.resource) == "Export" else ImportRemoved
    return removed(uid=stored.resource.uid, version=stored.version)


class StorageBackend(Protocol):
    """Where Exports, Imports and agents' registrations are kept.

    What is read is answered at once. What writes may wait for others to do it; the file,
    which is this process's own, never lets anything come between.

    Attributes:
        is_sole_writer: whether its versions are one sequence of this process's own writes. Else
            others write, too, and a feed tells of all of it.
        secret: what is signed with.
        responses: the answers that are given again to the same request.
    """

    @property
    def is_sole_writer(self) -> bool:
        """As above."""
        ...

    @property
    def secret(self) -> bytes:
        """As above."""
        ...

    @property
    def responses(self) -> ResponseStore:
        """As above."""
        ...

    def load(self) -> Iterable[BoardEvent]:
        """Return the events that fill a board; none where a feed does that."""
        ...

    def get(self, kind: Kind, key: PortKey) -> StoredResource | None:
        """Return the resource of a port."""
        ...

    def resources(self, kind: Kind) -> list[StoredResource]:
        """Return all resources of one kind, in order of their ports."""
        ...

    def unordered_resources(self, kind: Kind) -> tuple[StoredResource, ...]:
        """Return all resources of one kind, in no order."""
        ...

    def owner(self, pe: PeKey) -> str | None:
        """Return the name that a PE's agent is bound to; None if to none."""
        ...

    async def write(
        self,
        proposal: Proposal,
        *,
        touched: Touched | None = None,
        options: WriteOptions = UNCONDITIONAL,
    ) -> list[StoredResource]:
        """Make changes; return what each put became, then what each removal was.

        Args:
            proposal: puts of resources without uid, and removals of what is there.
            touched: what of a put is meant; None for all of it.
            options: on which this is done.

        Raises:
            RequestError: it cannot be done; nothing is changed unless it says so.
        """
        ...

    async def release(
        self, kind: Kind, key: PortKey, *, options: WriteOptions = UNCONDITIONAL
    ) -> StoredResource:
        """Give up what was changed here, so that what others declare holds again.

        Raises:
            RequestError: 404, there is none; 409, nobody else declares it.
        """
        ...

    async def put_rule(
        self, rule: Rule, *, touched: Touched | None = None, options: WriteOptions = UNCONDITIONAL
    ) -> StoredRule:
        """Create or replace a rule.

        Args:
            rule: without uid.
            touched: what of its spec is meant; None for all of it.
            options: on which this is done.

        Raises:
            RequestError: it cannot be done; nothing is changed.
        """
        ...

    async def delete_rule(
        self, key: RuleKey, *, options: WriteOptions = UNCONDITIONAL
    ) -> StoredRule | None:
        """Delete a rule; return what it was, None if there is none.

        Raises:
            RequestError: it cannot be done; nothing is changed.
        """
        ...

    async def register(
        self, pe: PeKey, registration: Registration, owner: str | None = None
    ) -> int:
        """Remember where a PE's agent is, and to whom it is bound; return the version."""
        ...

    async def withdraw(self, pe: PeKey) -> int:
        """Forget a PE; return the version of that."""
        ...
