"""REST guard of a broker in a cluster: authenticates and authorizes callers."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from aiohttp import web

from streambroker_core.errors import ManifestError
from streambroker_core.model import DEFAULT_NAMESPACE, RuleKey, name_of, rule_name_of
from streambroker_operator.errors import RequestError
from streambroker_operator.kubernetes.auth.authorize import authorise, is_forced
from streambroker_operator.kubernetes.auth.rbac import Caller, Verdict
from streambroker_operator.kubernetes.auth.token_review import Authenticator, ReviewClient
from streambroker_operator.rest.guard.authentication import RequestedNamespaces, is_reading
from streambroker_operator.rest.guard.rate_limits import CALLER_LIMITS
from streambroker_operator.rest.http import requests
from streambroker_operator.rest.http.paths import PATTERN, PORTS, REPORT
from streambroker_operator.security.token_file import Job, Principal

ALL_NAMESPACES = "*"
_CALLER = web.RequestKey("cluster caller", Caller)
_BOUND_ACCOUNT = web.RequestKey("binds", str)


class ClusterGuard:
    """Authenticates and authorizes REST requests.

    Args:
        account_for: returns the service account that a job (namespace, name) is bound to, or None.
        jobs_for: returns the names of a namespace's jobs that are bound to a service account.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        reviews: ReviewClient,
        account_for: Callable[[str, str], str | None],
        jobs_for: Callable[[str, str], Iterable[str]],
    ) -> None:
        self._authenticator = authenticator
        self._reviews = reviews
        self._account_for = account_for
        self._jobs_for = jobs_for

    async def identify(self, request: web.Request) -> str:
        """Return the name of the caller, with the pod or agent if known.

        Raises:
            RequestError: 401, unknown caller; 429, too many failed attempts from this address;
                503, the review failed.
        """
        with request.app[CALLER_LIMITS].limit_guesses(request) as on_unknown:
            caller = await self._authenticator.authenticate(
                request.headers.getall("Authorization", []),
                method=request.method,
                path=request.raw_path,
                body=request.read,
                on_unknown=on_unknown,
                # Reports change nothing in the cluster and may arrive every second.
                repeatable=is_reading(request) or requests.route_path(request) == REPORT,
                reading=is_reading(request),
            )
        request[_CALLER] = caller
        if caller.namespace:
            request[requests.HOME] = caller.namespace
        if caller.agent is not None:
            return f"{caller.user}/{caller.agent}"
        return f"{caller.user}/{caller.pod}" if caller.pod else caller.user

    async def authorise(self, request: web.Request, namespaces: RequestedNamespaces) -> Principal:
        """Return the caller and its permissions.

        Raises:
            RequestError: 403, not allowed; 503, the review failed.
        """
        caller = request[_CALLER]
        granted: set[str] = set()
        for namespace in namespaces.all_of or (() if namespaces.any_of else (DEFAULT_NAMESPACE,)):
            verdict = await self._authorise_one(request, caller, namespace)
            if isinstance(verdict, Principal):
                return verdict
            granted.add(namespace)
        granted |= await self._authorise_any(request, caller, namespaces.any_of)
        return Principal(
            name=caller.user,
            role="reader" if is_reading(request) else "admin",
            namespace_scope=None if ALL_NAMESPACES in granted else frozenset(granted),
        )

    def binding(self, request: web.Request) -> str | None:
        """Return the service account that a job is bound to from now on; None for no change."""
        return request.get(_BOUND_ACCOUNT)

    async def _authorise_any(
        self, request: web.Request, caller: Caller, names: tuple[str, ...]
    ) -> set[str]:
        """Return the namespaces that the caller may access; raise the last error if none."""
        allowed: set[str] = set()
        last_error: RequestError | None = None
        for namespace in names:
            try:
                await self._authorise_one(request, caller, namespace)
                allowed.add(namespace)
            except RequestError as error:
                last_error = error
        if last_error is not None and not allowed:
            raise last_error
        return allowed

    async def _authorise_one(
        self, request: web.Request, caller: Caller, namespace: str
    ) -> Verdict | Principal:
        """Authorize a caller by RBAC, or as the job itself."""
        path = requests.route_path(request)
        pe = requests.parse_pe(request) if "job" in request.match_info else None
        try:
            verdict = await authorise(
                self._reviews,
                caller,
                method=request.method,
                target=request.raw_path,
                path=path,
                namespace=namespace,
                pe=pe,
                bound=None if pe is None else self._account_for(pe.namespace, pe.job),
                name=_resource_name(request, path),
                reading=is_reading(request),
            )
        except RequestError as error:
            own_jobs = self._own_jobs(caller, namespace)
            # The ports of a set are checked one by one.
            is_set = (
                path in requests.LONG_BODY_PATHS
                and not is_reading(request)
                and not is_forced(request.raw_path)
            )
            if error.status == 403 and own_jobs and is_set:
                return Principal(name=caller.user, role="job", jobs=own_jobs)
            raise
        if verdict.bound_account is not None:
            request[_BOUND_ACCOUNT] = verdict.bound_account
        if verdict.is_own_job and pe is not None:
            jobs = frozenset({(pe.namespace, pe.job)})
            return Principal(name=caller.user, role="job", jobs=jobs)
        return verdict

    def _own_jobs(self, caller: Caller, namespace: str) -> frozenset[Job]:
        if caller.agent is not None:
            own = (caller.agent.namespace, caller.agent.job)
            return frozenset({own} if own[0] == namespace else ())
        if not caller.is_pod or caller.namespace != namespace:
            return frozenset()
        return frozenset((namespace, job) for job in self._jobs_for(namespace, caller.account))


def _resource_name(request: web.Request, path: str) -> str:
    """Return the name of the resource at a path; empty for none.

    A resource that does not exist yet has no name: its creator may choose any.
    """
    if path.startswith(PATTERN):
        pe = requests.parse_pe(request)
        key = RuleKey(pe.namespace, pe.job, request.match_info["id"])
        rule = request.app[requests.RUNTIME].rules.get(key)
        return "" if rule is None else rule_name_of(rule.rule)
    kind = next((kind for kind, port in PORTS.items() if path.startswith(port)), None)
    if kind is None:
        return ""
    try:
        stored = request.app[requests.RUNTIME].store.get(kind, requests.parse_port(request))
    except ManifestError:
        stored = None  # invalid port name; the handler will report it
    return "" if stored is None else name_of(stored.resource)
