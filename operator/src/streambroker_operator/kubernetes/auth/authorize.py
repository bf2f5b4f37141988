"""Authorization of requests by policies and access reviews.

While the API server is unavailable, signed agents may access their own ports, and recently
reviewed callers keep their access. All others get 503.
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
    """Identity and permissions granted to a request.

    Attributes:
        is_own_job: the caller acts as the job itself; only then capabilities may be shown.
        bound_account: service account that this registration binds the job to, or None.
    """

    is_own_job: bool = False
    bound_account: str | None = None


class Authorizer:
    """Authorizes requests of authenticated callers.

    Args:
        account_for: returns the service account that a job (namespace, name) is bound to, or None.
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
        """Authorize a request; return what is granted.

        `target` is the request target with its query, `path` the router's path with placeholders
        such as ``{job}``. `namespace` is ``*`` for all; `name` is empty for none or before
        creation. `reading` means that the request changes nothing, see `ReviewClient.review_token`.

        Raises:
            RequestError: 403, not allowed; 503, the review failed.
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
    """Return whether a request target (with query) takes over fields that others declare."""
    return "true" in parse_qs(urlsplit(target).query).get("force", ())
