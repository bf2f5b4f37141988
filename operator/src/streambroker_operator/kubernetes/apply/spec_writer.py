"""Writes specs by server-side apply as manager `streambroker-api`; reports field conflicts.

- A change first reads the object and applies to exactly that object and version.
- Each change states all fields of the manager, so that none is lost. Fields outside the change
  stay as they are.
- Fields of other managers are taken over only if the caller requests it, and never removed.
- Unchanged objects are not written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from streambroker_core.wire.encoding.canonical import JsonObject
from streambroker_core.wire.manifests.ports import API_VERSION
from streambroker_operator.errors import RequestError
from streambroker_operator.kubernetes.apply import patch
from streambroker_operator.kubernetes.apply.conflicts import (
    check_removals,
    object_etag,
    owned_by_other_error,
    parse_conflicts,
    takeover_warnings,
)
from streambroker_operator.kubernetes.client.documents import Document, ObjectMetadata
from streambroker_operator.kubernetes.client.managed_fields import API
from streambroker_operator.kubernetes.client.objects import (
    ConflictError,
    ObjectPath,
    Objects,
    StaleError,
    WrittenObject,
)
from streambroker_operator.storage.write_options import Touched, WriteOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecWrite:
    """Desired spec of one object, and how to write it.

    Attributes:
        touched: fields to change; None for all.
        dry_run: whether to validate only.
        check: raises unless the object with this spec is the one to write.
        normalise: returns the spec of an object in the form of the desired one.
        validate: raises if the resulting spec is invalid.
        missing: error if only some fields should change and there is no object.
    """

    target: ObjectPath
    spec: JsonObject
    touched: Touched | None
    options: WriteOptions
    dry_run: bool = False
    check: Callable[[JsonObject], None]
    normalise: Callable[[JsonObject], JsonObject]
    validate: Callable[[JsonObject], object] = lambda _: None
    missing: RequestError


class SpecWriter:
    """Creates, changes and deletes the objects of ports and rules."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    async def put(self, write: SpecWrite) -> WrittenObject:
        """Create an object, or change its touched fields.

        Raises:
            RequestError: `missing`; 409 `OwnedByOther`, another manager owns a field; 412,
                precondition failed; 503, the API server is unavailable, or the object keeps
                changing; errors of `check` and `validate`.
        """

        async def once(live: Document | None) -> WrittenObject:
            return await (self._create(write) if live is None else self._change(write, live))

        return await self._objects.read_modify_write(write.target, once)

    async def _create(self, write: SpecWrite) -> WrittenObject:
        target, options = write.target, write.options
        options.check(None)
        if write.touched is not None:
            raise write.missing
        metadata: ObjectMetadata = {"name": target.name, "namespace": target.namespace}
        if options.owners:
            metadata["ownerReferences"] = options.owners
        body: Document = {
            "apiVersion": API_VERSION,
            "kind": target.kind,
            "metadata": metadata,
            "spec": write.spec,
        }
        try:
            return await self._objects.apply(target, body, manager=API, dry_run=write.dry_run)
        except ConflictError as error:
            # The object was created concurrently: change it instead.
            raise StaleError from error

    async def _change(self, write: SpecWrite, live: Document) -> WrittenObject:
        target, current = write.target, live.get("spec", {})
        write.check(current)
        write.options.check(object_etag(live))
        edit = patch.compute_edit(write.normalise(current), write.spec, write.touched)
        written = WrittenObject(document=live, changed=False)
        if not edit:
            return written
        check_removals(target.kind, target.name, live, edit)
        outcome = patch.apply_edit(current, edit)
        write.validate(outcome)
        removals = patch.emptying_removals(live, outcome)
        remaining = patch.without_removals(edit, removals)
        if remaining:
            own_spec = patch.own_part(live).get("spec", {})
            body = patch.apply_body(live, patch.spec_to_apply(own_spec, remaining, outcome))
            written = await self._apply(write, live, body)
        if removals and not write.dry_run:
            # No other manager owns these fields; the resourceVersion ensures that this still holds.
            version = written.document["metadata"]["resourceVersion"]
            body = patch.removal_patch(live, removals, version)
            document = await self._objects.merge(target, body, manager=API)
            written = WrittenObject(document=document, warnings=written.warnings)
        return written

    async def _apply(self, write: SpecWrite, live: Document, body: Document) -> WrittenObject:
        target = write.target
        apply = partial(self._objects.apply, target, body, manager=API, dry_run=write.dry_run)
        try:
            return await apply()
        except ConflictError as error:
            conflicts = parse_conflicts(live, error.causes)
            if not write.options.force:
                raise owned_by_other_error(
                    target.kind, target.name, conflicts, removing=False
                ) from error
        warnings = takeover_warnings(target.kind, target.name, conflicts)
        return replace(await apply(force=True), warnings=warnings)

    async def delete(self, target: ObjectPath, uid: str, options: WriteOptions) -> None:
        """Delete the object with this uid; do nothing if it does not exist.

        Raises:
            RequestError: 412, precondition failed; 403, forbidden; 503, the API server is
                unavailable, or the object keeps changing.
        """

        async def once(live: Document | None) -> None:
            options.check(object_etag(live))
            if live is not None and live["metadata"]["uid"] == uid:
                version = live["metadata"]["resourceVersion"]
                await self._objects.delete(target, uid=uid, version=version)

        await self._objects.read_modify_write(target, once)
