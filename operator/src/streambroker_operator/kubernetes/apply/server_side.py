"""One object, made, changed or deleted by manager `streambroker-api`; what others hold is told."""

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
    """Make an object that was not there.

    Raises:
        RequestError: 412 by the terms; what the API server refuses.
        StaleError: somebody made it in between: then it is there to be changed.
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
    """Apply to an object; return it as it is now, and the warnings of what was taken from others.

    Args:
        objects: single objects of the API server.
        target: where it is.
        live: the object as it was read.
        body: all that this manager wants of it, with uid and resourceVersion of what was read.
        options: whether fields are taken from others.
        dry_run: whether it is only tried.

    Raises:
        RequestError: 409 `OwnedByOther`; what the API server refuses.
        StaleError: it was changed or replaced meanwhile.
    """
    try:
        return (await objects.apply(target, body, manager=API, dry_run=dry_run)).document, ()
    except ConflictError as error:
        what = parse_conflicts(live, error.causes)
        if not options.force:
            raise owned_by_other_error(target.kind, target.name, what, removing=False) from error
    applied = await objects.apply(target, body, manager=API, force=True, dry_run=dry_run)
    return applied.document, takeover_warnings(target.kind, target.name, what)


async def delete(objects: Objects, target: ObjectPath, uid: str, options: WriteOptions) -> None:
    """Delete an object if it is still the one that is meant; nothing is done where it is gone.

    Raises:
        RequestError: 412 by the terms; 403, the broker may not; 503, the API server cannot be
            asked, or the object changes all the time.
    """

    async def once(live: Document | None) -> None:
        options.check(object_etag(live))
        if live is not None and live["metadata"]["uid"] == uid:
            await objects.delete(target, uid=uid, version=live["metadata"]["resourceVersion"])

    await objects.read_modify_write(target, once)
