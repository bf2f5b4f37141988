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
    EMIT,
    ENABLE,
    ERRANDS,
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
    def in_pod(self) -> bool:
        """Whether this is a pod's token, or an agent's signature, which stands for one."""
        return self.agent is not None or bool(self.pod and self.pod_uid)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Ask:
    """What the cluster's rules are asked: may the user do this to that?"""

    verb: str
    resource: str
    subresource: str = ""

    def __str__(self) -> str:
        part = f"/{self.subresource}" if self.subresource else ""
        return f"{self.verb} {self.resource}{part}"


Asks: TypeAlias = tuple[tuple[Ask, ...], ...]
"""Of each group one has to be granted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Who may use a path.

    Attributes:
        asks: what others than the job itself need; empty for nobody but the job.
        own: the job itself may, without being asked.
        registers: the job is fixed to the caller's account by this.
        known: whoever is known may.
        steers: it changes fields that others may declare, and may be told to take them.
    """

    asks: Asks = ()
    own: bool = False
    registers: bool = False
    known: bool = False
    steers: bool = False


def _ask(verb: str, resource: str) -> tuple[Ask, ...]:
    return (Ask(verb=verb, resource=resource),)


def _part(resource: str, part: str, *, steers: bool) -> Rule:
    """Return the rule for changing a part of a resource."""
    return Rule(
        asks=(
            (
                Ask(verb="patch", resource=resource, subresource=part),
                Ask(verb="patch", resource=resource),
            ),
        ),
        own=True,
        steers=steers,
    )


_EXPORT, _IMPORT = PORTS["Export"], PORTS["Import"]
_RULES = OBJECTS[RULE]

_LISTING = Rule(asks=(_ask("list", "exports"), _ask("list", "imports")))
_OWN_PE = Rule(asks=(_ask("get", "exports"), _ask("get", "imports")), own=True)


def _port(path: str, resource: str) -> dict[tuple[str, str], Rule]:
    return {
        ("GET", path): Rule(asks=(_ask("get", resource),), own=True),
        ("PUT", path): Rule(
            asks=(_ask("create", resource), _ask("patch", resource)), own=True, steers=True
        ),
        ("PATCH", path): Rule(asks=(_ask("patch", resource),), own=True, steers=True),
        ("DELETE", path): Rule(asks=(_ask("delete", resource),), own=True),
        ("POST", f"{path}/release"): Rule(asks=(_ask("patch", resource),), own=True),
    }


def _parts(path: str, resource: str, part: str, *methods: str) -> dict[tuple[str, str], Rule]:
    return {
        ("GET", path): Rule(asks=(_ask("get", resource),), own=True),
        # What others declare cannot be taken away, with force neither.
        **{(method, path): _part(resource, part, steers=method != "DELETE") for method in methods},
    }


RULES: Mapping[tuple[str, str], Rule] = {
    ("GET", OPENAPI): Rule(known=True),
    ("GET", f"{API}/exports"): Rule(asks=(_ask("list", "exports"),)),
    ("GET", f"{API}/imports"): Rule(asks=(_ask("list", "imports"),)),
    ("GET", f"{API}/pes"): _LISTING,
    ("GET", f"{API}/routes"): _LISTING,
    ("GET", f"{API}/events"): _LISTING,
    ("GET", EXPLAIN): _LISTING,
    ("GET", f"{API}/lint"): _LISTING,
    ("POST", WHATIF): _LISTING,
    # A set may name any port of the namespace; a job changes its own at their paths.
    ("POST", APPLY): Rule(
        asks=tuple(
            _ask(verb, resource)
            for resource in ("exports", "imports")
            for verb in ("create", "patch", "delete")
        )
    ),
    ("GET", f"{API}/top"): _LISTING,
    ("GET", PE): _OWN_PE,
    ("PUT", PE): Rule(own=True, registers=True),
    ("DELETE", PE): Rule(asks=(_ask("delete", "exports"), _ask("delete", "imports")), own=True),
    ("PUT", REPORT): Rule(own=True),
    ("POST", ERRANDS): Rule(own=True),
    # The control log comes to operators through the job's imports.
    ("POST", SEND): _part("imports", "control", steers=False),
    ("GET", SEND + TUPLE): Rule(asks=(_ask("get", "imports"),), own=True),
    ("POST", EMIT): _part("exports", "control", steers=False),
    ("GET", EMIT + TUPLE): Rule(asks=(_ask("get", "exports"),), own=True),
    **_port(_EXPORT, "exports"),
    **_parts(f"{_EXPORT}/properties", "exports", "properties", "PUT", "PATCH", "DELETE"),
    **_parts(f"{_EXPORT}/property/{{name}}", "exports", "properties", "PUT", "DELETE"),
    **_port(_IMPORT, "imports"),
    **_parts(f"{_IMPORT}/filter", "imports", "filter", "PUT"),
    **_parts(f"{_IMPORT}/subscription", "imports", "streams", "PUT"),
    **_parts(f"{_IMPORT}/streams", "imports", "streams", "PUT"),
    ("GET", PATTERNS): Rule(asks=(_ask("list", _RULES),), own=True),
    ("GET", PATTERN): Rule(asks=(_ask("get", _RULES),), own=True),
    ("PUT", PATTERN): Rule(
        asks=(_ask("create", _RULES), _ask("patch", _RULES)), own=True, steers=True
    ),
    ("DELETE", PATTERN): Rule(asks=(_ask("delete", _RULES),), own=True),
    ("POST", ENABLE): _part(_RULES, "enable", steers=True),
}
"""By method and path, as the router has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What follows from a rule.

    Attributes:
        allowed: without asking anybody.
        own: it is allowed because the caller is the job itself.
        asks: what has to be granted otherwise; empty where it is refused.
        binds: the account to which the job is fixed from now on, or None.
        why: a sentence, where it is refused.
    """

    allowed: bool = False
    own: bool = False
    asks: Asks = ()
    binds: str | None = None
    why: str = ""


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
    rule = RULES.get(("GET" if method == "HEAD" else method, path))
    if rule is None:
        return Verdict(why=f"Nobody may {method} {path}: it is not known who might.")
    if force:
        return _forcing(rule, path, _usual(rule, caller, pe, bound))
    return _usual(rule, caller, pe, bound)


def _forcing(rule: Rule, path: str, usual: Verdict) -> Verdict:
    """Return what follows where fields are to be taken, from what would follow otherwise."""
    if not rule.steers:
        return Verdict(why="Nothing here can be taken from others: leave out force.")
    if not usual.allowed and not usual.asks:
        return usual
    of_ports = "exports" if path.startswith(_EXPORT) else "imports"
    whole = _ask("patch", _RULES if path.startswith(JOBS) else of_ports)
    return Verdict(asks=(*(group for group in usual.asks if group != whole), whole))


def _usual(rule: Rule, caller: Caller, pe: PeKey | None, bound: str | None) -> Verdict:
    if rule.known:
        return Verdict(allowed=True)
    if rule.own and pe is not None:
        verdict = _registering(caller, pe, bound) if rule.registers else _own(caller, pe, bound)
        if verdict is not None:
            return verdict
    if rule.asks:
        return Verdict(asks=rule.asks)
    return Verdict(why=f"Only the agents of job {_job(pe)} may do that.")


def _own(caller: Caller, pe: PeKey, bound: str | None) -> Verdict | None:
    """Allow a job what is its own; None where it is somebody else's."""
    if caller.agent is not None:
        same = (caller.agent.namespace, caller.agent.job) == (pe.namespace, pe.job)
        return Verdict(allowed=True, own=True) if same else None
    if not caller.in_pod or bound is None:
        return None
    same = caller.namespace == pe.namespace and caller.account == bound
    return Verdict(allowed=True, own=True) if same else None


def _registering(caller: Caller, pe: PeKey, bound: str | None) -> Verdict:
    if caller.agent is not None:
        if caller.agent == pe:
            return Verdict(allowed=True, own=True)
        return Verdict(why=f"The agent of {caller.agent} cannot register for {pe}.")
    if not caller.in_pod:
        return Verdict(
            why="An agent registers with a token that is bound to its pod: mount a projected token "
            "with the audience streambroker."
        )
    if caller.namespace != pe.namespace:
        return Verdict(
            why=f"The job {_job(pe)} is of another namespace than the pod, {caller.namespace}."
        )
    if bound is not None and bound != caller.account:
        return Verdict(
            why=f"The job {_job(pe)} belongs to the service account {bound}, not {caller.account}."
        )
    return Verdict(allowed=True, own=True, binds=caller.account if bound is None else None)


def _job(pe: PeKey | None) -> str:
    return "" if pe is None else f"{pe.namespace}/{pe.job}"


def told(asks: Sequence[Sequence[Ask]]) -> str:
    """Return what a caller would need, in words."""
    return " and ".join(" or ".join(f"`{ask}`" for ask in group) for group in asks)
