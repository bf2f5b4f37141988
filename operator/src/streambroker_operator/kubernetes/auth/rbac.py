"""Access policies of the REST paths: one entry per path and method; others are denied.

- A job may read and change its own ports and nothing else. A caller acts as the job if it calls
  from a pod of the service account that first registered an agent of the job.
- Everything else is up to the cluster's RBAC rules: may this user ``patch imports/filter``? The
  permission to patch a whole resource includes its parts.
- Pod labels prove nothing, since a driver may create pods.
- ``force`` (taking over fields that others declare) requires an additional permission.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from streambroker_core.model import RULE, PeKey
from streambroker_core.wire.manifests.ports import OBJECTS
from streambroker_operator.rest.http import paths


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Authenticated caller, from a TokenReview or a signature.

    Attributes:
        user: name of the user; ``system:serviceaccount:<namespace>:<account>`` of an account.
        uid: uid of the user; may be empty.
        namespace: namespace of the service account; empty for other users.
        account: name of the service account; empty for other users.
        pod: name of the pod that the token is bound to; empty for none.
        agent: PE of the registered agent that signed the request; None with a token.
    """

    user: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    namespace: str = ""
    account: str = ""
    pod: str = ""
    pod_uid: str = ""
    agent: PeKey | None = None

    @property
    def is_pod(self) -> bool:
        """Whether the caller has a pod's token or an agent's signature, which is equivalent."""
        return self.agent is not None or bool(self.pod and self.pod_uid)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class AccessRequest:
    """Permission to check with the API server."""

    verb: str
    resource: str
    subresource: str = ""

    def __str__(self) -> str:
        part = f"/{self.subresource}" if self.subresource else ""
        return f"{self.verb} {self.resource}{part}"


AccessRequests: TypeAlias = tuple[tuple[AccessRequest, ...], ...]
"""Groups of permissions; one of each group must be granted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathPolicy:
    """Access policy of a path.

    Attributes:
        requests: permissions for callers other than the job; empty to allow only the job.
        allows_job: whether the job itself is allowed without a review.
        registers: whether the request binds the job to the caller's account.
        allows_authenticated: whether every authenticated caller is allowed.
        steers: whether the request may take over fields that others declare.
    """

    requests: AccessRequests = ()
    allows_job: bool = False
    registers: bool = False
    allows_authenticated: bool = False
    steers: bool = False


def _permission(text: str) -> AccessRequest:
    """Return the permission written as ``verb resource`` or ``verb resource/part``."""
    verb, _, target = text.partition(" ")
    resource, _, part = target.partition("/")
    return AccessRequest(verb=verb, resource=resource, subresource=part)


def _policy(*permissions: str, allows_job: bool = True, steers: bool = False) -> PathPolicy:
    """Return the policy that requires all these permissions."""
    requests = tuple((_permission(text),) for text in permissions)
    return PathPolicy(requests=requests, allows_job=allows_job, steers=steers)


def _part_policy(resource: str, part: str, *, steers: bool) -> PathPolicy:
    """Return the policy for changing a part of a resource."""
    either = (_permission(f"patch {resource}/{part}"), _permission(f"patch {resource}"))
    return PathPolicy(requests=(either,), allows_job=True, steers=steers)


_EXPORT, _IMPORT = paths.PORTS["Export"], paths.PORTS["Import"]
_RULES = OBJECTS[RULE]

_LIST_POLICY = _policy("list exports", "list imports", allows_job=False)


def _port_policies(path: str, resource: str) -> dict[tuple[str, str], PathPolicy]:
    return {
        ("GET", path): _policy(f"get {resource}"),
        ("PUT", path): _policy(f"create {resource}", f"patch {resource}", steers=True),
        ("PATCH", path): _policy(f"patch {resource}", steers=True),
        ("DELETE", path): _policy(f"delete {resource}"),
        ("POST", f"{path}/release"): _policy(f"patch {resource}"),
    }


def _part_policies(
    path: str, resource: str, part: str, *methods: str
) -> dict[tuple[str, str], PathPolicy]:
    return {
        ("GET", path): _policy(f"get {resource}"),
        # A deletion cannot remove what others declare, even with force.
        **{
            (method, path): _part_policy(resource, part, steers=method != "DELETE")
            for method in methods
        },
    }


POLICIES: Mapping[tuple[str, str], PathPolicy] = {
    ("GET", paths.OPENAPI): PathPolicy(allows_authenticated=True),
    ("GET", paths.ASYNCAPI): _policy("list exports", allows_job=False),
    ("GET", f"{paths.API}/exports"): _policy("list exports", allows_job=False),
    ("GET", f"{paths.API}/imports"): _policy("list imports", allows_job=False),
    ("GET", f"{paths.API}/pes"): _LIST_POLICY,
    ("GET", f"{paths.API}/routes"): _LIST_POLICY,
    ("GET", f"{paths.API}/events"): _LIST_POLICY,
    ("GET", paths.EXPLAIN): _LIST_POLICY,
    ("GET", f"{paths.API}/lint"): _LIST_POLICY,
    ("POST", paths.WHATIF): _LIST_POLICY,
    # A set may name any port of the namespace. A job changes its own ports at their paths.
    ("POST", paths.APPLY): _policy(
        *(
            f"{verb} {resource}"
            for resource in ("exports", "imports")
            for verb in ("create", "patch", "delete")
        ),
        allows_job=False,
    ),
    ("GET", f"{paths.API}/top"): _LIST_POLICY,
    ("GET", paths.GRAPH): _LIST_POLICY,
    ("GET", paths.QUOTA): _LIST_POLICY,
    ("GET", paths.HISTORY): _LIST_POLICY,
    ("GET", paths.NAMES): _LIST_POLICY,
    ("POST", paths.CHECK): _LIST_POLICY,
    ("GET", paths.UI): _LIST_POLICY,
    ("GET", paths.PE): _policy("get exports", "get imports"),
    ("PUT", paths.PE): PathPolicy(allows_job=True, registers=True),
    ("DELETE", paths.PE): _policy("delete exports", "delete imports"),
    ("PUT", paths.REPORT): PathPolicy(allows_job=True),
    ("POST", paths.COMMANDS): PathPolicy(allows_job=True),
    # Operators receive the control log through the imports of the job.
    ("POST", paths.SEND): _part_policy("imports", "control", steers=False),
    ("GET", paths.SEND + paths.TUPLE): _policy("get imports"),
    ("POST", paths.EMIT): _part_policy("exports", "control", steers=False),
    ("GET", paths.EMIT + paths.TUPLE): _policy("get exports"),
    ("PUT", paths.SNAPSHOT): _policy("patch exports"),
    ("GET", paths.ROWS): _policy("get exports/peek", allows_job=False),
    **_port_policies(_EXPORT, "exports"),
    **_part_policies(f"{_EXPORT}/properties", "exports", "properties", "PUT", "PATCH", "DELETE"),
    **_part_policies(f"{_EXPORT}/property/{{name}}", "exports", "properties", "PUT", "DELETE"),
    **_port_policies(_IMPORT, "imports"),
    **_part_policies(f"{_IMPORT}/filter", "imports", "filter", "PUT"),
    **_part_policies(f"{_IMPORT}/subscription", "imports", "streams", "PUT"),
    **_part_policies(f"{_IMPORT}/streams", "imports", "streams", "PUT"),
    ("GET", paths.PATTERNS): _policy(f"list {_RULES}"),
    ("GET", paths.PATTERN): _policy(f"get {_RULES}"),
    ("PUT", paths.PATTERN): _policy(f"create {_RULES}", f"patch {_RULES}", steers=True),
    ("DELETE", paths.PATTERN): _policy(f"delete {_RULES}"),
    ("POST", paths.ENABLE): _part_policy(_RULES, "enable", steers=True),
}
"""By method and path as in the router."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Result of a policy.

    Attributes:
        allowed: allowed, without a review as far as `judge` decides.
        is_own_job: allowed because the caller is the job itself; only then capabilities may be
            shown.
        requests: otherwise the required permissions; empty if denied.
        bound_account: account to which the job is bound from now on, or None.
        reason: sentence, if denied.
    """

    allowed: bool = False
    is_own_job: bool = False
    requests: AccessRequests = ()
    bound_account: str | None = None
    reason: str = ""


def judge(
    caller: Caller,
    *,
    method: str,
    path: str,
    pe: PeKey | None = None,
    bound: str | None = None,
    force: bool = False,
) -> Verdict:
    """Return the verdict on a request, as far as it is possible without a review.

    `path` is the router's path with placeholders such as ``{job}``; HEAD counts as GET. `bound` is
    the account that the PE's job is bound to; None before its first registration. `force` requires
    permission to patch the whole resource, also for the job itself.
    """
    if method == "OPTIONS":
        return Verdict(allowed=True)
    policy = POLICIES.get(("GET" if method == "HEAD" else method, path))
    if policy is None:
        return Verdict(reason=f"{method} {path} is not allowed: it has no access policy.")
    if force:
        return _judge_forced(policy, path, _judge_plain(policy, caller, pe, bound))
    return _judge_plain(policy, caller, pe, bound)


def _judge_forced(rule: PathPolicy, path: str, usual: Verdict) -> Verdict:
    """Return the verdict on a forced request, derived from the one without force."""
    if not rule.steers:
        return Verdict(reason="Nothing here can be taken over from others: leave out force.")
    if not usual.allowed and not usual.requests:
        return usual
    resource = "exports" if path.startswith(_EXPORT) else "imports"
    resource = _RULES if path.startswith(paths.JOBS) else resource
    full_patch = (_permission(f"patch {resource}"),)
    return Verdict(
        requests=(*(group for group in usual.requests if group != full_patch), full_patch)
    )


def _judge_plain(rule: PathPolicy, caller: Caller, pe: PeKey | None, bound: str | None) -> Verdict:
    if rule.allows_authenticated:
        return Verdict(allowed=True)
    if rule.allows_job and pe is not None:
        verdict = (
            _judge_registration(caller, pe, bound)
            if rule.registers
            else _judge_job(caller, pe, bound)
        )
        if verdict is not None:
            return verdict
    if rule.requests:
        return Verdict(requests=rule.requests)
    return Verdict(reason=f"Only the agents of job {_job(pe)} may do that.")


def _judge_job(caller: Caller, pe: PeKey, bound: str | None) -> Verdict | None:
    """Allow a job to access its own resources; return None for those of others."""
    if caller.agent is not None:
        is_same = (caller.agent.namespace, caller.agent.job) == (pe.namespace, pe.job)
        return Verdict(allowed=True, is_own_job=True) if is_same else None
    if not caller.is_pod or bound is None:
        return None
    is_same = caller.namespace == pe.namespace and caller.account == bound
    return Verdict(allowed=True, is_own_job=True) if is_same else None


def _judge_registration(caller: Caller, pe: PeKey, bound: str | None) -> Verdict:
    if caller.agent is not None:
        if caller.agent == pe:
            return Verdict(allowed=True, is_own_job=True)
        return Verdict(reason=f"The agent of {caller.agent} cannot register for {pe}.")
    if not caller.is_pod:
        return Verdict(
            reason="An agent registers with a token that is bound to its pod: mount a projected"
            " token "
            "with the audience streambroker."
        )
    if caller.namespace != pe.namespace:
        return Verdict(
            reason=f"The job {_job(pe)} is of another namespace than the pod, {caller.namespace}."
        )
    if bound is not None and bound != caller.account:
        return Verdict(
            reason=f"The job {_job(pe)} belongs to the service account {bound}, not"
            f" {caller.account}."
        )
    return Verdict(
        allowed=True, is_own_job=True, bound_account=caller.account if bound is None else None
    )


def _job(pe: PeKey | None) -> str:
    return "" if pe is None else f"{pe.namespace}/{pe.job}"


def describe_requests(requests: Sequence[Sequence[AccessRequest]]) -> str:
    """Return the required permissions as text."""
    return " and ".join(" or ".join(f"`{request}`" for request in group) for group in requests)
