"""How much one caller may ask for: token buckets by address and by principal.

What agents repeat by themselves (asking for views, registering, reporting) counts
with the reads: thousands of agents behind one address are no misuse. A registration
that is new or another one is written, and counts as a change of its job, too. Wrong tokens
are counted apart, so that nobody who guesses takes anything from the agents beside them; only
a token that was never good has to wait with them where asking of it costs others something.
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
"""How many callers are remembered; the one not seen for longest begins with a full bucket."""

_LARGEST = 1_000_000_000
_AGENT_POLLS = (("PUT", PE), ("PUT", REPORT), ("POST", COMMANDS))
"""What agents repeat by themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimits:
    """What a broker lets one address, and one principal, ask for.

    Attributes:
        writes_per_s: changes per second, lasting; registrations of one job likewise.
        write_burst: changes at once; registrations of one job likewise.
        reads_per_s: reads, and what agents repeat, per second, lasting.
        read_burst: the same at once.
        forecasts_per_s: what-ifs per second, lasting, of one principal, or of one address
            where nobody is asked who they are.
        forecast_burst: the same at once.
        refusals_per_s: requests without a token that is known, per second, lasting, of one
            address.
        refusal_burst: the same at once.
        followers: how many may follow events at the same time, all together.
        followers_each: how many of them may be of one caller.
        polls_each: how many views one caller may wait for at the same time.
        keepalive_s: pause of the events after which a comment is sent, in seconds.
        agent_wait_s: for how long a request waits for an agent that has to answer it, in seconds.
        pes: how many PEs a job may have: their numbers are below this.
        ports: how many exports, and how many imports, a PE may have.
        connections: how many there may be at the same time, all together.
        connections_each: how many of them may be of one address.
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
        """Return how many connections a port may have in all, and how many of one address.

        Args:
            most: in all; one address may have half of them at most.
        """
        return most, max(1, min(self.connections_each, most // 2))


def read_limit(text: str) -> tuple[str, float]:
    """Read ``NAME=VALUE``, a limit and what it is to be.

    Returns:
        Name of the field of `RateLimits`, and the value.

    Raises:
        ValueError: there is no such limit, or it cannot be that.
    """
    name, _, value = text.partition("=")
    usual = {field.name.replace("_", "-"): field.default for field in fields(RateLimits)}
    if name not in usual:
        raise ValueError(f"{name!r} is no limit; there are {', '.join(usual)}")
    whole = isinstance(usual[name], int)
    try:
        found = int(value) if whole else float(value)
    except ValueError:
        found = 0
    if not 0 < found < _LARGEST:
        raise ValueError(f"{name} has to be a {'whole ' if whole else ''}number above 0")
    return name.replace("-", "_"), found


class TokenBuckets:
    """One bucket of tokens for each caller.

    Args:
        per_s: tokens that come in per second.
        burst: tokens of a full bucket.
    """

    def __init__(self, per_s: float, burst: int) -> None:
        self._per_s = per_s
        self._burst = float(burst)
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str, now: float) -> float:
        """Take a token out; return 0, or the seconds until there is one.

        Args:
            caller: the caller.
            now: seconds of a clock that only goes forward.
        """
        level = self._level(caller, now)
        wait = 0.0 if level >= 1.0 else (1.0 - level) / self._per_s
        self._levels[caller] = (level if wait else level - 1.0, now)
        self._levels.move_to_end(caller)
        if len(self._levels) > MAX_BUCKETS:
            self._levels.popitem(last=False)
        return wait

    def wait(self, caller: str, now: float, reserved: int) -> float:
        """Return the seconds until there is a token, without taking one.

        Args:
            caller: the caller.
            now: seconds of a clock that only goes forward.
            reserved: how many tokens others may take before.
        """
        return max(0.0, (1.0 + reserved - self._level(caller, now)) / self._per_s)

    def _level(self, caller: str, now: float) -> float:
        level, at = self._levels.get(caller, (self._burst, now))
        return min(self._burst, level + (now - at) * self._per_s)

    def charge(self, caller: str, tokens: int) -> None:
        """Take more out for what was let through; it is owed until so many have come in.

        Args:
            caller: the caller.
            tokens: how many, beside the one that was taken.
        """
        known = self._levels.get(caller)
        if known is not None:
            self._levels[caller] = (known[0] - tokens, known[1])


class ConcurrencyLimit:
    """How many requests of each caller go on at the same time.

    Args:
        limit: of one caller.
        description: what they are, for the refusal.
    """

    def __init__(self, limit: int, description: str) -> None:
        self._limit = limit
        self._description = description
        self._in_use: Counter[str] = Counter()

    @contextmanager
    def hold(self, callers: Sequence[str]) -> Iterator[None]:
        """Take a place, as long as the block lasts, with each that a request counts for.

        Raises:
            RequestError: 429, one of them has no place left.
        """
        if any(self._in_use[who] >= self._limit for who in callers):
            raise too_many_error(
                f"One caller may have {self._limit} {self._description} at the same time.", 5.0
            )
        self._in_use.update(callers)
        try:
            yield
        finally:
            self._in_use.subtract(callers)
            for who in callers:
                if not self._in_use[who]:
                    del self._in_use[who]


class CallerLimits:
    """How much each caller asks for, by address and by principal."""

    def __init__(self, limits: RateLimits) -> None:
        self.limits = limits
        self._writes = TokenBuckets(limits.writes_per_s, limits.write_burst)
        self._reads = TokenBuckets(limits.reads_per_s, limits.read_burst)
        self._registrations = TokenBuckets(limits.writes_per_s, limits.write_burst)
        self._refusals = TokenBuckets(limits.refusals_per_s, limits.refusal_burst)
        self._pending_guesses: Counter[str] = Counter()
        self._refusals_text = (
            f"{limits.refusals_per_s:g} requests per second without a token that is known"
        )
        self._followers = ConcurrencyLimit(limits.followers_each, "streams of events")
        self._polls = ConcurrencyLimit(limits.polls_each, "requests that wait for views")

    def hold_follower(self, request: web.Request) -> AbstractContextManager[None]:
        """Count a request as one that follows events, as long as the block lasts.

        Raises:
            RequestError: 429, on entering: it is one too many.
        """
        return self._followers.hold(_counted_names(request))

    def hold_poll(self, request: web.Request) -> AbstractContextManager[None]:
        """Count a request as one that waits for a view, as long as the block lasts.

        Raises:
            RequestError: 429, on entering: it is one too many.
        """
        return self._polls.hold(_counted_names(request))

    def count_registration(self, pe: PeKey) -> None:
        """Count a registration that says something new, as a change of its job.

        A whole cluster may start behind one address; a job has only so many PEs.

        Raises:
            RequestError: 429, it is one too many.
        """
        self._take_token(
            self._registrations,
            f"{pe.namespace}/{pe.job}",
            f"{self.limits.writes_per_s:g} registrations per second of one job",
        )

    def count_refusal(self, request: web.Request) -> None:
        """Count a request whose caller is not known.

        Raises:
            RequestError: 429, it is one too many.
        """
        self._take_token(self._refusals, _address(request), self._refusals_text)

    @contextmanager
    def limit_guesses(self, request: web.Request) -> Iterator[Callable[[], None]]:
        """Let a caller be asked for, unless too many of its address were nobody.

        What is asked counts as refused as long as the block lasts: nobody can guess often at
        the same time, before the first answer has come.

        Yields:
            What has to be called before; it raises RequestError, 429.
        """
        address = _address(request)
        asked, over = 0, False

        def ask() -> None:
            nonlocal asked
            now = asyncio.get_running_loop().time()
            wait = self._refusals.wait(address, now, self._pending_guesses[address])
            if wait:
                raise too_many_error(f"This is more than {self._refusals_text}.", wait)
            if not over:
                self._pending_guesses[address] += 1
                asked += 1

        try:
            yield ask
        finally:
            over = True
            self._pending_guesses[address] -= asked
            if not self._pending_guesses[address]:
                del self._pending_guesses[address]

    def charge(self, request: web.Request, changes: int) -> None:
        """Count a request that is let through as so many changes in place of one."""
        for who in _counted_names(request):
            self._writes.charge(who, changes - 1)

    def check(self, request: web.Request, caller: str) -> None:
        """Count a request of somebody.

        Raises:
            RequestError: 429, it is one too many.
        """
        self._count(caller, writes=not is_reading(request) and not _is_agent_poll(request))

    def _count(self, caller: str, *, writes: bool) -> None:
        if writes:
            told = f"{self.limits.writes_per_s:g} changes per second of one caller"
            self._take_token(self._writes, caller, told)
        else:
            told = f"{self.limits.reads_per_s:g} requests per second of one caller"
            self._take_token(self._reads, caller, told)

    def _take_token(self, buckets: TokenBuckets, caller: str, limit_text: str) -> None:
        wait = buckets.take(caller, asyncio.get_running_loop().time())
        if wait:
            raise too_many_error(f"This is more than {limit_text}.", wait)

    def check_pe(self, pe: PeKey) -> None:
        """Refuse a PE beyond those that a job may have.

        Raises:
            RequestError: 422 `LimitReached`.
        """
        if pe.pe >= self.limits.pes:
            raise RequestError(
                422,
                "LimitReached",
                f"{pe} is beyond the {self.limits.pes} PEs that a job may have here: their numbers"
                f" are below {self.limits.pes}. Whoever runs the broker may allow more"
                " (--limit pes=…).",
            )

    def check_ports(self, board: Board, ports: Iterable[tuple[Kind, PortKey]]) -> None:
        """Refuse new ports beyond those that a PE may have; those that are there cost nothing.

        Raises:
            RequestError: 422 `LimitReached`.
        """
        names: dict[tuple[Kind, PeKey], set[str]] = {}
        for kind, key in ports:
            self.check_pe(key.owner)
            known = names.setdefault(
                (kind, key.owner), set(board.ports(key.owner)[kind == "Import"])
            )
            if key.port not in known and len(known) >= self.limits.ports:
                raise RequestError(
                    422,
                    "LimitReached",
                    f"{key.owner} would have more than {self.limits.ports} {kind.lower()}s, as many"
                    " as a PE may have here. Use another PE, or delete some. Whoever runs the"
                    " broker may allow more (--limit ports=…).",
                )
            known.add(key.port)


CALLER_LIMITS = web.AppKey("gauges", CallerLimits)


def too_many_error(message: str, wait_s: float) -> RequestError:
    """Return the refusal of what may be asked for again after a while."""
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
    """Return the caller by name; None where nobody was asked who they are."""
    return None if request.get(CALLER) is ANONYMOUS else f"principal {request[PRINCIPAL]}"


def caller_name(request: web.Request) -> str:
    """Return the caller: the principal, or the address where nobody is asked who they are."""
    return _principal(request) or _address(request)


def _counted_names(request: web.Request) -> list[str]:
    """Return all that a request counts for."""
    principal = _principal(request)
    return [_address(request), *([] if principal is None else [principal])]


def _is_agent_poll(request: web.Request) -> bool:
    return (request.method, route_path(request)) in _AGENT_POLLS


@web.middleware
async def limit_unknown(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse in short what an address asks too often without a token that is known.

    Who shows one is answered however many beside it guess.
    """
    try:
        return await handler(request)
    except RequestError as error:
        if error.status == 401:
            request.app[CALLER_LIMITS].count_refusal(request)
        raise


@web.middleware
async def limit_addresses(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse what an address asks for too often, once its caller is known."""
    request.app[CALLER_LIMITS].check(request, _address(request))
    return await handler(request)


@web.middleware
async def limit_principals(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse what a principal asks for too often, from however many addresses.

    Where the broker asks nobody who they are, callers are told apart by address alone.
    """
    principal = _principal(request)
    if principal is not None:
        request.app[CALLER_LIMITS].check(request, principal)
    return await handler(request)
