"""Limits of callers, by address and by principal: rates, concurrency and fair queues.

- Requests that agents repeat (views, registrations, reports) count as reads: thousands of agents
  may share one address.
- A registration that differs from the stored one also counts as a change of its job.
- Wrong tokens have their own buckets, so guessing does not use up the limits of agents at the same
  address. Where a token check is costly for others, an unknown token waits for those buckets too.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, fields

from aiohttp import web
from aiohttp.typedefs import Handler

from streambroker_core.board import BoardReader
from streambroker_core.model import Kind, PeKey, PortKey
from streambroker_operator.cooperative import loop_time
from streambroker_operator.errors import RequestError
from streambroker_operator.rest.guard.authentication import CALLER, is_reading
from streambroker_operator.rest.http.paths import COMMANDS, PE, REPORT
from streambroker_operator.rest.http.requests import PRINCIPAL, route_path
from streambroker_operator.security.token_buckets import TokenBuckets
from streambroker_operator.security.token_file import ANONYMOUS

MAX_WAITING = 8
"""Waiting requests of one caller in a queue, at most."""

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


class RateLimit(TokenBuckets):
    """Token buckets whose error names the limit: `description` is the unit of the rate."""

    def __init__(self, per_s: float, burst: int, description: str) -> None:
        super().__init__(per_s, burst)
        self._text = f"This is more than {per_s:g} {description}."

    def count(self, caller: str) -> None:
        """Count a request of a caller; raise 429 above the limit."""
        self.check(self.take(caller, loop_time()))

    def check(self, wait_s: float) -> None:
        """Raise 429 if a caller has to wait for a token."""
        if wait_s:
            raise too_many_error(self._text, wait_s)


class ConcurrencyLimit:
    """Limit of concurrent requests per caller; `description` names them in the error."""

    def __init__(self, limit: int, description: str) -> None:
        self._limit = limit
        self._description = description
        self._in_use: Counter[str] = Counter()

    @contextmanager
    def hold(self, request: web.Request) -> Iterator[None]:
        """Reserve a slot of the caller while the block runs; raise 429 if none is left."""
        callers = _counted_names(request)
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


class FairQueue:
    """Runs one request at a time; the next is of the caller that was not served for longest.

    A caller with many requests delays others by one request at most.
    """

    def __init__(self, limit: int = MAX_WAITING) -> None:
        self._limit = limit
        self._busy = False
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def turn(self, caller: str) -> AsyncIterator[None]:
        """Hold the caller's turn while the block runs; raise 429 if too many requests wait."""
        await self._wait(caller)
        try:
            yield
        finally:
            self._next()

    async def _wait(self, caller: str) -> None:
        if not self._busy:
            self._busy = True
            return
        mine = self._waiting.get(caller, ())
        if len(mine) >= self._limit:
            raise too_many_error(
                f"{self._limit} such requests of one caller are waiting already.", 1.0
            )
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._cancel(caller, turn)
            else:
                self._next()
            raise

    def _cancel(self, caller: str, turn: asyncio.Future[None]) -> None:
        mine = self._waiting[caller]
        mine.remove(turn)
        if not mine:
            del self._waiting[caller]

    def _next(self) -> None:
        while self._waiting:
            caller, mine = self._waiting.popitem(last=False)
            turn = mine.popleft()
            if mine:
                self._waiting[caller] = mine
            turn.set_result(None)
            return
        self._busy = False


class CallerLimits:
    """Limits of rate, concurrency and waiting requests of each caller.

    Callers are counted by address and by principal.

    Attributes:
        limits: the numbers.
        scans: orders requests that scan all resources, so that others keep most of the CPU.
        writes: changes.
        reads: reads and agent polls.
        registrations: new or different registrations, by job: a whole cluster may start behind one
            address.
        forecasts: what-ifs.
        refusals: requests without a known token, by address.
        followers: event streams.
        polls: requests that wait for views.
    """

    def __init__(self, limits: RateLimits) -> None:
        self.limits = limits
        self.scans = FairQueue()
        writes = limits.writes_per_s, limits.write_burst
        self.writes = RateLimit(*writes, "changes per second of one caller")
        self.registrations = RateLimit(*writes, "registrations per second of one job")
        self.reads = RateLimit(
            limits.reads_per_s, limits.read_burst, "requests per second of one caller"
        )
        self.forecasts = RateLimit(
            limits.forecasts_per_s, limits.forecast_burst, "what-ifs per second"
        )
        self.refusals = RateLimit(
            limits.refusals_per_s,
            limits.refusal_burst,
            "requests per second without a known token",
        )
        self.followers = ConcurrencyLimit(limits.followers_each, "streams of events")
        self.polls = ConcurrencyLimit(limits.polls_each, "requests that wait for views")
        self._pending_guesses: Counter[str] = Counter()

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
            now = loop_time()
            self.refusals.check(self.refusals.wait(address, now, self._pending_guesses[address]))
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
            self.writes.charge(caller, changes - 1)

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

    def check_ports(self, board: BoardReader, ports: Iterable[tuple[Kind, PortKey]]) -> None:
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


@web.middleware
async def limit_unknown(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse an address that sends too many requests without a known token.

    Callers with a known token are served, however many others at the address guess.
    """
    try:
        return await handler(request)
    except RequestError as error:
        if error.status == 401:
            request.app[CALLER_LIMITS].refusals.count(_address(request))
        raise


@web.middleware
async def limit_callers(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse an address above its rate, or a principal above its rate over all its addresses.

    Without authentication, callers are limited by address alone.
    """
    limits = request.app[CALLER_LIMITS]
    is_read = is_reading(request) or (request.method, route_path(request)) in _AGENT_POLLS
    for caller in _counted_names(request):
        (limits.reads if is_read else limits.writes).count(caller)
    return await handler(request)
