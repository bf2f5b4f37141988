"""Lists of one kind over all watched namespaces.

A Role is deleted with its namespace, so a deleted namespace first answers 403. A separate request
finds out whether it exists; the chart grants `get` on the configured namespaces for that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from streambroker_core.model import AnyKind
from streambroker_core.wire.manifests.ports import GROUP, OBJECTS
from streambroker_operator.kubernetes.client.documents import Document
from streambroker_operator.kubernetes.client.objects import list_path
from streambroker_operator.kubernetes.client.watch_client import (
    LIST_METADATA,
    OBJECT_METADATA,
    ApiClient,
    ApiError,
)

_log = logging.getLogger("streambroker.kubernetes")

Refusal: TypeAlias = Literal["Forbidden", "NamespaceGone"]
"""Why a watched namespace is not followed."""

_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_OBJECTS_PER_TURN = 20
"""Objects that are read before the event loop may run other tasks."""
_EFFECTS: Mapping[Refusal, str] = {
    "Forbidden": "cannot be listed (403); their last known state is kept",
    "NamespaceGone": "were deleted with it",
}


class CrdMissingError(Exception):
    """The custom resource definition was deleted or is being deleted, its objects with it."""


class KindLister:
    """Lists the objects of one kind, and tracks the namespaces that it cannot list.

    Args:
        namespaces: namespaces to watch; empty for all.

    Attributes:
        paths: path of the list per namespace; the empty name means all namespaces.
        refused: namespaces that the last list could not read. The others are followed.
    """

    def __init__(self, client: ApiClient, kind: AnyKind, namespaces: Sequence[str]) -> None:
        self._client = client
        self._kind = kind
        self._crd_path = f"{_CRDS}/{OBJECTS[kind]}.{GROUP}"
        self.paths = {name: list_path(kind, name or None) for name in namespaces or ("",)}
        self.refused: dict[str, Refusal] = {}

    async def read_crd_uid(self) -> str:
        """Return the uid of the custom resource definition.

        Raises:
            CrdMissingError: the definition is deleted or being deleted.
            ApiError: the request failed.
        """
        try:
            body = await self._client.get(self._crd_path, accept=OBJECT_METADATA)
        except ApiError as error:
            if error.status == 404:
                raise CrdMissingError from error
            raise
        metadata = body.get("metadata")
        if not isinstance(metadata, dict) or not metadata.get("uid"):
            raise ApiError(0, f"{self._crd_path}: the answer is not a definition")
        if metadata.get("deletionTimestamp"):
            raise CrdMissingError
        return str(metadata["uid"])

    async def list(
        self, on_object: Callable[[Document], None], *, is_first: bool, **how: Any
    ) -> tuple[int, dict[str, Refusal]]:
        """List all namespaces at the version of the first one.

        Return that version, 0 if no namespace was listed, and the refused namespaces. If nothing
        was listed before (`is_first`), no namespace that may have objects is left out: a board
        without them would cut routes that still exist.

        Raises:
            CrdMissingError: there is no definition.
            ApiError: the list failed.
        """
        version, refused = 0, dict[str, Refusal]()
        for namespace, path in self.paths.items():
            params, started = {}, False
            if version:
                params = {"resourceVersion": str(version), "resourceVersionMatch": "Exact"}
            try:
                async for items, list_version in self._client.pages(path, params, **how):
                    version, started = list_version, True
                    await _read_page(items, on_object)
            except ApiError as error:
                if error.status == 404:
                    raise CrdMissingError from error
                if error.status != 403 or not namespace or started:
                    raise
                refused[namespace] = await self._refusal_reason(namespace)
                if refused[namespace] == "Forbidden" and is_first:
                    raise
        return version, refused

    async def _refusal_reason(self, namespace: str) -> Refusal:
        """Return why a namespace cannot be listed; if uncertain, assume that it still exists."""
        try:
            await self._client.get(f"/api/v1/namespaces/{namespace}", accept=OBJECT_METADATA)
        except ApiError as error:
            if error.status == 404:
                return "NamespaceGone"
        return "Forbidden"

    def is_all_refused(self, refused: Mapping[str, Refusal]) -> bool:
        """Return whether no namespace can be listed, and one of them may have objects."""
        return refused.keys() == self.paths.keys() and "Forbidden" in refused.values()

    def note_refused(self, refused: dict[str, Refusal]) -> None:
        """Record the refused namespaces of an applied list; log the changes."""
        for namespace, why in refused.items():
            if self.refused.get(namespace) != why:
                _log.warning("namespace %s: %ss %s", namespace, self._kind, _EFFECTS[why])
        for namespace in self.refused.keys() - refused.keys():
            _log.info("namespace %s: %ss are watched again", namespace, self._kind)
        self.refused = refused

    async def has_readable(self) -> bool:
        """Return whether a refused namespace can be listed again."""
        for namespace in tuple(self.refused):
            try:
                await self._client.get(self.paths[namespace], {"limit": "1"}, accept=LIST_METADATA)
            except ApiError:
                continue
            return True
        return False


async def _read_page(items: Sequence[Document], on_object: Callable[[Document], None]) -> None:
    """Process a page, yielding to the event loop between batches."""
    for index, body in enumerate(items):
        try:
            on_object(body)
        except ValueError as error:
            raise ApiError(0, f"a list with {error}") from error
        if index % _OBJECTS_PER_TURN == _OBJECTS_PER_TURN - 1:
            await asyncio.sleep(0)
