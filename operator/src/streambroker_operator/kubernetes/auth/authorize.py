"""Let a request through whose caller may do that: rules and reviews in one.

While the API server is away, agents that sign come through to their own ports, and so does whoever
was reviewed a moment ago; all others get 503.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from streambroker_core.model import PeKey
from streambroker_operator.errors import RequestError
from streambroker_operator.kubernetes.auth.rbac import Caller, judge
from streambroker_operator.kubernetes.auth.token_review import Reviews


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """As what somebody came through.

    Attributes:
        own: as the job itself; only then are capabilities to be shown.
        binds: the service account that the job is fixed to by this registration, or None.
    """

    own: bool = False
    binds: str | None = None


class Gate:
    """Stands before every request whose caller is known.

    Args:
        reviews: say what they may do.
        account_of: the service account that a job (namespace, name) is fixed to, or None.
    """

    def __init__(
        self,
        reviews: Reviews,
        account_of: Callable[[str, str], str | None],
    ) -> None:
        self._reviews = reviews
        self._account_of = account_of

    async def admit(
        self,
        caller: Caller,
        *,
        method: str,
        target: str,
        path: str,
        namespace: str,
        pe: PeKey | None = None,
        name: str = "",
        reading: bool = False,
    ) -> Admitted:
        """Return as what a caller may send a request.

        Args:
            caller: who.
            method: of the request.
            target: as in the request line, with its query.
            path: as the router has it, with ``{job}`` and the like.
            namespace: that the request chooses; ``*`` for all.
            pe: that the path names, or None.
            name: of the resource that the path names; empty for none, and for one not yet made.
            reading: whether it changes nothing: `Reviews.caller`.

        Raises:
            RequestError: 403, they may not; 503, nobody could say.
        """
        bound = None if pe is None else self._account_of(pe.namespace, pe.job)
        force = forces(target)
        verdict = judge(caller, method=method, path=path, pe=pe, bound=bound, force=force)
        if verdict.allowed:
            return Admitted(own=verdict.own, binds=verdict.binds)
        if not verdict.asks:
            raise RequestError(403, "NotYours", verdict.why)
        await self._reviews.check(caller, verdict.asks, namespace, name, reading=reading)
        return Admitted()


def forces(target: str) -> bool:
    """Say whether a request is to take fields that others declare.

    Args:
        target: as in the request line, with its query.
    """
    return "true" in parse_qs(urlsplit(target).query).get("force", ())
