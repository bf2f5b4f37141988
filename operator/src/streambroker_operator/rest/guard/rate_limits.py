"""Rate limits per caller: token buckets by address and by principal.

- Requests that agents repeat (views, registrations, reports) count as reads: thousands of agents
  may share one address.
- A registration that differs from the stored one also counts as a change of its job.
- Wrong tokens have their own buckets, so guessing does not use up the limits of agents at the same
  address. Where a token check is costly for others, an unknown token waits for those buckets too.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields

from aiohttp import web

from streambroker_core.board import Board
from streambroker_core.model import Kind, PeKey, PortKey
from streambroker_operator.errors import RequestError
from streambroker_operator.rest.guard.authentication import CALLER, PRINCIPAL, is_reading
from streambroker_operator.rest.http.paths import COMMANDS, PE, REPORT
from streambroker_operator.rest.http.requests import route_path
from streambroker_operator.security.token_file import ANONYMOUS

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

MAX_BUCKETS = 10_000
"""Callers remembered; the least recently seen one is forgotten and restarts with a full bucket."""

_LARGEST = 1_000_000_000
_AGENT_POLLS = (("PUT", PE), ("PUT", REPORT), ("POST", COMMANDS))
"""Requests that agents repeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimits:
    """Limits of a broker, per address and per principal.

    Attributes:
        writes_per_s: sustained changes per second; also registrations of one job.
        write_burst: changes at once; also registrations of one job.
        reads_per_s: sustained reads and agent polls per second.
        read_burst: reads and agent polls at once.
        forecasts_per_s: sustained what-ifs per second of one principal, or of one address if the
            broker has no authentication.
        forecast_burst: what-ifs at once.
        refusals_per_s: sustained requests per second without a known token, of one address.
        refusal_burst: requests at once without a known token.
        followers: concurrent event streams in total.
        followers_each: concurrent event streams of one caller.
        polls_each: views that one caller may wait for at the same time.
        keepalive_s: idle time of an event stream before a comment is sent, in seconds.
        agent_wait_s: how long a request waits for an agent's answer, in seconds.
        pes: PEs per job; PE numbers are below this.
        ports: exports per PE, and imports per PE.
        connections: concurrent connections in total.
        connections_each: concurrent connections of one address.
    """

    writes_per_s: float = 200.0
    write_burst: int = 400
    reads_per_s: float = 2_000.0
    read_burst: int = 4_000
    forecasts_per_s: float = 2.0
    forecast_burst: int = 20
    refusals_per_s: float = 10.0
    refusal_burst: int = 100
    followers: int = 500
    followers_each: int = 50
    polls_each: int = 200
    keepalive_s: float = 15.0
    agent_wait_s: float = 10.0
    pes: int = 4_096
    ports: int = 1_024
    connections: int = 20_000
    connections_each: int = 10_000

    def connection_limits(self, most: int) -> tuple[int, int]:
        """Return the connection limits of a port: in total, and per address (at most half)."""
        return most, max(1, min(self.connections_each, most // 2))


def read_limit(text: str) -> tuple[str, float]:
    """Parse ``NAME=VALUE``; return a field name of `RateLimits` and its value.

    Raises:
        ValueError: the name or the value is invalid.
    """
    name, _, value = text.partition("=")
    defaults = {field.name.replace("_", "-"): field.default for field in fields(RateLimits)}
    if name not in defaults:
        raise ValueError(f"{name!r} is not a limit; there are {', '.join(defaults)}")
    is_int = isinstance(defaults[name], int)
    try:
        limit = int(value) if is_int else float(value)
    except ValueError:
        limit = 0
    if not 0 < limit < _LARGEST:
        raise ValueError(f"{name} has to be a {'whole ' if is_int else ''}number above 0")
    return name.replace("-", "_"), limit


class TokenBuckets:
    """One token bucket per caller: `per_s` tokens are added per second, up to `burst`."""

    def __init__(self, per_s: float, burst: int) -> None:
        self._per_s = per_s
        self._burst = float(burst)
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str, now: float) -> float:
        """Take a token at monotonic time `now`; return 0, or the seconds until there is one."""
        level = self._level(caller, now)
        wait = 0.0 if level >= 1.0 else (1.0 - level) / self._per_s
        self._levels[caller] = (level if wait else level - 1.0, now)
        self._levels.move_to_end(caller)
        if len(self._levels) > MAX_BUCKETS:
            self._levels.popitem(last=False)
        return wait

    def wait(self, caller: str, now: float, reserved: int) -> float:
        """Return the seconds until a token is free after `reserved` others, without taking one."""
        return max(0.0, (1.0 + reserved - self._level(caller, now)) / self._per_s)

    def _level(self, caller: str, now: float) -> float:
        level, at = self._levels.get(caller, (self._burst, now))
        return min(self._burst, level + (now - at) * self._per_s)

    def charge(self, caller: str, tokens: int) -> None:
        """Take more tokens for a request already admitted; the level may become negative."""
        level = self._levels.get(caller)
        if level is not None:
            self._levels[caller] = (level[0] - tokens, level[1])


class ConcurrencyLimit:
    """Limit of concurrent requests per caller; `description` names them in the error."""

    def __init__(self, limit: int, description: str) -> None:
        self._limit = limit
        self._description = description
        self._in_use: Counter[str] = Counter()

    @contextmanager
    def hold(self, callers: Sequence[str]) -> Iterator[None]:
        """Reserve a slot of each caller while the block runs; raise 429 if none is left."""
        if any(self._in_use[caller] >= self._limit for caller in callers):
            raise too_many_error(
                f"One caller may have {self._limit} {self._description} at the same time.", 5.0
            )
        self._in_use.update(callers)
        try:
            yield
        finally:
            self._in_use.subtract(callers)
            for caller in callers:
                if not self._in_use[caller]:
                    del self._in_use[caller]


class CallerLimits:
    """Request counts of each caller, by address and by principal."""

    def __init__(self, limits: RateLimits) -> None:
        self.limits = limits
        self._writes = TokenBuckets(limits.writes_per_s, limits.write_burst)
        self._reads = TokenBuckets(limits.reads_per_s, limits.read_burst)
        self._registrations = TokenBuckets(limits.writes_per_s, limits.write_burst)
        self._refusals = TokenBuckets(limits.refusals_per_s, limits.refusal_burst)
        self._pending_guesses: Counter[str] = Counter()
        self._refusals_text = f"{limits.refusals_per_s:g} requests per second without a known token"
        self._followers = ConcurrencyLimit(limits.followers_each, "streams of events")
        self._polls = ConcurrencyLimit(limits.polls_each, "requests that wait for views")

    def hold_follower(self, request: web.Request) -> AbstractContextManager[None]:
        """Count the request as an event stream while the block runs; raise 429 above the limit."""
        return self._followers.hold(_counted_names(request))

    def hold_poll(self, request: web.Request) -> AbstractContextManager[None]:
        """Count the request as a view poll while the block runs; raise 429 above the limit."""
        return self._polls.hold(_counted_names(request))

    def count_registration(self, pe: PeKey) -> None:
        """Count a new or different registration as a change of its job; raise 429 above the limit.

        The limit is per job, because a whole cluster may start behind one address.
        """
        self._take_token(
            self._registrations,
            f"{pe.namespace}/{pe.job}",
            f"{self.limits.writes_per_s:g} registrations per second of one job",
        )

    def count_refusal(self, request: web.Request) -> None:
        """Count a request of an unknown caller; raise 429 above the limit."""
        self._take_token(self._refusals, _address(request), self._refusals_text)

    @contextmanager
    def limit_guesses(self, request: web.Request) -> Iterator[Callable[[], None]]:
        """Limit token checks of an address that has sent too many unknown tokens.

        Yields a function to call before a check; it raises 429. Every check counts as refused while
        the block runs, which bounds concurrent guesses.
        """
        address = _address(request)
        checks, closed = 0, False

        def ask() -> None:
            nonlocal checks
            now = asyncio.get_running_loop().time()
            wait = self._refusals.wait(address, now, self._pending_guesses[address])
            if wait:
                raise too_many_error(f"This is more than {self._refusals_text}.", wait)
            if not closed:
                self._pending_guesses[address] += 1
                checks += 1

        try:
            yield ask
        finally:
            closed = True
            self._pending_guesses[address] -= checks
            if not self._pending_guesses[address]:
                del self._pending_guesses[address]

    def charge(self, request: web.Request, changes: int) -> None:
        """Charge an admitted request for this number of changes instead of one."""
        for caller in _counted_names(request):
            self._writes.charge(caller, changes - 1)

    def check(self, request: web.Request, caller: str) -> None:
        """Count a request of a caller; raise 429 above the limit."""
        self._count(caller, writes=not is_reading(request) and not _is_agent_poll(request))

    def _count(self, caller: str, *, writes: bool) -> None:
        if writes:
            limit_text = f"{self.limits.writes_per_s:g} changes per second of one caller"
            self._take_token(self._writes, caller, limit_text)
        else:
            limit_text = f"{self.limits.reads_per_s:g} requests per second of one caller"
            self._take_token(self._reads, caller, limit_text)

    def _take_token(self, buckets: TokenBuckets, caller: str, limit_text: str) -> None:
        wait = buckets.take(caller, asyncio.get_running_loop().time())
        if wait:
            raise too_many_error(f"This is more than {limit_text}.", wait)

    def check_pe(self, pe: PeKey) -> None:
        """Refuse a PE number above the limit of a job with 422 `LimitReached`."""
        if pe.pe >= self.limits.pes:
            raise RequestError(
                422,
                "LimitReached",
                f"{pe} is beyond the {self.limits.pes} PEs that a job may have here: their"
                f" numbers are below {self.limits.pes}. The operator of the broker can raise the"
                " limit (--limit pes=…).",
            )

    def check_ports(self, board: Board, ports: Iterable[tuple[Kind, PortKey]]) -> None:
        """Refuse new ports above the limit of a PE with 422 `LimitReached`; existing ports pass."""
        names: dict[tuple[Kind, PeKey], set[str]] = {}
        for kind, key in ports:
            self.check_pe(key.owner)
            port_names = names.setdefault(
                (kind, key.owner), set(board.ports(key.owner)[kind == "Import"])
            )
            if key.port not in port_names and len(port_names) >= self.limits.ports:
                raise RequestError(
                    422,
                    "LimitReached",
                    f"{key.owner} would have more than {self.limits.ports} {kind.lower()}s, as"
                    " many as a PE may have here. Use another PE, or delete some. The operator"
                    " of the broker can raise the limit (--limit ports=…).",
                )
            port_names.add(key.port)


CALLER_LIMITS = web.AppKey("gauges", CallerLimits)


def too_many_error(message: str, wait_s: float) -> RequestError:
    """Return a 429 error with `Retry-After`."""
    seconds = max(1, math.ceil(wait_s))
    return RequestError(
        429,
        "TooManyRequests",
        f"{message} Nothing was done; try again after {seconds} s.",
        headers={"Retry-After": str(seconds)},
    )


def _address(request: web.Request) -> str:
    return f"address {request.remote}"


def _principal(request: web.Request) -> str | None:
    """Return the principal's bucket name; None if the broker has no authentication."""
    return None if request.get(CALLER) is ANONYMOUS else f"principal {request[PRINCIPAL]}"


def caller_name(request: web.Request) -> str:
    """Return the principal, or the address if the broker has no authentication."""
    return _principal(request) or _address(request)


def _counted_names(request: web.Request) -> list[str]:
    """Return all bucket names that a request counts for."""
    principal = _principal(request)
    return [_address(request), *([] if principal is None else [principal])]


def _is_agent_poll(request: web.Request) -> bool:
    return (request.method, route_path(request)) in _AGENT_POLLS


@web.middleware
async def limit_unknown(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse an address that sends too many requests without a known token.

    Callers with a known token are served, however many others at the address guess.
    """
    try:
        return await handler(request)
    except RequestError as error:
        if error.status == 401:
            request.app[CALLER_LIMITS].count_refusal(request)
        raise


@web.middleware
async def limit_addresses(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse an address above its rate, once the caller is known."""
    request.app[CALLER_LIMITS].check(request, _address(request))
    return await handler(request)


@web.middleware
async def limit_principals(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse a principal above its rate, over all its addresses.

    Without authentication, callers are limited by address alone.
    """
    principal = _principal(request)
    if principal is not None:
        request.app[CALLER_LIMITS].check(request, principal)
    return await handler(request)
