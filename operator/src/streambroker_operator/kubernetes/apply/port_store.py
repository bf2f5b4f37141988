"""Exports and Imports of a cluster, changed by server-side apply.

- Reads come from the board, which the feed fills. A change first reads the object from the API
  server and applies to exactly that object and version.
- Each change states all fields of the manager `streambroker-api`, so that none is lost. Fields
  outside the change stay as they are.
- Fields of other managers are taken over only if the caller requests it, and never removed.
- Unchanged objects are not written.
"""

from __future__ import annotations

import base64
import binascii
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from streambroker_core.board import AgentRegistered, Board, BoardEvent
from streambroker_core.diagnose import Proposal
from streambroker_core.errors import StreambrokerError
from streambroker_core.model import (
    Kind,
    PeKey,
    PortKey,
    Resource,
    Rule,
    RuleKey,
    kind_of,
    name_of,
)
from streambroker_core.wire.broker.registration import Registration
from streambroker_core.wire.manifests.ports import read_manifest, read_spec, write_spec
from streambroker_operator.errors import RequestError, StoreError, not_declared, unknown_port
from streambroker_operator.kubernetes.apply import server_side as applying
from streambroker_operator.kubernetes.apply.conflicts import check_removals, object_etag
from streambroker_operator.kubernetes.apply.overrides import Overwritten, Steering
from streambroker_operator.kubernetes.apply.patch import (
    Edit,
    apply_body,
    apply_edit,
    compute_edit,
    emptying_removals,
    own_part,
    released_spec,
    removal_patch,
    spec_to_apply,
    without_removals,
)
from streambroker_operator.kubernetes.apply.registrations import Registrations
from streambroker_operator.kubernetes.apply.rule_store import RuleWrites
from streambroker_operator.kubernetes.client.managed_fields import (
    API,
    Document,
    fields_at,
    other_managers,
    own_fields,
)
from streambroker_operator.kubernetes.client.objects import ObjectPath, Objects
from streambroker_operator.kubernetes.client.rate_limiter import WriteRateLimiter
from streambroker_operator.storage.backend import StoredPe, StoredResource, StoredRule
from streambroker_operator.storage.responses import ResponseStore
from streambroker_operator.storage.write_options import UNCONDITIONAL, Touched, WriteOptions

MIN_SECRET = 32
"""Minimum bytes of the broker's secret."""
ENTRY = "key"
"""Entry of the Kubernetes Secret that contains it."""


async def read_secret(
    objects: Objects, namespace: str, name: str, *, create: bool = False
) -> bytes:
    """Return the broker's secret from a Kubernetes Secret.

    `create` creates a missing Secret. If several replicas do so, one succeeds and the others read
    its result.

    Raises:
        StoreError: the Secret is missing, or the value is invalid or too short.
        RequestError: 503, the API server is unavailable; 403, reading or creating is forbidden.
    """
    document = await objects.read_secret(namespace, name)
    where = f"The Secret {namespace}/{name}"
    if document is None and create:
        encoded = base64.b64encode(secrets.token_bytes(MIN_SECRET)).decode()
        await objects.create_secret(namespace, name, {ENTRY: encoded})
        document = await objects.read_secret(namespace, name)
    if document is None:
        raise StoreError(
            f"{where} does not exist. Create it, let the broker create it with --make-secret, or"
            " name another with --secret-name."
        )
    text = (document.get("data") or {}).get(ENTRY, "")
    try:
        secret = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise StoreError(f"{where} has a `{ENTRY}` that is not base64.") from error
    if len(secret) < MIN_SECRET:
        raise StoreError(
            f"{where} has {len(secret)} bytes under `{ENTRY}`; at least {MIN_SECRET} random"
            " ones are needed."
        )
    return secret


@dataclass(frozen=True, slots=True, kw_only=True)
class LastObserved:
    """Information about an object from its latest observation, besides its spec.

    Attributes:
        agent: event for the board if the object records an agent.
        overwritten: overrides that another manager took over.
    """

    agent: AgentRegistered | None
    overwritten: Overwritten | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _PortChange:
    """Desired state of one resource, and how to write it."""

    kind: Kind
    target: ObjectPath
    resource: Resource
    touched: Touched | None
    options: WriteOptions
    dry_run: bool


class KubernetesStore:
    """Store of a broker in a cluster: all persistent state is in the cluster.

    Args:
        secret: signing secret, shared by all replicas.
        rate_limiter: limits status writes; shared with the other status writers.

    Attributes:
        is_sole_writer: False: versions come from the feed, not from a sequence of own writes.
        responses: responses to repeated requests, of this process only.
        steering: overrides set at run time, from the feed.
    """

    is_sole_writer = False

    def __init__(
        self,
        objects: Objects,
        board: Board,
        *,
        secret: bytes,
        clock: Callable[[], float] = time.time,
        rate_limiter: WriteRateLimiter | None = None,
    ) -> None:
        self._objects = objects
        self._board = board
        self.secret = secret
        self._memory = sqlite3.connect(":memory:", isolation_level=None)
        self.responses = ResponseStore(self._memory, clock)
        self.registrations = Registrations(objects, board, rate_limiter)
        self._rules = RuleWrites(objects, board)
        self.steering = Steering()

    def close(self) -> None:
        """Drop the state that only this process has."""
        self._memory.close()

    # ---- reading ---------------------------------------------------------

    def get(self, kind: Kind, key: PortKey) -> StoredResource | None:
        """Return the resource of a port."""
        resource: Resource | None = (
            self._board.export_at(key) if kind == "Export" else self._board.import_at(key)
        )
        return None if resource is None else self._to_stored(resource)

    def resources(self, kind: Kind) -> list[StoredResource]:
        """Return all resources of one kind, including standbys, ordered by port."""
        resources = self._board.exports() if kind == "Export" else self._board.imports()
        return [self._to_stored(resource) for resource in resources]

    def unordered_resources(self, kind: Kind) -> tuple[StoredResource, ...]:
        """Return all resources of one kind, including standbys, unordered."""
        resources: Iterator[Resource] = (
            self._board.iter_exports() if kind == "Export" else self._board.iter_imports()
        )
        return tuple(self._to_stored(resource) for resource in resources)

    def _to_stored(self, resource: Resource) -> StoredResource:
        version = self._board.version_of(kind_of(resource), resource.uid)
        return StoredResource(resource=resource, version=version)

    # ---- changing --------------------------------------------------------

    def load(self) -> Iterable[BoardEvent]:
        """Return nothing: the feed fills the board."""
        return ()

    async def write(
        self,
        proposal: Proposal,
        *,
        touched: Touched | None = None,
        options: WriteOptions = UNCONDITIONAL,
    ) -> list[StoredResource]:
        """Apply changes in order; several are validated by a dry run first.

        Raises:
            RequestError: as for `put` and `delete`; `PartlyMade` if earlier changes were made.
        """
        puts, deletes = proposal.puts, proposal.deletes
        if len(puts) + len(deletes) > 1:
            for resource in puts:
                await self.put(resource, touched=touched, options=options, dry_run=True)
        done: list[StoredResource] = []
        try:
            for resource in puts:
                stored = await self.put(resource, touched=touched, options=options)
                done.append(stored)
            for kind, key, _ in deletes:
                stored = await self.delete(kind, key, options=options)
                done.append(stored)
        except RequestError as error:
            if not any(stored.changed for stored in done):
                raise
            raise _partly_made_error(done, error) from error
        for stored in done:
            if stored.changed:
                self.responses.record_version(stored.version)
        return done

    async def put(
        self,
        resource: Resource,
        *,
        touched: Touched | None = None,
        options: WriteOptions = UNCONDITIONAL,
        dry_run: bool = False,
    ) -> StoredResource:
        """Create a resource, or change the touched fields (None: all); a dry run validates only.

        Raises:
            RequestError: 409 `OwnedByOther`, another manager owns a field; 412, precondition
                failed; 503, the API server is unavailable, or the resource keeps changing.
            ManifestError: the resulting resource is invalid.
        """
        kind, key = kind_of(resource), resource.key
        stored = self.get(kind, key)
        name = name_of(resource) if stored is None else stored.resource.name
        target = ObjectPath(kind=kind, namespace=key.namespace, name=name)
        change = _PortChange(
            kind=kind,
            target=target,
            resource=resource,
            touched=touched,
            options=options,
            dry_run=dry_run,
        )

        async def once(live: Document | None) -> StoredResource:
            return await (self._create(change) if live is None else self._change(change, live))

        return await self._objects.read_modify_write(target, once)

    async def release(
        self, kind: Kind, key: PortKey, *, options: WriteOptions = UNCONDITIONAL
    ) -> StoredResource:
        """Release all fields changed by REST; fields that others declare stay or return.

        Raises:
            RequestError: 404, no such port; 409 `NotDeclared`, no other manager declares it; 412,
                precondition failed; 422, the rest is no valid resource; 503 as for `put`.
        """
        stored = self.get(kind, key)
        if stored is None:
            raise unknown_port(kind, key)
        target = ObjectPath(kind=kind, namespace=key.namespace, name=stored.resource.name)

        async def once(live: Document | None) -> StoredResource:
            options.check(object_etag(live))
            if live is None:
                raise unknown_port(kind, key)
            if fields_at(own_fields(live, API), ("spec",)) is None:
                return _stored(live)
            if not _is_declared(live):
                raise not_declared(str(target))
            removals = emptying_removals(live, released_spec(live))
            if removals:
                live = await self._objects.merge(target, removal_patch(live, removals), manager=API)
            applied = await self._objects.apply(target, apply_body(live, {}), manager=API)
            return _stored(applied.document, changed=True)

        return await self._objects.read_modify_write(target, once)

    async def delete(
        self, kind: Kind, key: PortKey, *, options: WriteOptions = UNCONDITIONAL
    ) -> StoredResource:
        """Delete the resource of a port; return its last known state.

        Only the feed reports the version of the deletion.

        Raises:
            RequestError: 404, no such port; 412, precondition failed; 403, forbidden; 503 as for
                `put`.
        """
        stored = self.get(kind, key)
        if stored is None:
            raise unknown_port(kind, key)
        target = ObjectPath(kind=kind, namespace=key.namespace, name=stored.resource.name)
        await applying.delete(self._objects, target, stored.resource.uid, options)
        return replace(stored, changed=True)

    async def put_rule(
        self, rule: Rule, *, touched: Touched | None = None, options: WriteOptions = UNCONDITIONAL
    ) -> StoredRule:
        """Create or change a rule, as `RuleWrites.put` does."""
        return await self._rules.put(rule, touched, options)

    async def delete_rule(
        self, key: RuleKey, *, options: WriteOptions = UNCONDITIONAL
    ) -> StoredRule | None:
        """Delete a rule, as `RuleWrites.delete` does."""
        return await self._rules.delete(key, options)

    async def _create(self, change: _PortChange) -> StoredResource:
        spec, options = write_spec(change.resource), change.options
        if change.touched is not None:
            options.check(None)
            raise unknown_port(change.kind, change.resource.key)
        applied = await applying.create(
            self._objects, change.target, spec, options, dry_run=change.dry_run
        )
        return _stored(applied.document, changed=True, created=applied.created)

    async def _change(self, change: _PortChange, live: Document) -> StoredResource:
        target, key = change.target, change.resource.key
        _check_port(target, live, key)
        change.options.check(object_etag(live))
        current = _normalised_spec(change.kind, live, key)
        edit = compute_edit(current, write_spec(change.resource), change.touched)
        if not edit:
            return _stored(live)
        check_removals(target.kind, target.name, live, edit)
        outcome = apply_edit(live.get("spec", {}), edit)
        read_spec(change.kind, outcome, key=key, path="spec")
        return await self._apply_edit(change, live, edit, outcome)

    async def _apply_edit(
        self, change: _PortChange, live: Document, edit: Edit, outcome: Document
    ) -> StoredResource:
        removals = emptying_removals(live, outcome)
        remaining = without_removals(edit, removals)
        stored = _stored(live)
        if remaining:
            own_spec = own_part(live).get("spec", {})
            body = apply_body(live, spec_to_apply(own_spec, remaining, outcome))
            document, warnings = await applying.change(
                self._objects, change.target, live, body, change.options, dry_run=change.dry_run
            )
            stored = _stored(document, changed=True, warnings=warnings)
        if removals and not change.dry_run:
            # No other manager owns these fields; the resourceVersion ensures that this still holds.
            body = removal_patch(live, removals)
            body["metadata"]["resourceVersion"] = str(stored.version)
            document = await self._objects.merge(change.target, body, manager=API)
            stored = replace(_stored(document, changed=True), warnings=stored.warnings)
        return stored

    # ---- agents ----------------------------------------------------------

    def observe(self, kind: Kind, document: Document) -> LastObserved:
        """Process an observation of an object by the feed."""
        return LastObserved(
            agent=self.registrations.observe(kind, document),
            overwritten=self.steering.observe(document),
        )

    def on_deleted(self, uid: str) -> None:
        """Process the deletion of an object."""
        self.registrations.on_deleted(uid)
        self.steering.on_deleted(uid)

    def pes(self) -> list[StoredPe]:
        """Return all PEs with a known agent."""
        return self.registrations.pes()

    def owner(self, pe: PeKey) -> str | None:
        """Return the service account that a PE's job is bound to, or None."""
        return self.registrations.owner(pe)

    async def register(
        self, pe: PeKey, registration: Registration, owner: str | None = None
    ) -> int:
        """Store the address of a PE's agent, as `Registrations.register` does."""
        return await self.registrations.register(pe, registration, owner)

    async def announce(self) -> None:
        """Record agents in resources created after them, as `Registrations.announce` does."""
        await self.registrations.announce()

    async def withdraw(self, pe: PeKey) -> int:
        """Remove a PE that has no resource; return the version of that change."""
        return self.registrations.withdraw(pe)


def _stored(
    document: Document,
    *,
    changed: bool = False,
    created: bool = False,
    warnings: tuple[str, ...] = (),
) -> StoredResource:
    return StoredResource(
        resource=read_manifest(document),
        # A dry run of a creation has no version.
        version=int(document["metadata"].get("resourceVersion", 0)),
        created=created,
        changed=changed,
        warnings=warnings,
    )


def _partly_made_error(done: list[StoredResource], error: RequestError) -> RequestError:
    changed = [str(stored.resource.key) for stored in done if stored.changed]
    return RequestError(
        error.status,
        "PartlyMade",
        f"{len(changed)} changes were made, then one was refused: {error} A cluster has no"
        " transactions: check which changes exist, and send the rest again.",
        headers=error.headers,
        facts={"made": changed, "refused": error.code},
    )


def _normalised_spec(kind: Kind, live: Document, key: PortKey) -> Document:
    """Return an object's spec in normal form; unchanged if it cannot be parsed."""
    spec: Document = live.get("spec", {})
    try:
        return write_spec(read_spec(kind, spec, key=key))
    except StreambrokerError:
        return spec


def _check_port(target: ObjectPath, live: Document, key: PortKey) -> None:
    """Raise 409 `NameTaken` unless the object belongs to the port."""
    spec = live.get("spec", {})
    if (spec.get("job"), spec.get("pe", 0), spec.get("port")) == (key.job, key.pe, key.port):
        return
    raise RequestError(
        409,
        "NameTaken",
        f"The name {target.name!r} belongs to another {target.kind}, of the port"
        f" {target.namespace}/{spec.get('job')}/{spec.get('pe', 0)}/{spec.get('port')}. Give"
        f" {key} another one, or delete that one first.",
    )


def _is_declared(live: Document) -> bool:
    """Return whether another manager owns the port field of an object."""
    return any(
        fields_at(manager.fields, ("spec", "port")) is not None for manager in other_managers(live)
    )
