"""Single objects of an API server: read, apply, delete; and what its refusals mean.

The API server's own words are kept where they say something; every refusal becomes
a `RequestError` here, but for those that the caller can do something about.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from streambroker_core.model import AnyKind
from streambroker_core.wire.manifests.ports import API_VERSION, OBJECTS
from streambroker_operator.errors import RequestError
from streambroker_operator.kubernetes.client.http_api import Answer, Api, ApiUnreachableError
from streambroker_operator.kubernetes.client.managed_fields import Document

APPLY = "application/apply-patch+yaml"
"""What a server-side apply is sent as; JSON is YAML."""
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
"""A merge patch for kinds of Kubernetes itself, which finds elements of lists by their name."""

RETRIES = 3
"""How often an object that changed meanwhile is read again."""

_T = TypeVar("_T")
RETRY_S = 5.0
"""When to ask again, in seconds, where the API server does not say."""
_WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
_BUSY = (429, 500, 502, 503, 504)


class StaleError(Exception):
    """The object is another one by now, or at another version: read it again."""


class ConflictError(Exception):
    """Others hold fields that an apply would change.

    Attributes:
        causes: one for each field, as the API server names them.
    """

    def __init__(self, causes: list[Document]) -> None:
        self.causes = causes
        super().__init__(f"{len(causes)} fields are held by others")


def list_path(kind: AnyKind, namespace: str | None) -> str:
    """Return the path of a kind's objects in a namespace, or, for None, in all of them."""
    where = "" if namespace is None else f"/namespaces/{namespace}"
    return f"/apis/{API_VERSION}{where}/{OBJECTS[kind]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectPath:
    """Where an object is."""

    kind: AnyKind
    namespace: str
    name: str

    @property
    def path(self) -> str:
        """Its path at the API server."""
        return f"{list_path(self.kind, self.namespace)}/{self.name}"

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyResult:
    """What an apply led to.

    Attributes:
        document: the object as it is now.
        created: whether it was made by this.
    """

    document: Document
    created: bool


class Objects:
    """Reads and writes single resources and Secrets.

    Args:
        api: how the API server is asked.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self.writes: Counter[tuple[str, str]] = Counter()
        """What was written, by ``spec`` or ``status`` and by result, as metrics name them."""
        self._locks: WeakValueDictionary[ObjectPath, asyncio.Lock] = WeakValueDictionary()

    async def read_modify_write(
        self, target: ObjectPath, modify: Callable[[Document | None], Awaitable[_T]]
    ) -> _T:
        """Read an object and do something with it; again where it changed meanwhile.

        Args:
            target: where the object is; one after the other here.
            modify: is given the object, None where there is none; may raise `StaleError`.

        Raises:
            RequestError: 503 `ChangedMeanwhile`, it changes all the time; nothing was done.
        """
        turn = self._locks.setdefault(target, asyncio.Lock())
        async with turn:
            for _ in range(1 + RETRIES):
                try:
                    return await modify(await self.read(target))
                except StaleError:
                    continue
        raise RequestError(
            503,
            "ChangedMeanwhile",
            f"{target} was changed by others {1 + RETRIES} times while it was to be changed here;"
            " nothing was done. Try again.",
            headers={"Retry-After": "1"},
        )

    async def read(self, target: ObjectPath) -> Document | None:
        """Return an object as it is; None where there is none.

        Raises:
            RequestError: 503, the API server cannot be asked now; 403, it lets nobody read.
        """
        answer = await self._send("GET", target.path, f"read {target}")
        if answer.status == 404 and not _is_kind_missing(answer):
            return None
        return _parse_document(_check_answer(answer, f"read {target}"))

    async def apply(
        self,
        target: ObjectPath,
        body: Document,
        *,
        manager: str,
        force: bool = False,
        status: bool = False,
        dry_run: bool = False,
    ) -> ApplyResult:
        """State by server-side apply all that a manager wants of an object.

        Args:
            target: where the object is.
            body: with uid and resourceVersion of the one that is meant; without, it is made.
            manager: who wants it.
            force: whether to take fields from others.
            status: whether it is about the status and nothing else.
            dry_run: whether it is only tried.

        Raises:
            ConflictError: others hold some of the fields.
            StaleError: the object was changed or replaced meanwhile.
            RequestError: the API server refuses it, or cannot be asked now.
        """
        query = {"fieldManager": manager, "fieldValidation": "Strict"}
        if force:
            query["force"] = "true"
        if dry_run:
            query["dryRun"] = "All"
        path = target.path + ("/status" if status else "")
        what = f"write the status of {target}" if status else f"write {target}"
        how: dict[str, Any] = {"query": query, "body": body, "content_type": APPLY}
        if dry_run:
            answer = await self._send("PATCH", path, what, **how)
        else:
            answer = await self._write("PATCH", path, what, **how)
        if answer.status == 409:
            causes = _conflict_causes(answer)
            if causes:
                raise ConflictError(causes)
            raise StaleError
        if answer.status == 404 and not _is_kind_missing(answer):
            raise StaleError
        good = _check_answer(answer, what)
        return ApplyResult(document=_parse_document(good), created=good.status == 201)

    async def merge(self, target: ObjectPath, body: Document, *, manager: str) -> Document:
        """Change fields by a merge patch, whoever holds them; return the object as it is now.

        Args:
            target: where the object is.
            body: with uid and resourceVersion of the one that is meant.
            manager: who wants it.

        Raises:
            StaleError: the object was changed or replaced meanwhile.
            RequestError: the API server refuses it, or cannot be asked now.
        """
        what = f"write {target}"
        query = {"fieldManager": manager, "fieldValidation": "Strict"}
        answer = await self._write(
            "PATCH", target.path, what, query=query, body=body, content_type=MERGE
        )
        if answer.status == 409 or (answer.status == 404 and not _is_kind_missing(answer)):
            raise StaleError
        return _parse_document(_check_answer(answer, what))

    async def delete(self, target: ObjectPath, *, uid: str, version: str | None = None) -> None:
        """Delete this very object; nothing is done where it is gone.

        Args:
            target: where it is.
            uid: which one it is.
            version: only if it is still at this resourceVersion; None for any.

        Raises:
            StaleError: it was changed meanwhile.
            RequestError: the API server refuses it, or cannot be asked now.
        """
        only = {"uid": uid} if version is None else {"uid": uid, "resourceVersion": version}
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": only}
        answer = await self._write("DELETE", target.path, f"delete {target}", body=body)
        if answer.status == 409:
            raise StaleError
        if answer.status != 404 or _is_kind_missing(answer):
            _check_answer(answer, f"delete {target}")

    async def read_secret(self, namespace: str, name: str) -> Document | None:
        """Return a Secret's document; None where there is none."""
        what = f"read the Secret {namespace}/{name}"
        answer = await self._send("GET", _secret_path(namespace, name), what)
        return None if answer.status == 404 else _parse_document(_check_answer(answer, what))

    async def create_secret(self, namespace: str, name: str, data: Mapping[str, str]) -> None:
        """Create an immutable Secret; one that is there already stays as it is.

        Args:
            namespace: where.
            name: of the Secret.
            data: its entries, in base64.

        Raises:
            RequestError: the API server refuses it, or cannot be asked now.
        """
        what = f"create the Secret {namespace}/{name}"
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "namespace": namespace},
            "type": "Opaque",
            "immutable": True,
            "data": dict(data),
        }
        answer = await self._send("POST", _secret_path(namespace), what, body=body)
        if answer.status != 409:
            _check_answer(answer, what)

    async def update_secret(
        self, namespace: str, document: Document, data: Mapping[str, str]
    ) -> None:
        """Give a Secret other entries.

        Args:
            namespace: of the Secret.
            document: the Secret as it was read.
            data: the entries, in base64; others stay.

        Raises:
            StaleError: it was changed or replaced meanwhile.
            RequestError: the API server refuses it, or cannot be asked now.
        """
        name, version = (document["metadata"][part] for part in ("name", "resourceVersion"))
        body = {"metadata": {"resourceVersion": version}, "data": dict(data)}
        path, what = _secret_path(namespace, name), f"write the Secret {namespace}/{name}"
        answer = await self._send("PATCH", path, what, body=body, content_type=MERGE)
        if answer.status in (404, 409):
            raise StaleError
        _check_answer(answer, what)

    async def read_webhook(self, name: str) -> Document | None:
        """Return a ValidatingWebhookConfiguration; None where there is none."""
        what = f"read the ValidatingWebhookConfiguration {name}"
        answer = await self._send("GET", f"{_WEBHOOKS}/{name}", what)
        return None if answer.status == 404 else _parse_document(_check_answer(answer, what))

    async def update_webhook(self, name: str, clients: Mapping[str, Document]) -> None:
        """Change how the API server calls the webhooks of a ValidatingWebhookConfiguration.

        Args:
            name: of the configuration.
            clients: the ``clientConfig`` of each, by its name; fields that are not given stay.

        Raises:
            RequestError: the API server refuses it, or cannot be asked now.
        """
        found = [{"name": each, "clientConfig": client} for each, client in clients.items()]
        what = f"write the ValidatingWebhookConfiguration {name}"
        how: dict[str, Any] = {"body": {"webhooks": found}, "content_type": STRATEGIC}
        _check_answer(await self._send("PATCH", f"{_WEBHOOKS}/{name}", what, **how), what)

    async def _write(self, method: str, path: str, what: str, **more: Any) -> Answer:
        """Send what changes an object, and count what came of it."""
        part = "status" if path.endswith("/status") else "spec"
        try:
            answer = await self._send(method, path, what, **more)
        except RequestError:
            self.writes[part, "failed"] += 1
            raise
        self.writes[part, _write_result(answer)] += 1
        return answer

    async def _send(self, method: str, path: str, what: str, **more: Any) -> Answer:
        try:
            return await self._api.call(method, path, **more)
        except ApiUnreachableError as error:
            # A write without an answer may be done; repeating it changes nothing then.
            unsure = "" if method == "GET" else " It may have been done: ask again, or repeat it."
            raise _unavailable_error(
                f"The API server gave no answer to: {what} ({error}).{unsure}"
            ) from error


def _secret_path(namespace: str, name: str = "") -> str:
    path = f"/api/v1/namespaces/{namespace}/secrets"
    return f"{path}/{name}" if name else path


def _write_result(answer: Answer) -> str:
    """Return what came of a write, as metrics name it."""
    if answer.status < 300:
        return "done"
    if answer.status == 409 or (answer.status == 404 and not _is_kind_missing(answer)):
        return "conflict"
    return "failed" if _is_unavailable(answer) else "refused"


def _is_unavailable(answer: Answer) -> bool:
    """Say whether an answer means that the API server cannot do it at the moment."""
    return answer.status in _BUSY or answer.status == 401 or _is_kind_missing(answer)


def _unavailable_error(message: str, retry_after_s: float | None = None) -> RequestError:
    after = RETRY_S if retry_after_s is None else retry_after_s
    return RequestError(
        503,
        "ApiServerAway",
        f"{message} Routes go on as they are.",
        headers={"Retry-After": f"{max(after, 1.0):.0f}"},
    )


def _check_answer(answer: Answer, what: str) -> Answer:
    """Return a good answer.

    Raises:
        RequestError: it is none.
    """
    if answer.status < 300:
        return answer
    said = _error_text(answer)
    if _is_unavailable(answer):
        raise _unavailable_error(f"The API server refused to {what}: {said}", answer.retry_after_s)
    if answer.status == 403:
        raise RequestError(
            403,
            "NotPermitted",
            f"The broker may not {what}: {said} Its ClusterRole or Role has to allow that.",
        )
    status = 422 if answer.status in (400, 413, 422) else 502
    raise RequestError(status, "ResourceInvalid", f"The API server refused to {what}: {said}")


def _error_text(answer: Answer) -> str:
    found = str(answer.body.get("message") or f"it answered {answer.status}").strip()
    return found if found.endswith(".") else f"{found}."


def _conflict_causes(answer: Answer) -> list[Document]:
    """Return who holds what, of a refusal; nothing where that is not why."""
    details = answer.body.get("details")
    causes = details.get("causes") if isinstance(details, Mapping) else None
    return [cause for cause in causes or () if cause.get("reason") == "FieldManagerConflict"]


def _is_kind_missing(answer: Answer) -> bool:
    """Say whether a 404 means that the API server knows no such kind at the moment."""
    if answer.status != 404:
        return False
    details = answer.body.get("details")
    return not (isinstance(details, Mapping) and details.get("name"))


def _parse_document(answer: Answer) -> Document:
    if "metadata" not in answer.body:
        raise _unavailable_error("The API server's answer cannot be read.")
    return answer.body
