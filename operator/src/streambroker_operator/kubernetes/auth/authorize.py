"""Authorization of requests by policies and access reviews.

While the API server is unavailable, signed agents may access their own ports, and recently
reviewed callers keep their access. All others get 503.
"""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

from streambroker_core.model import PeKey
from streambroker_operator.errors import RequestError
from streambroker_operator.kubernetes.auth.rbac import Caller, Verdict, judge
from streambroker_operator.kubernetes.auth.token_review import ReviewClient


async def authorise(
    reviews: ReviewClient,
    caller: Caller,
    *,
    method: str,
    target: str,
    path: str,
    namespace: str,
    pe: PeKey | None = None,
    bound: str | None = None,
    name: str = "",
    reading: bool = False,
) -> Verdict:
    """Authorize a request of an authenticated caller; return the verdict that allows it.

    `target` is the request target with its query, `path` the router's path with placeholders such
    as ``{job}``. `namespace` is ``*`` for all; `name` is empty for none or before creation. `bound`
    is the service account that the job of `pe` is bound to. `reading` means that the request
    changes nothing, see `ReviewClient.review_token`.

    Raises:
        RequestError: 403, not allowed; 503, the review failed.
    """
    force = is_forced(target)
    verdict = judge(caller, method=method, path=path, pe=pe, bound=bound, force=force)
    if verdict.allowed:
        return verdict
    if not verdict.requests:
        raise RequestError(403, "NotYours", verdict.reason)
    await reviews.check_access(caller, verdict.requests, namespace, name, reading=reading)
    return Verdict(allowed=True)


def is_forced(target: str) -> bool:
    """Return whether a request target (with query) takes over fields that others declare."""
    return "true" in parse_qs(urlsplit(target).query).get("force", ())
