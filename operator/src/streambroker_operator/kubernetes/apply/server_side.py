"""One object, made, changed or deleted by manager `streambroker-api`; what others hold is told."""

from __future__ import annotations

from typing import Any

from streambroker_core.wire.manifests.ports import API_VERSION
from streambroker_operator.kubernetes.apply.conflicts import held, owned_by_other, tag_of, taken
from streambroker_operator.kubernetes.client.managed_fields import API, Document
from streambroker_operator.kubernetes.client.objects import (
    Applied,
    ConflictError,
    Objects,
    Place,
    StaleError,
)
from streambroker_operator.storage.write_options import Terms


async def make(
    objects: Objects, place: Place, spec: Document, terms: Terms, *, dry: bool = False
) -> Applied:
    """Make an object that was not there.

    Raises:
        RequestError: 412 by the terms; what the API server refuses.
        StaleError: somebody made it in between: then it is there to be changed.
    """
    terms.check(None)
    metadata: dict[str, Any] = {"name": place.name, "namespace": place.namespace}
    if terms.owners:
        metadata["ownerReferences"] = [dict(owner) for owner in terms.owners]
    body = {"apiVersion": API_VERSION, "kind": place.kind, "metadata": metadata, "spec": spec}
    try:
        return await objects.apply(place, body, manager=API, dry=dry)
    except ConflictError as error:
        raise StaleError from error


async def change(
    objects: Objects,
    place: Place,
    live: Document,
    body: Document,
    terms: Terms,
    *,
    dry: bool = False,
) -> tuple[Document, tuple[str, ...]]:
    """Apply to an object; return it as it is now, and the warnings of what was taken from others.

    Args:
        objects: single objects of the API server.
        place: where it is.
        live: the object as it was read.
        body: all that this manager wants of it, with uid and resourceVersion of what was read.
        terms: whether fields are taken from others.
        dry: whether it is only tried.

    Raises:
        RequestError: 409 `OwnedByOther`; what the API server refuses.
        StaleError: it was changed or replaced meanwhile.
    """
    try:
        return (await objects.apply(place, body, manager=API, dry=dry)).document, ()
    except ConflictError as error:
        what = held(live, error.causes)
        if not terms.force:
            raise owned_by_other(place.kind, place.name, what, removing=False) from error
    applied = await objects.apply(place, body, manager=API, force=True, dry=dry)
    return applied.document, taken(place.kind, place.name, what)


async def delete(objects: Objects, place: Place, uid: str, terms: Terms) -> None:
    """Delete an object if it is still the one that is meant; nothing is done where it is gone.

    Raises:
        RequestError: 412 by the terms; 403, the broker may not; 503, the API server cannot be
            asked, or the object changes all the time.
    """

    async def once(live: Document | None) -> None:
        terms.check(tag_of(live))
        if live is not None and live["metadata"]["uid"] == uid:
            await objects.delete(place, uid=uid, version=live["metadata"]["resourceVersion"])

    await objects.repeated(place, once)
