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
from typing import Any, Generic, TypeVar

from streambroker_core.errors import SignatureError
from streambroker_core.model import PeKey
from streambroker_core.wire.broker import request_signature as signature
from streambroker_core.wire.manifests.ports import GROUP, VERSION
from streambroker_operator.errors import RequestError
from streambroker_operator.kubernetes.auth.rbac import Ask, Asks, Caller, told
from streambroker_operator.kubernetes.client.http_api import Answer, Api, ApiUnreachableError

AUDIENCE = "streambroker"
KEEP_S = 10.0
"""How long a review holds, in seconds; the API server itself keeps them for as long."""
KEEP_FAILURE_S = 2.0
MAX_KEPT = 10_000
MAX_TOKEN = 16 * 1024
"""Characters; a longer token is refused without a review."""
AT_ONCE = 16
"""Reviews under way at the same time."""
TIMEOUT_S = 5.0
READ_ON_S = 3600.0
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


class Kept(Generic[K, V]):
    """Answers that hold for a while; while one is being fetched, everybody waits for that one.

    Args:
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: OrderedDict[K, tuple[float, V]] = OrderedDict()
        self._under_way: dict[K, asyncio.Task[tuple[float, V]]] = {}

    async def get(self, key: K, fetch: Callable[[], Awaitable[tuple[float, V]]]) -> V:
        """Return an answer.

        Args:
            key: what is asked.
            fetch: returns the answer and for how many seconds it holds; what it raises is not kept.
        """
        known = self._kept.get(key)
        if known is not None and self._clock() < known[0]:
            return known[1]
        task = self._under_way.get(key)
        if task is None:
            task = asyncio.ensure_future(self._fetched(key, fetch))
            self._under_way[key] = task
            task.add_done_callback(lambda done: self._over(key, done))
        # Who does not wait any longer takes nothing away from the others.
        return (await asyncio.shield(task))[1]

    def last(self, key: K, within_s: float = math.inf) -> V | None:
        """Return what was answered last, even if it holds no longer; None if nothing is known.

        Args:
            key: what is asked.
            within_s: for how long it may not have held any more, in seconds.
        """
        known = self._kept.get(key)
        return None if known is None or self._clock() - known[0] > within_s else known[1]

    async def _fetched(
        self, key: K, fetch: Callable[[], Awaitable[tuple[float, V]]]
    ) -> tuple[float, V]:
        begun = self._clock()
        keep_s, value = await fetch()
        self._kept[key] = (begun + keep_s, value)
        self._kept.move_to_end(key)
        if len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return keep_s, value

    def _over(self, key: K, task: asyncio.Task[tuple[float, V]]) -> None:
        self._under_way.pop(key, None)
        if not task.cancelled():
            task.exception()  # those who waited have it; nobody may be left


class Reviews:
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
        self._callers: Kept[bytes, Caller | None] = Kept(clock)
        self._grants: Kept[tuple[Hashable, ...], bool] = Kept(clock)
        self._places = asyncio.Semaphore(AT_ONCE)
        self.counts: Counter[tuple[str, str]] = Counter()
        """Questions asked: ``token`` and ``access``, each ``allowed``, ``denied`` or ``failed``."""

    async def caller(
        self,
        token: str,
        unknown: Callable[[], None] | None = None,
        *,
        reading: bool = False,
    ) -> Caller:
        """Return whose token it is.

        Args:
            token: as it was shown.
            unknown: called before the API server is shown a token that was not good before; what
                it raises is raised here.
            reading: whether it is for something that changes nothing: then, while nobody can say,
                the last answer counts, for `READ_ON_S`.

        Raises:
            RequestError: 401, nobody's, or not for this broker; 503, nobody could say.
        """
        shown = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        found = None
        if may_be_good(token, self._audience, self._wall()):
            # Who guesses has never shown one that was good, so those who did do not pay for them.
            first = unknown if self._callers.last(shown) is None else None
            review = self._callers.get(shown, lambda: self._review(token, first))
            found = await self._or_last(review, self._callers, shown, reading)
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

    async def _or_last(self, review: Awaitable[V], kept: Kept[K, V], key: K, reading: bool) -> V:
        """Return a review's answer; for a read while nobody can say, the last one if it was good.

        An API server that is away takes nobody's sight of what goes on without it.
        """
        try:
            return await review
        except RequestError as error:
            last = kept.last(key, READ_ON_S) if reading and error.status == 503 else None
            if not last:
                raise
            return last

    async def check(
        self, caller: Caller, asks: Asks, namespace: str, name: str = "", *, reading: bool = False
    ) -> None:
        """Return if the cluster's rules let a caller do something.

        Args:
            caller: who.
            asks: of each group one has to be granted.
            namespace: where; ``*`` for everywhere.
            name: of the resource; empty where it is not known.
            reading: as of `caller`.

        Raises:
            RequestError: 403, they do not; 503, nobody could say.
        """
        for group in asks:
            if not await self._granted(caller, group, namespace, name, reading):
                raise RequestError(
                    403,
                    "NotYours",
                    f"{caller.user} needs {told((group,))} of {namespace} for that. The job itself"
                    " may change its own ports, from pods of the service account that registered"
                    " it first.",
                )

    async def _granted(
        self, caller: Caller, asks: Sequence[Ask], namespace: str, name: str, reading: bool
    ) -> bool:
        for ask in asks:
            who = (caller.user, caller.uid, caller.groups, tuple(sorted(caller.extra.items())))
            key = (*who, ask, namespace, name)
            review = self._grants.get(key, lambda: self._access(caller, ask, namespace, name))  # noqa: B023
            if await self._or_last(review, self._grants, key, reading):
                return True
        return False

    async def _review(
        self, token: str, first: Callable[[], None] | None
    ) -> tuple[float, Caller | None]:
        body = await self._asked(
            "authentication.k8s.io/v1",
            "TokenReview",
            "tokenreviews",
            {"token": token, "audiences": [self._audience]},
            first,
        )
        found = read_review(body, self._audience)
        self.counts["token", "denied" if found is None else "allowed"] += 1
        if found is None:
            return KEEP_FAILURE_S, None
        expires = expiry_of(token)
        left = KEEP_S if expires is None else expires - self._wall()
        return max(0.0, min(KEEP_S, left)), found

    async def _access(
        self, caller: Caller, ask: Ask, namespace: str, name: str
    ) -> tuple[float, bool]:
        attributes = {
            "namespace": "" if namespace == "*" else namespace,
            "verb": ask.verb,
            "group": GROUP,
            "version": VERSION,
            "resource": ask.resource,
            "subresource": ask.subresource,
            "name": name,
        }
        body = await self._asked(
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
        status = _object(body.get("status"))
        allowed = status.get("allowed") is True and status.get("denied") is not True
        self.counts["access", "allowed" if allowed else "denied"] += 1
        return KEEP_S, allowed

    async def _asked(
        self,
        group: str,
        kind: str,
        plural: str,
        spec: Mapping[str, Any],
        first: Callable[[], None] | None = None,
    ) -> Mapping[str, Any]:
        try:
            async with self._places:
                # Not before there is a place: much may have been refused while this one waited.
                if first is not None:
                    first()
                answer = await self._api.call(
                    "POST",
                    f"/apis/{group}/{plural}",
                    {"apiVersion": group, "kind": kind, "spec": spec},
                    timeout_s=TIMEOUT_S,
                )
        except ApiUnreachableError as error:
            raise self._unknown(kind) from error
        if answer.status not in (200, 201):
            raise self._unknown(kind, answer)
        return answer.body

    def _unknown(self, kind: str, answer: Answer | None = None) -> RequestError:
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
    status = _object(body.get("status"))
    audiences = status.get("audiences")
    if status.get("authenticated") is not True or status.get("error"):
        return None
    if not isinstance(audiences, list) or audience not in audiences:
        return None
    user = _object(status.get("user"))
    name = user.get("username")
    if not isinstance(name, str) or not name:
        return None
    extra = {
        str(key): tuple(str(value) for value in values)
        for key, values in _object(user.get("extra")).items()
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
        pod=_one(extra, f"{_POD}name"),
        pod_uid=_one(extra, f"{_POD}uid"),
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


def expiry_of(token: str) -> float | None:
    """Return until when a token holds, in seconds since 1970; None where it does not say.

    Nothing is checked here: it only shortens how long the API server's answer is kept.
    """
    claims = _claims(token)
    found = None if claims is None else claims.get("exp")
    try:
        return float(found) if isinstance(found, int | float) else None
    except OverflowError:
        return None


def may_be_good(token: str, audience: str, now: float) -> bool:
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
    expires = expiry_of(token)
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


class Identities:
    """Says who sends a request: by its signature, or by its token.

    Args:
        reviews: for tokens.
        key_of: the key of the agent of a PE if that instance is the one registered, or None.
        account_of: the service account that a job (namespace, name) is fixed to, or None.
        wall: seconds since 1970.
    """

    def __init__(
        self,
        reviews: Reviews,
        *,
        key_of: Callable[[PeKey, str], bytes | None],
        account_of: Callable[[str, str], str | None],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._reviews = reviews
        self._key_of = key_of
        self._account_of = account_of
        self._wall = wall
        self._replays = signature.Replays()

    async def caller(
        self,
        headers: Sequence[str],
        *,
        method: str,
        path: str,
        body: Callable[[], Awaitable[bytes]],
        unknown: Callable[[], None] | None = None,
        repeatable: bool = False,
        reading: bool = False,
    ) -> Caller:
        """Return who sends a request.

        Args:
            headers: all that are called ``Authorization``.
            method: of the request.
            path: as in the request line, with its query.
            body: returns that of the request.
            unknown: called before a token is reviewed that was not good before; may raise.
            repeatable: whether it may come twice under one signature, as what changes nothing may.
            reading: whether it changes nothing: `Reviews.caller`.

        Raises:
            RequestError: 401, nobody known; 503, nobody could say.
        """
        shown = headers[0].strip() if len(headers) == 1 else ""
        if signature.is_signed(shown):
            try:
                return await self._signed(shown, method, path, body, repeatable)
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
        return await self._reviews.caller(token.strip(), unknown, reading=reading)

    async def _signed(
        self,
        header: str,
        method: str,
        path: str,
        body: Callable[[], Awaitable[bytes]],
        repeatable: bool,
    ) -> Caller:
        shown = signature.read(header)
        key = self._key_of(shown.agent, shown.instance)
        if key is None:
            raise SignatureError("forged", f"{shown.agent} has no such agent; register again")
        told, now = await body(), self._wall()
        signature.verify(key, shown, method=method, path=path, body=told, now=now)
        if not repeatable and method not in ("GET", "HEAD", "OPTIONS"):
            self._replays.admit(shown, now)
        account = self._account_of(shown.agent.namespace, shown.agent.job)
        return signed_caller(shown.agent, account)


def _one(extra: Mapping[str, tuple[str, ...]], key: str) -> str:
    values = extra.get(key, ())
    return values[0] if len(values) == 1 else ""


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
