"""Create, change and delete objects as manager `streambroker-api`; reports field conflicts."""

from __future__ import annotations

from typing import Any

from streambroker_core.wire.manifests.ports import API_VERSION
from streambroker_operator.kubernetes.apply.conflicts import (
    object_etag,
    owned_by_other_error,
    parse_conflicts,
    takeover_warnings,
)
from streambroker_operator.kubernetes.client.managed_fields import API, Document
from streambroker_operator.kubernetes.client.objects import (
    ApplyResult,
    ConflictError,
    ObjectPath,
    Objects,
    StaleError,
)
from streambroker_operator.storage.write_options import WriteOptions


async def create(
    objects: Objects,
    target: ObjectPath,
    spec: Document,
    options: WriteOptions,
    *,
    dry_run: bool = False,
) -> ApplyResult:
    """Create an object.

    Raises:
        RequestError: 412, precondition failed; any error of the API server.
        StaleError: the object was created concurrently; change it instead.
    """
    options.check(None)
    metadata: dict[str, Any] = {"name": target.name, "namespace": target.namespace}
    if options.owners:
        metadata["ownerReferences"] = [dict(owner) for owner in options.owners]
    body = {"apiVersion": API_VERSION, "kind": target.kind, "metadata": metadata, "spec": spec}
    try:
        return await objects.apply(target, body, manager=API, dry_run=dry_run)
    except ConflictError as error:
        raise StaleError from error


async def change(
    objects: Objects,
    target: ObjectPath,
    live: Document,
    body: Document,
    options: WriteOptions,
    *,
    dry_run: bool = False,
) -> tuple[Document, tuple[str, ...]]:
    """Apply to an object; return the new object and warnings about fields that were taken over.

    `live` is the object as read. `body` states all fields of this manager, with uid and
    resourceVersion as read. A dry run validates only.

    Raises:
        RequestError: 409 `OwnedByOther`; any error of the API server.
        StaleError: the object was changed or replaced.
    """
    try:
        return (await objects.apply(target, body, manager=API, dry_run=dry_run)).document, ()
    except ConflictError as error:
        conflicts = parse_conflicts(live, error.causes)
        if not options.force:
            raise owned_by_other_error(
                target.kind, target.name, conflicts, removing=False
            ) from error
    applied = await objects.apply(target, body, manager=API, force=True, dry_run=dry_run)
    return applied.document, takeover_warnings(target.kind, target.name, conflicts)


async def delete(objects: Objects, target: ObjectPath, uid: str, options: WriteOptions) -> None:
    """Delete the object with this uid; do nothing if it does not exist.

    Raises:
        RequestError: 412, precondition failed; 403, forbidden; 503, the API server is
            unavailable, or the object keeps changing.
    """

    async def once(live: Document | None) -> None:
        options.check(object_etag(live))
        if live is not None and live["metadata"]["uid"] == uid:
            await objects.delete(target, uid=uid, version=live["metadata"]["resourceVersion"])

    await objects.read_modify_write(target, once)
