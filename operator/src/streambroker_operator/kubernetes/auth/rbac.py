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
from streambroker_operator.rest.http.paths import (
    API,
    APPLY,
    COMMANDS,
    EMIT,
    ENABLE,
    EXPLAIN,
    JOBS,
    OPENAPI,
    PATTERN,
    PATTERNS,
    PE,
    PORTS,
    REPORT,
    SEND,
    TUPLE,
    WHATIF,
)


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


def _request(verb: str, resource: str) -> tuple[AccessRequest, ...]:
    return (AccessRequest(verb=verb, resource=resource),)


def _part_policy(resource: str, part: str, *, steers: bool) -> PathPolicy:
    """Return the policy for changing a part of a resource."""
    return PathPolicy(
        requests=(
            (
                AccessRequest(verb="patch", resource=resource, subresource=part),
                AccessRequest(verb="patch", resource=resource),
            ),
        ),
        allows_job=True,
        steers=steers,
    )


_EXPORT, _IMPORT = PORTS["Export"], PORTS["Import"]
_RULE_RESOURCE = OBJECTS[RULE]

_LIST_POLICY = PathPolicy(requests=(_request("list", "exports"), _request("list", "imports")))
_PE_POLICY = PathPolicy(
    requests=(_request("get", "exports"), _request("get", "imports")), allows_job=True
)


def _port_policies(path: str, resource: str) -> dict[tuple[str, str], PathPolicy]:
    return {
        ("GET", path): PathPolicy(requests=(_request("get", resource),), allows_job=True),
        ("PUT", path): PathPolicy(
            requests=(_request("create", resource), _request("patch", resource)),
            allows_job=True,
            steers=True,
        ),
        ("PATCH", path): PathPolicy(
            requests=(_request("patch", resource),), allows_job=True, steers=True
        ),
        ("DELETE", path): PathPolicy(requests=(_request("delete", resource),), allows_job=True),
        ("POST", f"{path}/release"): PathPolicy(
            requests=(_request("patch", resource),), allows_job=True
        ),
    }


def _part_policies(
    path: str, resource: str, part: str, *methods: str
) -> dict[tuple[str, str], PathPolicy]:
    return {
        ("GET", path): PathPolicy(requests=(_request("get", resource),), allows_job=True),
        # A deletion cannot remove what others declare, even with force.
        **{
            (method, path): _part_policy(resource, part, steers=method != "DELETE")
            for method in methods
        },
    }


POLICIES: Mapping[tuple[str, str], PathPolicy] = {
    ("GET", OPENAPI): PathPolicy(allows_authenticated=True),
    ("GET", f"{API}/exports"): PathPolicy(requests=(_request("list", "exports"),)),
    ("GET", f"{API}/imports"): PathPolicy(requests=(_request("list", "imports"),)),
    ("GET", f"{API}/pes"): _LIST_POLICY,
    ("GET", f"{API}/routes"): _LIST_POLICY,
    ("GET", f"{API}/events"): _LIST_POLICY,
    ("GET", EXPLAIN): _LIST_POLICY,
    ("GET", f"{API}/lint"): _LIST_POLICY,
    ("POST", WHATIF): _LIST_POLICY,
    # A set may name any port of the namespace. A job changes its own ports at their paths.
    ("POST", APPLY): PathPolicy(
        requests=tuple(
            _request(verb, resource)
            for resource in ("exports", "imports")
            for verb in ("create", "patch", "delete")
        )
    ),
    ("GET", f"{API}/top"): _LIST_POLICY,
    ("GET", PE): _PE_POLICY,
    ("PUT", PE): PathPolicy(allows_job=True, registers=True),
    ("DELETE", PE): PathPolicy(
        requests=(_request("delete", "exports"), _request("delete", "imports")), allows_job=True
    ),
    ("PUT", REPORT): PathPolicy(allows_job=True),
    ("POST", COMMANDS): PathPolicy(allows_job=True),
    # Operators receive the control log through the imports of the job.
    ("POST", SEND): _part_policy("imports", "control", steers=False),
    ("GET", SEND + TUPLE): PathPolicy(requests=(_request("get", "imports"),), allows_job=True),
    ("POST", EMIT): _part_policy("exports", "control", steers=False),
    ("GET", EMIT + TUPLE): PathPolicy(requests=(_request("get", "exports"),), allows_job=True),
    **_port_policies(_EXPORT, "exports"),
    **_part_policies(f"{_EXPORT}/properties", "exports", "properties", "PUT", "PATCH", "DELETE"),
    **_part_policies(f"{_EXPORT}/property/{{name}}", "exports", "properties", "PUT", "DELETE"),
    **_port_policies(_IMPORT, "imports"),
    **_part_policies(f"{_IMPORT}/filter", "imports", "filter", "PUT"),
    **_part_policies(f"{_IMPORT}/subscription", "imports", "streams", "PUT"),
    **_part_policies(f"{_IMPORT}/streams", "imports", "streams", "PUT"),
    ("GET", PATTERNS): PathPolicy(requests=(_request("list", _RULE_RESOURCE),), allows_job=True),
    ("GET", PATTERN): PathPolicy(requests=(_request("get", _RULE_RESOURCE),), allows_job=True),
    ("PUT", PATTERN): PathPolicy(
        requests=(_request("create", _RULE_RESOURCE), _request("patch", _RULE_RESOURCE)),
        allows_job=True,
        steers=True,
    ),
    ("DELETE", PATTERN): PathPolicy(
        requests=(_request("delete", _RULE_RESOURCE),), allows_job=True
    ),
    ("POST", ENABLE): _part_policy(_RULE_RESOURCE, "enable", steers=True),
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
    full_patch = _request("patch", _RULE_RESOURCE if path.startswith(JOBS) else resource)
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
