"""Resources of a cluster: reads come from the board, which the feed fills; writes go by apply."""

from __future__ import annotations

import base64
import binascii
import secrets
import sqlite3
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace

from streambroker_core.board import BoardEvent, BoardReader
from streambroker_core.diagnose import Proposal
from streambroker_core.errors import ManifestError, StreambrokerError
from streambroker_core.model import (
    RULE,
    Kind,
    PortKey,
    Resource,
    Rule,
    RuleKey,
    kind_of,
    name_of,
    rule_name_of,
)
from streambroker_core.wire.encoding.canonical import JsonObject
from streambroker_core.wire.manifests.ports import read_manifest, read_spec, write_spec
from streambroker_core.wire.manifests.rules import (
    read_rule_manifest,
    read_rule_spec,
    write_rule_spec,
)
from streambroker_operator.errors import (
    RequestError,
    StoreError,
    not_declared,
    unknown_port,
    unknown_rule,
)
from streambroker_operator.kubernetes.apply.conflicts import object_etag
from streambroker_operator.kubernetes.apply.overrides import Steering
from streambroker_operator.kubernetes.apply.patch import (
    apply_body,
    emptying_removals,
    released_spec,
    removal_patch,
)
from streambroker_operator.kubernetes.apply.registrations import Registrations
from streambroker_operator.kubernetes.apply.spec_writer import SpecWrite, SpecWriter
from streambroker_operator.kubernetes.client.documents import Document
from streambroker_operator.kubernetes.client.managed_fields import (
    API,
    fields_at,
    other_managers,
    own_fields,
)
from streambroker_operator.kubernetes.client.objects import ObjectPath, Objects, WrittenObject
from streambroker_operator.kubernetes.client.rate_limiter import WriteRateLimiter
from streambroker_operator.storage.backend import StoredResource, StoredRule
from streambroker_operator.storage.responses import ResponseStore
from streambroker_operator.storage.sqlite_rules import name_taken
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
        board: BoardReader,
        *,
        secret: bytes,
        rate_limiter: WriteRateLimiter | None = None,
    ) -> None:
        self._objects = objects
        self._board = board
        self.secret = secret
        self._memory = sqlite3.connect(":memory:", isolation_level=None)
        self.responses = ResponseStore(self._memory, time.time)
        self.registrations = Registrations(objects, board, rate_limiter)
        self._writer = SpecWriter(objects)
        self.steering = Steering()
        self.pes = self.registrations.pes
        self.owner = self.registrations.endpoints.account
        self.register = self.registrations.register
        self.withdraw = self.registrations.withdraw

    def close(self) -> None:
        """Drop the state that only this process has."""
        self._memory.close()

    # ---- reading ---------------------------------------------------------

    def get(self, kind: Kind, key: PortKey) -> StoredResource | None:
        """Return the resource of a port."""
        resource = self._board.holder(kind, key)
        return None if resource is None else self._to_stored(resource)

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
        return _stored(
            await self._writer.put(
                SpecWrite(
                    target=target,
                    spec=write_spec(resource),
                    touched=touched,
                    options=options,
                    dry_run=dry_run,
                    check=lambda spec: _check_port(target, spec, key),
                    normalise=lambda spec: _normalised_spec(kind, spec, key),
                    validate=lambda spec: read_spec(kind, spec, key=key, path="spec"),
                    missing=unknown_port(kind, key),
                )
            )
        )

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
                return _stored(WrittenObject(document=live, changed=False))
            if not _is_declared(live):
                raise not_declared(str(target))
            removals = emptying_removals(live, released_spec(live))
            if removals:
                patch = removal_patch(live, removals, live["metadata"]["resourceVersion"])
                live = await self._objects.merge(target, patch, manager=API)
            return _stored(await self._objects.apply(target, apply_body(live, {}), manager=API))

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
        await self._writer.delete(target, stored.resource.uid, options)
        return replace(stored, changed=True)

    async def put_rule(
        self, rule: Rule, *, touched: Touched | None = None, options: WriteOptions = UNCONDITIONAL
    ) -> StoredRule:
        """Create a rule, or change the touched fields.

        Raises:
            RequestError: 404, no such rule to change partially; 409 `OwnedByOther` or
                `NameTaken`; 412, precondition failed; 503 as for `put`.
        """
        key, current = rule.key, self._board.rules.holder_at(rule.key)
        name = rule_name_of(rule if rule.name or current is None else current)
        target = ObjectPath(kind=RULE, namespace=key.namespace, name=name)
        written = await self._writer.put(
            SpecWrite(
                target=target,
                spec=write_rule_spec(rule),
                touched=touched,
                options=options,
                check=lambda spec: _check_rule(target, spec, key),
                normalise=lambda spec: {"id": key.id, **spec},
                missing=unknown_rule(key),
            )
        )
        return StoredRule(
            rule=read_rule_manifest(written.document, loose=True),
            version=int(written.document["metadata"]["resourceVersion"]),
            created=written.created,
            changed=written.changed,
            warnings=written.warnings,
        )

    async def delete_rule(
        self, key: RuleKey, *, options: WriteOptions = UNCONDITIONAL
    ) -> StoredRule | None:
        """Delete a rule; return its last known state, or None if there is none.

        Only the feed reports the version of the deletion.

        Raises:
            RequestError: 412, precondition failed; 403, forbidden; 503 as for `put`.
        """
        rules = self._board.rules
        rule = rules.holder_at(key)
        if rule is None:
            return None
        target = ObjectPath(kind=RULE, namespace=key.namespace, name=rule_name_of(rule))
        version = rules.cache.version_of(rule.uid)
        await self._writer.delete(target, rule.uid, options)
        return StoredRule(rule=rule, version=version, changed=True)

    # ---- agents ----------------------------------------------------------

    def on_deleted(self, uid: str) -> None:
        """Process the deletion of an object."""
        self.registrations.endpoints.on_deleted(uid)
        self.steering.on_deleted(uid)


def _stored(written: WrittenObject) -> StoredResource:
    return StoredResource(
        resource=read_manifest(written.document),
        # A dry run of a creation has no version.
        version=int(written.document["metadata"].get("resourceVersion", 0)),
        created=written.created,
        changed=written.changed,
        warnings=written.warnings,
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


def _normalised_spec(kind: Kind, spec: JsonObject, key: PortKey) -> JsonObject:
    """Return a spec in normal form; unchanged if it cannot be parsed."""
    try:
        return write_spec(read_spec(kind, spec, key=key))
    except StreambrokerError:
        return spec


def _check_port(target: ObjectPath, spec: JsonObject, key: PortKey) -> None:
    """Raise 409 `NameTaken` unless the object with this spec belongs to the port."""
    if (spec.get("job"), spec.get("pe", 0), spec.get("port")) == (key.job, key.pe, key.port):
        return
    raise RequestError(
        409,
        "NameTaken",
        f"The name {target.name!r} belongs to another {target.kind}, of the port"
        f" {target.namespace}/{spec.get('job')}/{spec.get('pe', 0)}/{spec.get('port')}. Give"
        f" {key} another one, or delete that one first.",
    )


def _check_rule(target: ObjectPath, spec: JsonObject, key: RuleKey) -> None:
    """Raise 409 `NameTaken` unless the object with this spec belongs to the rule."""
    try:
        existing = read_rule_spec(spec, namespace=key.namespace, name=target.name).key
    except ManifestError:
        existing = RuleKey(key.namespace, str(spec.get("job")), str(spec.get("id")))
    if existing != key:
        raise name_taken(target.name, key, existing)


def _is_declared(live: Document) -> bool:
    """Return whether another manager owns the port field of an object."""
    return any(
        fields_at(manager.fields, ("spec", "port")) is not None for manager in other_managers(live)
    )
