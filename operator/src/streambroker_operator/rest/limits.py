"""How much one caller may ask for: token buckets by address and by principal.

What agents repeat by themselves (asking for views, registering, reporting) counts
with the reads: thousands of agents behind one address are no misuse.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from streambroker_operator.errors import RequestError
from streambroker_operator.rest.authentication import PRINCIPAL, TOKENS, is_reading
from streambroker_operator.rest.pe import PE

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

MAX_BUCKETS = 10_000
"""How many callers are remembered; the one not seen for longest begins with a full bucket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a broker lets one address, and one principal, ask for.

    Attributes:
        writes_per_s: changes per second, lasting.
        write_burst: changes at once.
        reads_per_s: reads, and what agents repeat, per second, lasting.
        read_burst: the same at once.
        forecasts_per_s: what-ifs per second, lasting, of one principal, or of one address
            where nobody is asked who they are.
        forecast_burst: the same at once.
        followers: how many may follow events at the same time, all together.
        keepalive_s: pause of the events after which a comment is sent, in seconds.
    """

    writes_per_s: float = 200.0
    write_burst: int = 400
    reads_per_s: float = 2_000.0
    read_burst: int = 4_000
    forecasts_per_s: float = 2.0
    forecast_burst: int = 20
    followers: int = 500
    keepalive_s: float = 15.0


class Buckets:
    """One bucket of tokens for each caller.

    Args:
        per_s: tokens that come in per second.
        burst: tokens of a full bucket.
    """

    def __init__(self, per_s: float, burst: int) -> None:
        self._per_s = per_s
        self._burst = float(burst)
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, who: str, now: float) -> float:
        """Take a token out; return 0, or the seconds until there is one.

        Args:
            who: the caller.
            now: seconds of a clock that only goes forward.
        """
        level, at = self._levels.get(who, (self._burst, now))
        level = min(self._burst, level + (now - at) * self._per_s)
        wait = 0.0 if level >= 1.0 else (1.0 - level) / self._per_s
        self._levels[who] = (level if wait else level - 1.0, now)
        self._levels.move_to_end(who)
        if len(self._levels) > MAX_BUCKETS:
            self._levels.popitem(last=False)
        return wait


class Gauges:
    """The buckets of a broker: writes and reads, by address and by principal."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._writes = Buckets(limits.writes_per_s, limits.write_burst)
        self._reads = Buckets(limits.reads_per_s, limits.read_burst)

    def check(self, request: web.Request, who: str) -> None:
        """Count a request of somebody.

        Raises:
            RequestError: 429, it is one too many.
        """
        writes = not is_reading(request) and not _repeated(request)
        buckets, limit = (
            (self._writes, self.limits.writes_per_s)
            if writes
            else (self._reads, self.limits.reads_per_s)
        )
        wait = buckets.take(who, asyncio.get_running_loop().time())
        if wait:
            what = "changes" if writes else "requests"
            raise too_many(f"This is more than {limit:g} {what} per second of one caller.", wait)


GAUGES = web.AppKey("gauges", Gauges)


def too_many(message: str, wait_s: float) -> RequestError:
    """Return the refusal of what may be asked for again after a while."""
    seconds = max(1, math.ceil(wait_s))
    return RequestError(
        429,
        "TooManyRequests",
        f"{message} Nothing was done; try again after {seconds} s.",
        headers={"Retry-After": str(seconds)},
    )


def _repeated(request: web.Request) -> bool:
    resource = request.match_info.route.resource
    path = "" if resource is None else resource.canonical
    return request.method == "PUT" and path in (PE, PE + "/report")


@web.middleware
async def limit_addresses(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse what an address asks for too often, before anything else is looked at."""
    request.app[GAUGES].check(request, f"address {request.remote}")
    return await handler(request)


@web.middleware
async def limit_principals(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse what a principal asks for too often, from however many addresses.

    Where the broker asks nobody who they are, callers are told apart by address alone.
    """
    if request.app.get(TOKENS) is not None:
        request.app[GAUGES].check(request, f"principal {request[PRINCIPAL]}")
    return await handler(request)
