"""Who may do what: one row for each path and method; what has no row is refused.

Rule 1: a job may read and change its own ports and nothing else, by being itself. A job is itself
if it calls from a pod of the service account that first registered an agent of the job.
Rule 2: everything else is asked of the cluster's own rules: may this user ``patch imports/filter``?
Who may change the whole of a resource may change a part of it.
Rule 3: pod labels prove nothing, since a driver may create pods.
Rule 4: to take what others declare (``force``) needs one right more, and none less.
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
    """Who calls, as the API server or a signature says.

    Attributes:
        user: name of the user; ``system:serviceaccount:<namespace>:<account>`` of an account.
        uid: of the user; may be empty.
        groups: of the user.
        extra: what else the API server knows of it.
        namespace: of the service account; empty for other users.
        account: the service account's name; empty for other users.
        pod: name of the pod that the token is bound to; empty for none.
        pod_uid: of that pod; empty for none.
        agent: the PE whose registered agent has signed; None where a token was shown.
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
        """Whether this is a pod's token, or an agent's signature, which stands for one."""
        return self.agent is not None or bool(self.pod and self.pod_uid)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class AccessRequest:
    """What the cluster's rules are asked: may the user do this to that?"""

    verb: str
    resource: str
    subresource: str = ""

    def __str__(self) -> str:
        part = f"/{self.subresource}" if self.subresource else ""
        return f"{self.verb} {self.resource}{part}"


AccessRequests: TypeAlias = tuple[tuple[AccessRequest, ...], ...]
"""Of each group one has to be granted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathPolicy:
    """Who may use a path.

    Attributes:
        requests: what others than the job itself need; empty for nobody but the job.
        allows_job: the job itself may, without being asked.
        registers: the job is fixed to the caller's account by this.
        allows_authenticated: whoever is known may.
        steers: it changes fields that others may declare, and may be told to take them.
    """

    requests: AccessRequests = ()
    allows_job: bool = False
    registers: bool = False
    allows_authenticated: bool = False
    steers: bool = False


def _request(verb: str, resource: str) -> tuple[AccessRequest, ...]:
    return (AccessRequest(verb=verb, resource=resource),)


def _part_policy(resource: str, part: str, *, steers: bool) -> PathPolicy:
    """Return the rule for changing a part of a resource."""
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
        # What others declare cannot be taken away, with force neither.
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
    # A set may name any port of the namespace; a job changes its own at their paths.
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
    # The control log comes to operators through the job's imports.
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
"""By method and path, as the router has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What follows from a rule.

    Attributes:
        allowed: without asking anybody.
        is_own_job: it is allowed because the caller is the job itself.
        requests: what has to be granted otherwise; empty where it is refused.
        bound_account: the account to which the job is fixed from now on, or None.
        reason: a sentence, where it is refused.
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
    """Say what a caller may do, as far as that can be said without asking.

    Args:
        caller: who.
        method: of the request; HEAD counts as GET.
        path: as the router has it, with ``{job}`` and the like.
        pe: the PE that the path names, or None.
        bound: the account that the PE's job is fixed to; None before its first registration.
        force: whether fields are to be taken that others declare: that is for those who may
            change all of the resource, be it the job itself or not.
    """
    if method == "OPTIONS":
        return Verdict(allowed=True)
    rule = POLICIES.get(("GET" if method == "HEAD" else method, path))
    if rule is None:
        return Verdict(reason=f"Nobody may {method} {path}: it is not known who might.")
    if force:
        return _judge_forced(rule, path, _judge_plain(rule, caller, pe, bound))
    return _judge_plain(rule, caller, pe, bound)


def _judge_forced(rule: PathPolicy, path: str, usual: Verdict) -> Verdict:
    """Return what follows where fields are to be taken, from what would follow otherwise."""
    if not rule.steers:
        return Verdict(reason="Nothing here can be taken from others: leave out force.")
    if not usual.allowed and not usual.requests:
        return usual
    of_ports = "exports" if path.startswith(_EXPORT) else "imports"
    whole = _request("patch", _RULE_RESOURCE if path.startswith(JOBS) else of_ports)
    return Verdict(requests=(*(group for group in usual.requests if group != whole), whole))


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
    """Allow a job what is its own; None where it is somebody else's."""
    if caller.agent is not None:
        same = (caller.agent.namespace, caller.agent.job) == (pe.namespace, pe.job)
        return Verdict(allowed=True, is_own_job=True) if same else None
    if not caller.is_pod or bound is None:
        return None
    same = caller.namespace == pe.namespace and caller.account == bound
    return Verdict(allowed=True, is_own_job=True) if same else None


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
    """Return what a caller would need, in words."""
    return " and ".join(" or ".join(f"`{ask}`" for ask in group) for group in requests)
