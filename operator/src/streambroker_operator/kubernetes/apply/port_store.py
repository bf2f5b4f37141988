"""Exports and Imports of a cluster, changed by server-side apply.

Rule 1: what is read comes from the board, which the feed fills; what is changed is
read from the API server first, and applied to that very object at that version.
Rule 2: what manager `streambroker-api` holds is stated whole with every change, so that
nothing of it is lost, and nothing else is touched.
Rule 3: nothing is taken from others unless the caller says so; what others hold is
never taken away.
Rule 4: what is as it should be is not written.
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
"""Bytes of the broker's secret, at least."""
ENTRY = "key"
"""Under which name it stands in the Kubernetes Secret."""


async def read_secret(
    objects: Objects, namespace: str, name: str, *, create: bool = False
) -> bytes:
    """Return the broker's secret from a Kubernetes Secret.

    Args:
        objects: single objects of the API server.
        namespace: of the Secret.
        name: of the Secret.
        create: whether to create it if it is missing. Of several replicas that do, one succeeds,
            and the others read what it made.

    Raises:
        StoreError: there is none, or it is too short.
        RequestError: 503, the API server cannot be asked now; 403, it may not be made.
    """
    document = await objects.read_secret(namespace, name)
    where = f"The Secret {namespace}/{name}"
    if document is None and create:
        made = base64.b64encode(secrets.token_bytes(MIN_SECRET)).decode()
        await objects.create_secret(namespace, name, {ENTRY: made})
        document = await objects.read_secret(namespace, name)
    if document is None:
        raise StoreError(
            f"{where} is not there. Make it, let the broker make it with --make-secret, or name"
            " another with --secret-name."
        )
    text = (document.get("data") or {}).get(ENTRY, "")
    try:
        found = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise StoreError(f"{where} has a `{ENTRY}` that is not base64.") from error
    if len(found) < MIN_SECRET:
        raise StoreError(
            f"{where} has {len(found)} bytes under `{ENTRY}`; at least {MIN_SECRET} random"
            " ones are needed."
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class LastObserved:
    """What the feed's last word on an object tells besides its spec.

    Attributes:
        agent: the event for the board if it tells of an agent.
        overwritten: what was steered, and somebody else has taken.
    """

    agent: AgentRegistered | None
    overwritten: Overwritten | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _PortChange:
    """One resource as it should be, and how it is to become so."""

    kind: Kind
    target: ObjectPath
    resource: Resource
    touched: Touched | None
    options: WriteOptions
    dry_run: bool


class KubernetesStore:
    """All that a broker in a cluster has to remember, kept in the cluster.

    Args:
        objects: single objects of the API server.
        board: filled by the feed; what is read is read from it.
        secret: what this broker and all its replicas sign with.
        clock: seconds since 1970.
        rate_limiter: how fast statuses may be written; shared with others who write some.

    Attributes:
        is_sole_writer: False: the versions of writes are no sequence of their own, the feed is.
        responses: answers given again to repeated requests, by this process alone.
        registrations: where agents are.
        steering: what is steered at run time, as the feed shows it.
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
        """Forget what only this process knows."""
        self._memory.close()

    # ---- reading ---------------------------------------------------------

    def get(self, kind: Kind, key: PortKey) -> StoredResource | None:
        """Return the resource that holds a port."""
        found: Resource | None = (
            self._board.export_at(key) if kind == "Export" else self._board.import_at(key)
        )
        return None if found is None else self._to_stored(found)

    def resources(self, kind: Kind) -> list[StoredResource]:
        """Return all resources of one kind, rivals included, in order of their ports."""
        found = self._board.exports() if kind == "Export" else self._board.imports()
        return [self._to_stored(resource) for resource in found]

    def unordered_resources(self, kind: Kind) -> tuple[StoredResource, ...]:
        """Return all resources of one kind, rivals included, in no order."""
        found: Iterator[Resource] = (
            self._board.iter_exports() if kind == "Export" else self._board.iter_imports()
        )
        return tuple(self._to_stored(resource) for resource in found)

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
        """Make changes one after the other; several are tried before the first is made.

        Raises:
            RequestError: as `put` and `delete`; `PartlyMade` where some were made before.
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
        """Create a resource, or change the fields that a change is about.

        Args:
            resource: as it should be.
            touched: what of its spec is meant; None for all of it.
            options: on which this is done.
            dry_run: whether it is only tried.

        Raises:
            RequestError: 409 `OwnedByOther`, somebody else holds a field; 412 by the terms;
                503, the API server cannot be asked, or the resource changes all the time.
            ManifestError: the outcome could not be read.
        """
        kind, key = kind_of(resource), resource.key
        known = self.get(kind, key)
        name = name_of(resource) if known is None else known.resource.name
        place = ObjectPath(kind=kind, namespace=key.namespace, name=name)
        change = _PortChange(
            kind=kind,
            target=place,
            resource=resource,
            touched=touched,
            options=options,
            dry_run=dry_run,
        )

        async def once(live: Document | None) -> StoredResource:
            return await (self._create(change) if live is None else self._change(change, live))

        return await self._objects.read_modify_write(place, once)

    async def release(
        self, kind: Kind, key: PortKey, *, options: WriteOptions = UNCONDITIONAL
    ) -> StoredResource:
        """Give up all that was changed by REST; what others declare stays or comes back.

        Raises:
            RequestError: 404, there is none; 409 `NotDeclared`, nobody else declares it;
                412 by the terms; 422, what is left would be no resource; 503 as `put`.
        """
        known = self.get(kind, key)
        if known is None:
            raise unknown_port(kind, key)
        place = ObjectPath(kind=kind, namespace=key.namespace, name=known.resource.name)

        async def once(live: Document | None) -> StoredResource:
            options.check(object_etag(live))
            if live is None:
                raise unknown_port(kind, key)
            if fields_at(own_fields(live, API), ("spec",)) is None:
                return _stored(live)
            if not _is_declared(live):
                raise not_declared(str(place))
            gone = emptying_removals(live, released_spec(live))
            if gone:
                live = await self._objects.merge(place, removal_patch(live, gone), manager=API)
            applied = await self._objects.apply(place, apply_body(live, {}), manager=API)
            return _stored(applied.document, changed=True)

        return await self._objects.read_modify_write(place, once)

    async def delete(
        self, kind: Kind, key: PortKey, *, options: WriteOptions = UNCONDITIONAL
    ) -> StoredResource:
        """Delete the resource of a port; return what it was, as it was known last.

        The deletion's own version is told by the feed alone.

        Raises:
            RequestError: 404, there is none; 412 by the terms; 403, the broker may not; 503 as
                `put`.
        """
        known = self.get(kind, key)
        if known is None:
            raise unknown_port(kind, key)
        place = ObjectPath(kind=kind, namespace=key.namespace, name=known.resource.name)
        await applying.delete(self._objects, place, known.resource.uid, options)
        return replace(known, changed=True)

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
        spec, terms = write_spec(change.resource), change.options
        if change.touched is not None:
            terms.check(None)
            raise unknown_port(change.kind, change.resource.key)
        applied = await applying.create(
            self._objects, change.target, spec, terms, dry_run=change.dry_run
        )
        return _stored(applied.document, changed=True, created=applied.created)

    async def _change(self, change: _PortChange, live: Document) -> StoredResource:
        place, key = change.target, change.resource.key
        _check_port(place, live, key)
        change.options.check(object_etag(live))
        now = _normalised_spec(change.kind, live, key)
        edit = compute_edit(now, write_spec(change.resource), change.touched)
        if not edit:
            return _stored(live)
        check_removals(place.kind, place.name, live, edit)
        outcome = apply_edit(live.get("spec", {}), edit)
        read_spec(change.kind, outcome, key=key, path="spec")
        return await self._apply_edit(change, live, edit, outcome)

    async def _apply_edit(
        self, change: _PortChange, live: Document, edit: Edit, outcome: Document
    ) -> StoredResource:
        gone = emptying_removals(live, outcome)
        rest = without_removals(edit, gone)
        stored = _stored(live)
        if rest:
            own = own_part(live).get("spec", {})
            body = apply_body(live, spec_to_apply(own, rest, outcome))
            document, warnings = await applying.change(
                self._objects, change.target, live, body, change.options, dry_run=change.dry_run
            )
            stored = _stored(document, changed=True, warnings=warnings)
        if gone and not change.dry_run:
            # Others hold none of it, and the version says that this is still so.
            body = removal_patch(live, gone)
            body["metadata"]["resourceVersion"] = str(stored.version)
            document = await self._objects.merge(change.target, body, manager=API)
            stored = replace(_stored(document, changed=True), warnings=stored.warnings)
        return stored

    # ---- agents ----------------------------------------------------------

    def observe(self, kind: Kind, document: Document) -> LastObserved:
        """Take in an object as the feed shows it, each time it does."""
        return LastObserved(
            agent=self.registrations.observe(kind, document),
            overwritten=self.steering.observe(document),
        )

    def on_deleted(self, uid: str) -> None:
        """Take in that an object is gone."""
        self.registrations.on_deleted(uid)
        self.steering.on_deleted(uid)

    def pes(self) -> list[StoredPe]:
        """Return all PEs whose agent is known."""
        return self.registrations.pes()

    def owner(self, pe: PeKey) -> str | None:
        """Return the service account that a PE's job is bound to; None while to none."""
        return self.registrations.owner(pe)

    async def register(
        self, pe: PeKey, registration: Registration, owner: str | None = None
    ) -> int:
        """Remember where a PE's agent is, as `Registrations.register` does."""
        return await self.registrations.register(pe, registration, owner)

    async def announce(self) -> None:
        """Tell resources that came after their agent of it, as `Registrations.announce` does."""
        await self.registrations.announce()

    async def withdraw(self, pe: PeKey) -> int:
        """Forget a PE that has no resource; return the version of that."""
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
        # What was only tried to be made has none.
        version=int(document["metadata"].get("resourceVersion", 0)),
        created=created,
        changed=changed,
        warnings=warnings,
    )


def _partly_made_error(done: list[StoredResource], error: RequestError) -> RequestError:
    made = [str(stored.resource.key) for stored in done if stored.changed]
    return RequestError(
        error.status,
        "PartlyMade",
        f"{len(made)} changes were made, then one was refused: {error} A cluster has no"
        " transactions: look at what is there, and send the rest again.",
        headers=error.headers,
        facts={"made": made, "refused": error.code},
    )


def _normalised_spec(kind: Kind, live: Document, key: PortKey) -> Document:
    """Return an object's spec in our own form; as it stands there if it cannot be read."""
    spec: Document = live.get("spec", {})
    try:
        return write_spec(read_spec(kind, spec, key=key))
    except StreambrokerError:
        return spec


def _check_port(target: ObjectPath, live: Document, key: PortKey) -> None:
    """Refuse to change an object that is another port's.

    Raises:
        RequestError: 409 `NameTaken`.
    """
    spec = live.get("spec", {})
    if (spec.get("job"), spec.get("pe", 0), spec.get("port")) == (key.job, key.pe, key.port):
        return
    raise RequestError(
        409,
        "NameTaken",
        f"The name {target.name!r} is that of another {target.kind}, of the port"
        f" {target.namespace}/{spec.get('job')}/{spec.get('pe', 0)}/{spec.get('port')}. Give {key}"
        " another one, or delete that one first.",
    )


def _is_declared(live: Document) -> bool:
    """Say whether somebody else holds what makes an object a port's."""
    return any(
        fields_at(holder.fields, ("spec", "port")) is not None for holder in other_managers(live)
    )
