"""Find out who calls, and what the cluster lets them do, without asking twice.

Rule 1: a token is kept as its SHA-256 only, and never told.
Rule 2: no answer is an answer of its own: 503, never 401. Only what the API server said is kept.
Rule 3: what a token says of itself is a reason to refuse it unasked, and never to let it in.
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
from streambroker_core.wire.manifests.ports import GROUP, VERSION
from streambroker_operator.errors import RequestError
from streambroker_operator.kubernetes.auth.rbac import (
    AccessRequest,
    AccessRequests,
    Caller,
    describe_requests,
)
from streambroker_operator.kubernetes.client.http_api import Answer, Api, ApiUnreachableError

AUDIENCE = "streambroker"
REVIEW_TTL_S = 10.0
"""How long a review holds, in seconds; the API server itself keeps them for as long."""
FAILURE_TTL_S = 2.0
MAX_CACHED = 10_000
MAX_TOKEN = 16 * 1024
"""Characters; a longer token is refused without a review."""
MAX_CONCURRENT_REVIEWS = 16
"""Reviews under way at the same time."""
TIMEOUT_S = 5.0
STALE_READ_S = 3600.0
"""For so long reads go by the last good answer while the API server cannot be asked."""
LEEWAY_S = 120.0
"""How long after its end a token is reviewed still, in seconds: a minute that the API server grants
itself, and one by which clocks may differ."""

_ACCOUNT = "system:serviceaccount:"
_POD = "authentication.kubernetes.io/pod-"
_REVIEWS = {"TokenReview": "token", "SubjectAccessReview": "access"}
_REALM = {"WWW-Authenticate": f'Bearer realm="streambroker", {signature.SCHEME}'}

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class TtlCache(Generic[K, V]):
    """Answers that hold for a while; while one is being fetched, everybody waits for that one.

    Args:
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._entries: OrderedDict[K, tuple[float, V]] = OrderedDict()
        self._pending: dict[K, asyncio.Task[tuple[float, V]]] = {}

    async def get(self, key: K, fetch: Callable[[], Awaitable[tuple[float, V]]]) -> V:
        """Return an answer.

        Args:
            key: what is asked.
            fetch: returns the answer and for how many seconds it holds; what it raises is not kept.
        """
        known = self._entries.get(key)
        if known is not None and self._clock() < known[0]:
            return known[1]
        task = self._pending.get(key)
        if task is None:
            task = asyncio.ensure_future(self._fetch(key, fetch))
            self._pending[key] = task
            task.add_done_callback(lambda done: self._on_fetched(key, done))
        # Who does not wait any longer takes nothing away from the others.
        return (await asyncio.shield(task))[1]

    def get_stale(self, key: K, within_s: float = math.inf) -> V | None:
        """Return what was answered last, even if it holds no longer; None if nothing is known.

        Args:
            key: what is asked.
            within_s: for how long it may not have held any more, in seconds.
        """
        known = self._entries.get(key)
        return None if known is None or self._clock() - known[0] > within_s else known[1]

    async def _fetch(
        self, key: K, fetch: Callable[[], Awaitable[tuple[float, V]]]
    ) -> tuple[float, V]:
        begun = self._clock()
        keep_s, value = await fetch()
        self._entries[key] = (begun + keep_s, value)
        self._entries.move_to_end(key)
        if len(self._entries) > MAX_CACHED:
            self._entries.popitem(last=False)
        return keep_s, value

    def _on_fetched(self, key: K, task: asyncio.Task[tuple[float, V]]) -> None:
        self._pending.pop(key, None)
        if not task.cancelled():
            task.exception()  # those who waited have it; nobody may be left


class ReviewClient:
    """Asks the API server who callers are and what they may do.

    Args:
        api: makes the calls.
        audience: for whom tokens have to be made.
        clock: a monotonic clock, in seconds.
        wall: seconds since 1970.
    """

    def __init__(
        self,
        api: Api,
        *,
        audience: str = AUDIENCE,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._api = api
        self._audience = audience
        self._wall = wall
        self._callers: TtlCache[bytes, Caller | None] = TtlCache(clock)
        self._grants: TtlCache[tuple[Hashable, ...], bool] = TtlCache(clock)
        self._slots = asyncio.Semaphore(MAX_CONCURRENT_REVIEWS)
        self.counts: Counter[tuple[str, str]] = Counter()
        """Questions asked: ``token`` and ``access``, each ``allowed``, ``denied`` or ``failed``."""

    async def review_token(
        self,
        token: str,
        on_unknown: Callable[[], None] | None = None,
        *,
        reading: bool = False,
    ) -> Caller:
        """Return whose token it is.

        Args:
            token: as it was shown.
            on_unknown: called before the API server is shown a token that was not good before; what
                it raises is raised here.
            reading: whether it is for something that changes nothing: then, while nobody can say,
                the last answer counts, for `STALE_READ_S`.

        Raises:
            RequestError: 401, nobody's, or not for this broker; 503, nobody could say.
        """
        shown = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        found = None
        if is_reviewable(token, self._audience, self._wall()):
            # Who guesses has never shown one that was good, so those who did do not pay for them.
            first = on_unknown if self._callers.get_stale(shown) is None else None
            review = self._callers.get(shown, lambda: self._review(token, first))
            found = await self._or_stale(review, self._callers, shown, reading)
        if found is None:
            raise RequestError(
                401,
                "TokenWrong",
                "The cluster does not know this token, or it was not made for the audience"
                f" {self._audience}: mount a projected token with that audience, or use"
                f" `kubectl create token <account> --audience {self._audience}`.",
                headers={
                    "WWW-Authenticate": _REALM["WWW-Authenticate"] + ', error="invalid_token"'
                },
            )
        return found

    async def _or_stale(
        self, review: Awaitable[V], cache: TtlCache[K, V], key: K, reading: bool
    ) -> V:
        """Return a review's answer; for a read while nobody can say, the last one if it was good.

        An API server that is away takes nobody's sight of what goes on without it.
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
        """Return if the cluster's rules let a caller do something.

        Args:
            caller: who.
            requests: of each group one has to be granted.
            namespace: where; ``*`` for everywhere.
            name: of the resource; empty where it is not known.
            reading: as of `caller`.

        Raises:
            RequestError: 403, they do not; 503, nobody could say.
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
        for ask in requests:
            who = (caller.user, caller.uid, caller.groups, tuple(sorted(caller.extra.items())))
            key = (*who, ask, namespace, name)
            review = self._grants.get(
                key, partial(self._review_access, caller, ask, namespace, name)
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
            {"token": token, "audiences": [self._audience]},
            before_call,
        )
        found = read_review(body, self._audience)
        self.counts["token", "denied" if found is None else "allowed"] += 1
        if found is None:
            return FAILURE_TTL_S, None
        expires = token_expiry(token)
        left = REVIEW_TTL_S if expires is None else expires - self._wall()
        return max(0.0, min(REVIEW_TTL_S, left)), found

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
        status = _to_mapping(body.get("status"))
        allowed = status.get("allowed") is True and status.get("denied") is not True
        self.counts["access", "allowed" if allowed else "denied"] += 1
        return REVIEW_TTL_S, allowed

    async def _post_review(
        self,
        group: str,
        kind: str,
        plural: str,
        spec: Mapping[str, Any],
        before_call: Callable[[], None] | None = None,
    ) -> Mapping[str, Any]:
        try:
            async with self._slots:
                # Not before there is a place: much may have been refused while this one waited.
                if before_call is not None:
                    before_call()
                answer = await self._api.call(
                    "POST",
                    f"/apis/{group}/{plural}",
                    {"apiVersion": group, "kind": kind, "spec": spec},
                    timeout_s=TIMEOUT_S,
                )
        except ApiUnreachableError as error:
            raise self._review_failed_error(kind) from error
        if answer.status not in (200, 201):
            raise self._review_failed_error(kind, answer)
        return answer.body

    def _review_failed_error(self, kind: str, answer: Answer | None = None) -> RequestError:
        self.counts[_REVIEWS[kind], "failed"] += 1
        wait = 1 if answer is None else max(1, round(answer.retry_after_s or 1))
        said = "does not answer" if answer is None else f"answers {answer.status}"
        return RequestError(
            503,
            "ReviewFailed",
            f"The Kubernetes API server {said} to the {kind}, so nobody can say whether this is"
            " allowed. Routes stay; try again.",
            headers={"Retry-After": str(wait)},
        )


def read_review(body: Mapping[str, Any], audience: str) -> Caller | None:
    """Return who a TokenReview says it is; None where it says that it is nobody for us.

    Args:
        body: the review, answered.
        audience: that has to be among those it was found good for.
    """
    status = _to_mapping(body.get("status"))
    audiences = status.get("audiences")
    if status.get("authenticated") is not True or status.get("error"):
        return None
    if not isinstance(audiences, list) or audience not in audiences:
        return None
    user = _to_mapping(status.get("user"))
    name = user.get("username")
    if not isinstance(name, str) or not name:
        return None
    extra = {
        str(key): tuple(str(value) for value in values)
        for key, values in _to_mapping(user.get("extra")).items()
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
    """Return who an agent is that has signed, as the cluster's rules know it.

    Args:
        agent: the PE.
        account: the service account that its job is fixed to, or None.
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
    """Return until when a token holds, in seconds since 1970; None where it does not say.

    Nothing is checked here: it only shortens how long the API server's answer is kept.
    """
    claims = _claims(token)
    found = None if claims is None else claims.get("exp")
    try:
        return float(found) if isinstance(found, int | float) else None
    except OverflowError:
        return None


def is_reviewable(token: str, audience: str, now: float) -> bool:
    """Say whether a token is worth a review: False means that it cannot be good.

    Args:
        token: as it was shown.
        audience: for whom it has to be made.
        now: seconds since 1970.
    """
    if len(token) > MAX_TOKEN or not token.isascii():
        return False
    claims = _claims(token)
    if claims is None:
        return False
    told = claims.get("aud")
    if audience not in (told if isinstance(told, list) else [told]):
        return False
    expires = token_expiry(token)
    return expires is None or now <= expires + LEEWAY_S


def _claims(token: str) -> Mapping[str, Any] | None:
    """Return what a token says of itself; None if it has not the form of one."""
    parts = token.split(".")
    if len(parts) != 3 or not all(parts):
        return None
    try:
        found = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


class Authenticator:
    """Says who sends a request: by its signature, or by its token.

    Args:
        reviews: for tokens.
        key_for: the key of the agent of a PE if that instance is the one registered, or None.
        account_for: the service account that a job (namespace, name) is fixed to, or None.
        wall: seconds since 1970.
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
        """Return who sends a request.

        Args:
            headers: all that are called ``Authorization``.
            method: of the request.
            path: as in the request line, with its query.
            body: returns that of the request.
            on_unknown: called before a token is reviewed that was not good before; may raise.
            repeatable: whether it may come twice under one signature, as what changes nothing may.
            reading: whether it changes nothing: `ReviewClient.review_token`.

        Raises:
            RequestError: 401, nobody known; 503, nobody could say.
        """
        shown = headers[0].strip() if len(headers) == 1 else ""
        if signature.is_signed(shown):
            try:
                return await self._verify_signature(shown, method, path, body, repeatable)
            except SignatureError as error:
                raise RequestError(401, error.code, str(error), headers=_REALM) from error
        scheme, _, token = shown.partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise RequestError(
                401,
                "TokenMissing",
                "This broker wants a token of the cluster: send the header `Authorization: Bearer"
                " <token>`. Jobs and the command line take it from STREAMBROKER_TOKEN.",
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
        shown = signature.read(header)
        key = self._key_for(shown.agent, shown.instance)
        if key is None:
            raise SignatureError("forged", f"{shown.agent} has no such agent; register again")
        told, now = await body(), self._wall()
        signature.verify(key, shown, method=method, path=path, body=told, now=now)
        if not repeatable and method not in ("GET", "HEAD", "OPTIONS"):
            self._replays.admit(shown, now)
        account = self._account_for(shown.agent.namespace, shown.agent.job)
        return signed_caller(shown.agent, account)


def _single_value(extra: Mapping[str, tuple[str, ...]], key: str) -> str:
    values = extra.get(key, ())
    return values[0] if len(values) == 1 else ""


def _to_mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
