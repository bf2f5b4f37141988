"""Authentication and authorization of callers by TokenReview and SubjectAccessReview, cached.

- A token is stored only as its SHA-256 and never disclosed.
- A failed review means 503, never 401. Only responses of the API server are cached.
- The unverified claims of a token may only reject it without a review, never accept it.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import math
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from streambroker_core.errors import SignatureError
from streambroker_core.model import PeKey
from streambroker_core.wire.broker import request_signature as signature
from streambroker_core.wire.encoding.canonical import JsonObject
from streambroker_core.wire.manifests.ports import GROUP, VERSION
from streambroker_operator.errors import RequestError
from streambroker_operator.kubernetes.auth.rbac import (
    AccessRequest,
    AccessRequests,
    Caller,
    describe_requests,
)
from streambroker_operator.kubernetes.client.documents import Document
from streambroker_operator.kubernetes.client.http_api import (
    Answer,
    ApiUnreachableError,
    HttpApi,
    object_at,
)

AUDIENCE = "streambroker"
REVIEW_TTL_S = 10.0
"""Seconds that a review is cached; the API server caches them for as long."""
FAILURE_TTL_S = 2.0
MAX_CACHED = 10_000
MAX_TOKEN = 16 * 1024
"""Characters; a longer token is rejected without a review."""
MAX_CONCURRENT_REVIEWS = 16
"""Maximum number of concurrent reviews."""
TIMEOUT_S = 5.0
STALE_READ_S = 3600.0
"""For this long reads use the last positive answer while the API server is unavailable."""
LEEWAY_S = 120.0
"""Seconds after its expiry that a token is still reviewed: the API server allows a minute, and
clocks may differ by another."""

_ACCOUNT = "system:serviceaccount:"
_POD = "authentication.kubernetes.io/pod-"
_REVIEWS = {"TokenReview": "token", "SubjectAccessReview": "access"}
_REALM = {"WWW-Authenticate": f'Bearer realm="streambroker", {signature.SCHEME}'}

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class TtlCache(Generic[K, V]):
    """Cache with a time to live per entry; concurrent requests of a key share one fetch."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._entries: OrderedDict[K, tuple[float, V]] = OrderedDict()
        self._pending: dict[K, asyncio.Task[tuple[float, V]]] = {}

    async def get(self, key: K, fetch: Callable[[], Awaitable[tuple[float, V]]]) -> V:
        """Return the cached or fetched value of a key.

        `fetch` returns the seconds to keep the value, and the value. Errors are not cached.
        """
        cached = self._entries.get(key)
        if cached is not None and self._clock() < cached[0]:
            return cached[1]
        task = self._pending.get(key)
        if task is None:
            task = asyncio.ensure_future(self._fetch(key, fetch))
            self._pending[key] = task
            task.add_done_callback(lambda done: self._on_fetched(key, done))
        # shield: a cancelled caller must not cancel the fetch for the others.
        return (await asyncio.shield(task))[1]

    def get_stale(self, key: K, within_s: float = math.inf) -> V | None:
        """Return the last value if it expired at most `within_s` seconds ago, else None."""
        cached = self._entries.get(key)
        return None if cached is None or self._clock() - cached[0] > within_s else cached[1]

    async def _fetch(
        self, key: K, fetch: Callable[[], Awaitable[tuple[float, V]]]
    ) -> tuple[float, V]:
        started_at = self._clock()
        keep_s, value = await fetch()
        self._entries[key] = (started_at + keep_s, value)
        self._entries.move_to_end(key)
        if len(self._entries) > MAX_CACHED:
            self._entries.popitem(last=False)
        return keep_s, value

    def _on_fetched(self, key: K, task: asyncio.Task[tuple[float, V]]) -> None:
        self._pending.pop(key, None)
        if not task.cancelled():
            task.exception()  # mark as retrieved: all callers may have been cancelled


class ReviewClient:
    """Client for token and access reviews of the API server."""

    def __init__(
        self,
        api: HttpApi,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._api = api
        self._wall = wall
        self._callers: TtlCache[bytes, Caller | None] = TtlCache(clock)
        self._grants: TtlCache[tuple[Hashable, ...], bool] = TtlCache(clock)
        self._slots = asyncio.Semaphore(MAX_CONCURRENT_REVIEWS)
        self.counts: Counter[tuple[str, str]] = Counter()
        """Reviews: ``token`` and ``access``, each ``allowed``, ``denied`` or ``failed``."""

    async def review_token(
        self,
        token: str,
        on_unknown: Callable[[], None] | None = None,
        *,
        reading: bool = False,
    ) -> Caller:
        """Return the caller that a token identifies.

        `on_unknown` is called before a review of a token that was not accepted before; its
        exceptions propagate. For a `reading` request, which changes nothing, the last answer counts
        for `STALE_READ_S` while the API server is unavailable.

        Raises:
            RequestError: 401, invalid or not for this broker; 503, the review failed.
        """
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        caller = None
        if is_reviewable(token, AUDIENCE, self._wall()):
            # The limit on guesses applies only to tokens that were not accepted before.
            before_call = on_unknown if self._callers.get_stale(digest) is None else None
            review = self._callers.get(digest, lambda: self._review(token, before_call))
            caller = await self._or_stale(review, self._callers, digest, reading)
        if caller is None:
            raise RequestError(
                401,
                "TokenWrong",
                "The cluster does not know this token, or it was not made for the audience"
                f" {AUDIENCE}: mount a projected token with that audience, or use"
                f" `kubectl create token <account> --audience {AUDIENCE}`.",
                headers={
                    "WWW-Authenticate": _REALM["WWW-Authenticate"] + ', error="invalid_token"'
                },
            )
        return caller

    async def _or_stale(
        self, review: Awaitable[V], cache: TtlCache[K, V], key: K, reading: bool
    ) -> V:
        """Return the result of a review.

        If the API server is unavailable, a read falls back to the last positive answer.
        """
        try:
            return await review
        except RequestError as error:
            last = cache.get_stale(key, STALE_READ_S) if reading and error.status == 503 else None
            if not last:
                raise
            return last

    async def check_access(
        self,
        caller: Caller,
        requests: AccessRequests,
        namespace: str,
        name: str = "",
        *,
        reading: bool = False,
    ) -> None:
        """Check that the cluster's RBAC rules grant one permission of each group.

        `namespace` is ``*`` for all; `name` is empty if unknown; `reading` is as in `review_token`.

        Raises:
            RequestError: 403, not allowed; 503, the review failed.
        """
        for group in requests:
            if not await self._is_granted(caller, group, namespace, name, reading):
                raise RequestError(
                    403,
                    "NotYours",
                    f"{caller.user} needs {describe_requests((group,))} of {namespace} for that."
                    f" The job itself"
                    " may change its own ports, from pods of the service account that registered"
                    " it first.",
                )

    async def _is_granted(
        self,
        caller: Caller,
        requests: Sequence[AccessRequest],
        namespace: str,
        name: str,
        reading: bool,
    ) -> bool:
        for request in requests:
            identity = (caller.user, caller.uid, caller.groups, tuple(sorted(caller.extra.items())))
            key = (*identity, request, namespace, name)
            review = self._grants.get(
                key, partial(self._review_access, caller, request, namespace, name)
            )
            if await self._or_stale(review, self._grants, key, reading):
                return True
        return False

    async def _review(
        self, token: str, before_call: Callable[[], None] | None
    ) -> tuple[float, Caller | None]:
        body = await self._post_review(
            "authentication.k8s.io/v1",
            "TokenReview",
            "tokenreviews",
            {"token": token, "audiences": [AUDIENCE]},
            before_call,
        )
        caller = read_review(body, AUDIENCE)
        self.counts["token", "denied" if caller is None else "allowed"] += 1
        if caller is None:
            return FAILURE_TTL_S, None
        expires = token_expiry(token)
        keep_s = REVIEW_TTL_S if expires is None else expires - self._wall()
        return max(0.0, min(REVIEW_TTL_S, keep_s)), caller

    async def _review_access(
        self, caller: Caller, request: AccessRequest, namespace: str, name: str
    ) -> tuple[float, bool]:
        attributes = {
            "namespace": "" if namespace == "*" else namespace,
            "verb": request.verb,
            "group": GROUP,
            "version": VERSION,
            "resource": request.resource,
            "subresource": request.subresource,
            "name": name,
        }
        body = await self._post_review(
            "authorization.k8s.io/v1",
            "SubjectAccessReview",
            "subjectaccessreviews",
            {
                "user": caller.user,
                "uid": caller.uid,
                "groups": list(caller.groups),
                "extra": {key: list(values) for key, values in caller.extra.items()},
                "resourceAttributes": {k: v for k, v in attributes.items() if v},
            },
        )
        status = object_at(body, "status")
        allowed = status.get("allowed") is True and status.get("denied") is not True
        self.counts["access", "allowed" if allowed else "denied"] += 1
        return REVIEW_TTL_S, allowed

    async def _post_review(
        self,
        group: str,
        kind: str,
        plural: str,
        spec: JsonObject,
        before_call: Callable[[], None] | None = None,
    ) -> Document:
        try:
            async with self._slots:
                # Only once a slot is free: the limit may have been reached during the wait.
                if before_call is not None:
                    before_call()
                response = await self._api.call(
                    "POST",
                    f"/apis/{group}/{plural}",
                    {"apiVersion": group, "kind": kind, "spec": spec},
                    timeout_s=TIMEOUT_S,
                )
        except ApiUnreachableError as error:
            raise self._review_failed_error(kind) from error
        if response.status not in (200, 201):
            raise self._review_failed_error(kind, response)
        return response.body

    def _review_failed_error(self, kind: str, answer: Answer | None = None) -> RequestError:
        self.counts[_REVIEWS[kind], "failed"] += 1
        retry_after = 1 if answer is None else max(1, round(answer.retry_after_s or 1))
        failure = "does not answer" if answer is None else f"answers {answer.status}"
        return RequestError(
            503,
            "ReviewFailed",
            f"The Kubernetes API server {failure} to the {kind}, so it is not known whether this"
            " is allowed. Routes stay; try again.",
            headers={"Retry-After": str(retry_after)},
        )


def read_review(body: Document, audience: str) -> Caller | None:
    """Return the authenticated caller; None if the review rejects the token or the audience."""
    status = object_at(body, "status")
    audiences = status.get("audiences")
    if status.get("authenticated") is not True or status.get("error"):
        return None
    if not isinstance(audiences, list) or audience not in audiences:
        return None
    user = object_at(status, "user")
    name = user.get("username")
    if not isinstance(name, str) or not name:
        return None
    extra = {
        str(key): tuple(str(value) for value in values)
        for key, values in object_at(user, "extra").items()
        if isinstance(values, list)
    }
    namespace, _, account = (
        name[len(_ACCOUNT) :].partition(":") if name.startswith(_ACCOUNT) else ("", "", "")
    )
    return Caller(
        user=name,
        uid=str(user.get("uid") or ""),
        groups=tuple(str(group) for group in user.get("groups") or ()),
        extra=extra,
        namespace=namespace,
        account=account,
        pod=_single_value(extra, f"{_POD}name"),
        pod_uid=_single_value(extra, f"{_POD}uid"),
    )


def signed_caller(agent: PeKey, account: str | None) -> Caller:
    """Return the RBAC identity of an agent that signed its request.

    `account` is the service account that its job is bound to, or None.
    """
    if account is None:
        return Caller(user=f"streambroker:agent:{agent}", namespace=agent.namespace, agent=agent)
    return Caller(
        user=f"{_ACCOUNT}{agent.namespace}:{account}",
        groups=(
            "system:serviceaccounts",
            f"system:serviceaccounts:{agent.namespace}",
            "system:authenticated",
        ),
        namespace=agent.namespace,
        account=account,
        agent=agent,
    )


def token_expiry(token: str) -> float | None:
    """Return the expiry of a token in seconds since 1970; None if it has none.

    The token is not verified: the expiry only shortens how long a review is cached.
    """
    claims = _claims(token)
    expiry = None if claims is None else claims.get("exp")
    try:
        return float(expiry) if isinstance(expiry, int | float) else None
    except OverflowError:
        return None


def is_reviewable(token: str, audience: str, now: float) -> bool:
    """Return whether a token may be valid at `now` (seconds since 1970), so is worth a review."""
    if len(token) > MAX_TOKEN or not token.isascii():
        return False
    claims = _claims(token)
    if claims is None:
        return False
    audiences = claims.get("aud")
    if audience not in (audiences if isinstance(audiences, list) else [audiences]):
        return False
    expires = token_expiry(token)
    return expires is None or now <= expires + LEEWAY_S


def _claims(token: str) -> Mapping[str, Any] | None:
    """Return the unverified claims of a token; None if it is not a JWT."""
    parts = token.split(".")
    if len(parts) != 3 or not all(parts):
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        return None
    return claims if isinstance(claims, dict) else None


class Authenticator:
    """Identifies the caller of a request by its signature or its token.

    Args:
        key_for: returns the key of a PE's agent if that instance is registered, else None.
        account_for: returns the service account that a job (namespace, name) is bound to, or None.
    """

    def __init__(
        self,
        reviews: ReviewClient,
        *,
        key_for: Callable[[PeKey, str], bytes | None],
        account_for: Callable[[str, str], str | None],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._reviews = reviews
        self._key_for = key_for
        self._account_for = account_for
        self._wall = wall
        self._replays = signature.ReplayGuard()

    async def authenticate(
        self,
        headers: Sequence[str],
        *,
        method: str,
        path: str,
        body: Callable[[], Awaitable[bytes]],
        on_unknown: Callable[[], None] | None = None,
        repeatable: bool = False,
        reading: bool = False,
    ) -> Caller:
        """Return the caller of a request.

        `headers` are all ``Authorization`` headers; `path` includes the query. `repeatable` permits
        a second use of a signature, as for requests without changes. `on_unknown` and `reading`
        are as in `ReviewClient.review_token`.

        Raises:
            RequestError: 401, the caller is unknown; 503, the review failed.
        """
        header = headers[0].strip() if len(headers) == 1 else ""
        if signature.is_signed(header):
            try:
                return await self._verify_signature(header, method, path, body, repeatable)
            except SignatureError as error:
                raise RequestError(401, error.code, str(error), headers=_REALM) from error
        scheme, _, token = header.partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise RequestError(
                401,
                "TokenMissing",
                "This broker requires a token of the cluster: send the header `Authorization:"
                " Bearer <token>`. Jobs and the command line take it from STREAMBROKER_TOKEN.",
                headers=_REALM,
            )
        return await self._reviews.review_token(token.strip(), on_unknown, reading=reading)

    async def _verify_signature(
        self,
        header: str,
        method: str,
        path: str,
        body: Callable[[], Awaitable[bytes]],
        repeatable: bool,
    ) -> Caller:
        signed = signature.read(header)
        key = self._key_for(signed.agent, signed.instance)
        if key is None:
            raise SignatureError("forged", f"{signed.agent} has no such agent; register again")
        content, now = await body(), self._wall()
        signature.verify(key, signed, method=method, path=path, body=content, now=now)
        if not repeatable and method not in ("GET", "HEAD", "OPTIONS"):
            self._replays.admit(signed, now)
        account = self._account_for(signed.agent.namespace, signed.agent.job)
        return signed_caller(signed.agent, account)


def _single_value(extra: Mapping[str, tuple[str, ...]], key: str) -> str:
    values = extra.get(key, ())
    return values[0] if len(values) == 1 else ""
