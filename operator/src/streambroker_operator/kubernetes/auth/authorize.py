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
from streambroker_operator.kubernetes.auth.token_review import ReviewClient


@dataclass(frozen=True, slots=True, kw_only=True)
class Authorization:
    """As what somebody came through.

    Attributes:
        is_own_job: as the job itself; only then are capabilities to be shown.
        bound_account: the service account that the job is fixed to by this registration, or None.
    """

    is_own_job: bool = False
    bound_account: str | None = None


class Authorizer:
    """Stands before every request whose caller is known.

    Args:
        reviews: say what they may do.
        account_for: the service account that a job (namespace, name) is fixed to, or None.
    """

    def __init__(
        self,
        reviews: ReviewClient,
        account_for: Callable[[str, str], str | None],
    ) -> None:
        self._reviews = reviews
        self._account_for = account_for

    async def authorise(
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
    ) -> Authorization:
        """Return as what a caller may send a request.

        Args:
            caller: who.
            method: of the request.
            target: as in the request line, with its query.
            path: as the router has it, with ``{job}`` and the like.
            namespace: that the request chooses; ``*`` for all.
            pe: that the path names, or None.
            name: of the resource that the path names; empty for none, and for one not yet made.
            reading: whether it changes nothing: `ReviewClient.review_token`.

        Raises:
            RequestError: 403, they may not; 503, nobody could say.
        """
        bound = None if pe is None else self._account_for(pe.namespace, pe.job)
        force = is_forced(target)
        verdict = judge(caller, method=method, path=path, pe=pe, bound=bound, force=force)
        if verdict.allowed:
            return Authorization(is_own_job=verdict.is_own_job, bound_account=verdict.bound_account)
        if not verdict.requests:
            raise RequestError(403, "NotYours", verdict.reason)
        await self._reviews.check_access(caller, verdict.requests, namespace, name, reading=reading)
        return Authorization()


def is_forced(target: str) -> bool:
    """Say whether a request is to take fields that others declare.

    Args:
        target: as in the request line, with its query.
    """
    return "true" in parse_qs(urlsplit(target).query).get("force", ())
