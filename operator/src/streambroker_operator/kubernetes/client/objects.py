"""Read, apply and delete single objects of an API server, and map its errors.

Every error becomes a `RequestError` with the API server's message, except those that the caller
can handle (`StaleError`, `ConflictError`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from streambroker_core.model import AnyKind
from streambroker_core.wire.manifests.ports import API_VERSION, OBJECTS
from streambroker_operator.errors import RequestError
from streambroker_operator.kubernetes.client.documents import Document, FieldCause, WebhookClient
from streambroker_operator.kubernetes.client.http_api import (
    Answer,
    ApiUnreachableError,
    HttpApi,
    object_at,
)

APPLY = "application/apply-patch+yaml"
"""Content type of a server-side apply; JSON is valid YAML."""
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
"""Merge patch for built-in kinds, which matches list elements by name."""

MAX_MESSAGE = 1000
"""Characters of a message; the API server rejects a status with more than 2,048."""

RETRIES = 3
"""Retries for an object that changes concurrently."""

_T = TypeVar("_T")
RETRY_S = 5.0
"""Default Retry-After in seconds."""
_WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
_BUSY = (429, 500, 502, 503, 504)


class StaleError(Exception):
    """The object was replaced or changed; read it again."""


class ConflictError(Exception):
    """Other managers own fields that an apply would change.

    Attributes:
        causes: one entry per field, as the API server reports it.
    """

    def __init__(self, causes: Sequence[FieldCause]) -> None:
        self.causes = causes
        super().__init__(f"{len(causes)} fields are held by others")


def list_path(kind: AnyKind, namespace: str | None) -> str:
    """Return the path of a kind's objects in one namespace, or in all for None."""
    where = "" if namespace is None else f"/namespaces/{namespace}"
    return f"/apis/{API_VERSION}{where}/{OBJECTS[kind]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectPath:
    """Kind, namespace and name of an object."""

    kind: AnyKind
    namespace: str
    name: str

    @property
    def path(self) -> str:
        """Path at the API server."""
        return f"{list_path(self.kind, self.namespace)}/{self.name}"

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenObject:
    """An object after a write, and warnings about fields that were taken over."""

    document: Document
    created: bool = False
    changed: bool = True
    warnings: tuple[str, ...] = ()


class Objects:
    """Reads and writes single resources and Secrets."""

    def __init__(self, api: HttpApi) -> None:
        self._api = api
        self.writes: Counter[tuple[str, str]] = Counter()
        """Count of writes by ``spec`` or ``status`` and by result, as in the metrics."""
        self._locks: WeakValueDictionary[ObjectPath, asyncio.Lock] = WeakValueDictionary()

    async def read_modify_write(
        self, target: ObjectPath, modify: Callable[[Document | None], Awaitable[_T]]
    ) -> _T:
        """Read an object and modify it, with retries if it changes concurrently.

        Modifications of one object run one at a time. `modify` receives the object, or None if
        there is none; it may raise `StaleError`.

        Raises:
            RequestError: 503 `ChangedMeanwhile`, it changed at every attempt; nothing was done.
        """
        lock = self._locks.setdefault(target, asyncio.Lock())
        async with lock:
            for _ in range(1 + RETRIES):
                try:
                    return await modify(await self.read(target))
                except StaleError:
                    continue
        raise RequestError(
            503,
            "ChangedMeanwhile",
            f"{target} was changed by others {1 + RETRIES} times during this change; nothing was"
            " done. Try again.",
            headers={"Retry-After": "1"},
        )

    async def read(self, target: ObjectPath) -> Document | None:
        """Return an object; None if there is none.

        Raises:
            RequestError: 503, the API server is unavailable; 403, the broker may not read.
        """
        response = await self._send("GET", target.path, f"read {target}")
        if _is_object_missing(response):
            return None
        return _parse_document(_check_answer(response, f"read {target}"))

    async def apply(
        self,
        target: ObjectPath,
        body: Document,
        *,
        manager: str,
        force: bool = False,
        status: bool = False,
        dry_run: bool = False,
    ) -> WrittenObject:
        """Write all fields of a manager by server-side apply.

        `body` contains uid and resourceVersion of an existing object; otherwise it creates one.
        `force` takes over fields of other managers, `status` writes the status only, and `dry_run`
        validates only.

        Raises:
            ConflictError: other managers own some of the fields.
            StaleError: the object was changed or replaced.
            RequestError: the API server rejects the write or is unavailable.
        """
        query = {"fieldManager": manager, "fieldValidation": "Strict"}
        if force:
            query["force"] = "true"
        if dry_run:
            query["dryRun"] = "All"
        path = target.path + ("/status" if status else "")
        action = f"write the status of {target}" if status else f"write {target}"
        send = self._send if dry_run else self._write
        response = await send("PATCH", path, action, query=query, body=body, content_type=APPLY)
        if response.status == 409:
            causes = _conflict_causes(response)
            if causes:
                raise ConflictError(causes)
            raise StaleError
        if _is_object_missing(response):
            raise StaleError
        checked = _check_answer(response, action)
        return WrittenObject(document=_parse_document(checked), created=checked.status == 201)

    async def merge(self, target: ObjectPath, body: Document, *, manager: str) -> Document:
        """Change fields by a merge patch, regardless of their owners; return the new object.

        `body` contains uid and resourceVersion of the object.

        Raises:
            StaleError: the object was changed or replaced.
            RequestError: the API server rejects the write or is unavailable.
        """
        action = f"write {target}"
        query = {"fieldManager": manager, "fieldValidation": "Strict"}
        response = await self._write(
            "PATCH", target.path, action, query=query, body=body, content_type=MERGE
        )
        if response.status == 409 or _is_object_missing(response):
            raise StaleError
        return _parse_document(_check_answer(response, action))

    async def delete(self, target: ObjectPath, *, uid: str, version: str | None = None) -> None:
        """Delete the object with this uid, and only at `version` if set; do nothing if it is gone.

        Raises:
            StaleError: the object was changed or replaced.
            RequestError: the API server rejects the deletion or is unavailable.
        """
        preconditions = (
            {"uid": uid} if version is None else {"uid": uid, "resourceVersion": version}
        )
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
        response = await self._write("DELETE", target.path, f"delete {target}", body=body)
        if response.status == 409:
            raise StaleError
        if not _is_object_missing(response):
            _check_answer(response, f"delete {target}")

    async def read_secret(self, namespace: str, name: str) -> Document | None:
        """Return a Secret; None if there is none."""
        return await self._find(_secret_path(namespace, name), f"Secret {namespace}/{name}")

    async def create_secret(self, namespace: str, name: str, data: Mapping[str, str]) -> None:
        """Create an immutable Secret from base64-encoded entries; an existing one is unchanged.

        Raises:
            RequestError: the API server rejects the write or is unavailable.
        """
        action = f"create the Secret {namespace}/{name}"
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "namespace": namespace},
            "type": "Opaque",
            "immutable": True,
            "data": dict(data),
        }
        response = await self._send("POST", _secret_path(namespace), action, body=body)
        if response.status != 409:
            _check_answer(response, action)

    async def update_secret(
        self, namespace: str, document: Document, data: Mapping[str, str]
    ) -> None:
        """Replace some entries (base64-encoded) of a Secret that was read before.

        Raises:
            StaleError: the Secret was changed or replaced.
            RequestError: the API server rejects the write or is unavailable.
        """
        name = document["metadata"]["name"]
        version = {"resourceVersion": document["metadata"]["resourceVersion"]}
        body = {"metadata": version, "data": dict(data)}
        path, action = _secret_path(namespace, name), f"write the Secret {namespace}/{name}"
        response = await self._send("PATCH", path, action, body=body, content_type=MERGE)
        if response.status in (404, 409):
            raise StaleError
        _check_answer(response, action)

    async def read_webhook(self, name: str) -> Document | None:
        """Return a ValidatingWebhookConfiguration; None if there is none."""
        return await self._find(f"{_WEBHOOKS}/{name}", f"ValidatingWebhookConfiguration {name}")

    async def update_webhook(self, name: str, clients: Mapping[str, WebhookClient]) -> None:
        """Change ``clientConfig`` by webhook name; its other fields are unchanged.

        Raises:
            RequestError: the API server rejects the write or is unavailable.
        """
        webhooks = [{"name": each, "clientConfig": client} for each, client in clients.items()]
        path, action = f"{_WEBHOOKS}/{name}", f"write the ValidatingWebhookConfiguration {name}"
        _check_answer(
            await self._send(
                "PATCH", path, action, body={"webhooks": webhooks}, content_type=STRATEGIC
            ),
            action,
        )

    async def _find(self, path: str, what: str) -> Document | None:
        response, action = await self._send("GET", path, f"read the {what}"), f"read the {what}"
        return None if response.status == 404 else _parse_document(_check_answer(response, action))

    async def _write(self, method: str, path: str, what: str, **more: Any) -> Answer:
        """Send a write and count its result."""
        part = "status" if path.endswith("/status") else "spec"
        try:
            response = await self._send(method, path, what, **more)
        except RequestError:
            self.writes[part, "failed"] += 1
            raise
        self.writes[part, _write_result(response)] += 1
        return response

    async def _send(self, method: str, path: str, what: str, **more: Any) -> Answer:
        try:
            return await self._api.call(method, path, **more)
        except ApiUnreachableError as error:
            # A write without a response may have been done; repeating it is harmless.
            unsure = "" if method == "GET" else " It may have been done: check, or repeat it."
            raise _unavailable_error(
                f"The API server gave no answer to: {what} ({error}).{unsure}"
            ) from error


def _secret_path(namespace: str, name: str = "") -> str:
    path = f"/api/v1/namespaces/{namespace}/secrets"
    return f"{path}/{name}" if name else path


def _write_result(answer: Answer) -> str:
    if answer.status < 300:
        return "done"
    if answer.status == 409 or _is_object_missing(answer):
        return "conflict"
    return "failed" if _is_unavailable(answer) else "refused"


def _is_unavailable(answer: Answer) -> bool:
    """Return whether the API server cannot handle the request at the moment."""
    return answer.status in _BUSY or answer.status == 401 or _is_kind_missing(answer)


def _unavailable_error(message: str, retry_after_s: float | None = None) -> RequestError:
    after = RETRY_S if retry_after_s is None else retry_after_s
    return RequestError(
        503,
        "ApiServerAway",
        f"{message} Routes stay as they are.",
        headers={"Retry-After": f"{max(after, 1.0):.0f}"},
    )


def _check_answer(answer: Answer, what: str) -> Answer:
    """Return a successful answer; raise `RequestError` for an error."""
    if answer.status < 300:
        return answer
    message = _error_text(answer)
    if _is_unavailable(answer):
        raise _unavailable_error(
            f"The API server refused to {what}: {message}", answer.retry_after_s
        )
    if answer.status == 403:
        raise RequestError(
            403,
            "NotPermitted",
            f"The broker may not {what}: {message} Its ClusterRole or Role has to allow that.",
        )
    status = 422 if answer.status in (400, 413, 422) else 502
    raise RequestError(status, "ResourceInvalid", f"The API server refused to {what}: {message}")


def _error_text(answer: Answer) -> str:
    text = str(answer.body.get("message") or f"it answered {answer.status}").strip()
    return text if text.endswith(".") else f"{text}."


def _conflict_causes(answer: Answer) -> list[FieldCause]:
    """Return the field conflicts of a rejected apply; empty if it failed for another reason."""
    causes = object_at(answer.body, "details").get("causes") or ()
    return [cause for cause in causes if cause.get("reason") == "FieldManagerConflict"]


def _is_kind_missing(answer: Answer) -> bool:
    """Return whether a 404 means that the API server does not know the kind at the moment."""
    return answer.status == 404 and not object_at(answer.body, "details").get("name")


def _is_object_missing(answer: Answer) -> bool:
    return answer.status == 404 and not _is_kind_missing(answer)


def _parse_document(answer: Answer) -> Document:
    if "metadata" not in answer.body:
        raise _unavailable_error("The API server's answer cannot be read.")
    return answer.body
