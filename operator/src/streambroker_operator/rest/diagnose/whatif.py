"""``…/whatif``: the effect of a set of changes on the routes.

It may take long, so it runs in a thread on a copy of the board, and the broker stays responsive.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from aiohttp import web

from streambroker_core.board import Board
from streambroker_core.diagnose import (
    BoardCopy,
    BoardSnapshot,
    Forecast,
    Proposal,
    ProposalProblem,
    Removal,
    forecast,
    render_forecast,
    take_snapshot,
)
from streambroker_core.errors import StreambrokerError
from streambroker_core.model import MAX_PE, Kind, PortKey, Resource, is_label, is_port_name
from streambroker_core.wire.encoding.fields import Fields
from streambroker_core.wire.manifests.ports import read_manifest
from streambroker_operator.errors import RequestError
from streambroker_operator.rest.guard.authentication import CALLER, not_yours_error
from streambroker_operator.rest.guard.fair_queue import FAIR_QUEUE
from streambroker_operator.rest.guard.rate_limits import (
    RateLimits,
    TokenBuckets,
    caller_name,
    too_many_error,
)
from streambroker_operator.rest.http.paths import WHATIF
from streambroker_operator.rest.http.requests import RUNTIME, json_body, parse_namespace
from streambroker_operator.rest.http.responses import long_answer
from streambroker_operator.runtime.bodies import changed_values_body, route_body

MAX_CHANGES = 1_000
"""Maximum number of resources, and of deletions, in one proposal."""
MAX_ROUTES = 100_000
"""Maximum number of routes of the changed resources after a proposal."""
MAX_FORECAST_S = 2.0
"""Maximum duration of a forecast, in seconds."""
BOARD_COPY_TTL_S = 300.0
"""How long the board copy is kept after the last what-if, in seconds."""

_KINDS: dict[str, Kind] = {"Export": "Export", "Import": "Import"}

routes = web.RouteTableDef()


class Forecasts:
    """Runs forecasts on a copy of the board, with a rate limit per caller."""

    def __init__(self, limits: RateLimits) -> None:
        self._per_s = limits.forecasts_per_s
        self._buckets = TokenBuckets(limits.forecasts_per_s, limits.forecast_burst)
        self._board_copy: BoardCopy | None = None
        self._lock = threading.Lock()
        self._end: asyncio.TimerHandle | None = None

    def check_rate(self, caller: str) -> None:
        """Count a what-if of a caller; raise 429 above the limit."""
        wait = self._buckets.take(caller, asyncio.get_running_loop().time())
        if wait:
            raise too_many_error(f"This is more than {self._per_s:g} what-ifs per second.", wait)

    async def answer(self, board: Board, proposal: Proposed) -> web.Response:
        """Return the effect of a proposal on the current board."""
        if self._end is not None:
            self._end.cancel()
        loop = asyncio.get_running_loop()
        try:
            return await asyncio.to_thread(self._answer, take_snapshot(board), proposal)
        finally:
            self._end = loop.call_later(BOARD_COPY_TTL_S, self._forget)

    def _answer(self, resources: BoardSnapshot, proposed: Proposed) -> web.Response:
        # The thread of a cancelled request may still be running.
        with self._lock:
            board_copy, self._board_copy = self._board_copy or BoardCopy(), None
            board = board_copy.load(resources)
            self._board_copy = board_copy
            result = forecast(board, proposed.proposal, watch=limit_forecast(MAX_FORECAST_S))
        return long_answer(forecast_body(proposed.with_indices(result)))

    def _forget(self) -> None:
        self._board_copy = None


FORECASTS = web.AppKey("forecasts", Forecasts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposed:
    """A proposal, and the parsed resource or the error of each of its manifests."""

    proposal: Proposal
    parsed: Sequence[Resource | StreambrokerError]

    @property
    def keys(self) -> list[PortKey]:
        """The ports of the proposal, without manifests that cannot be parsed."""
        puts, deletes = self.proposal.puts, self.proposal.deletes
        return [*(one.key for one in puts), *(one.key for one in deletes)]

    def with_indices(self, result: Forecast) -> Forecast:
        """Return a forecast with problem indices of the request, and with parse errors added."""
        parsed_indices = [
            n for n, one in enumerate(self.parsed) if not isinstance(one, StreambrokerError)
        ]
        indices = [
            *parsed_indices,
            *range(len(self.parsed), len(self.parsed) + len(self.proposal.deletes)),
        ]
        problems = [replace(one, index=indices[one.index]) for one in result.problems]
        problems += [
            ProposalProblem(index=n, change=f"resource {n}", code=one.code, detail=str(one))
            for n, one in enumerate(self.parsed)
            if isinstance(one, StreambrokerError)
        ]
        ordered = sorted(problems, key=lambda problem: problem.index)
        return replace(result, problems=tuple(ordered))


@routes.post(WHATIF)
async def whatif(request: web.Request) -> web.Response:
    """Return the effect of a set of changes on the routes."""
    forecasts, caller = request.app[FORECASTS], caller_name(request)
    forecasts.check_rate(caller)
    body = await json_body(request)
    namespace = parse_namespace(request)
    async with request.app[FAIR_QUEUE].turn(caller):
        proposed = await asyncio.to_thread(read_proposal, body, namespace)
        _check_namespaces(request, proposed.keys)
        return await forecasts.answer(request.app[RUNTIME].board, proposed)


def read_proposal(document: object, namespace: str) -> Proposed:
    """Parse the body of a proposal; an invalid manifest only becomes a problem of its own.

    Raises:
        ManifestError: the body itself is invalid.
    """
    body = Fields(document)
    body.allow_only(("resources", "delete"))
    parsed = [_read(entry, namespace) for entry in body.items("resources", max_items=MAX_CHANGES)]
    deletes = [
        _read_removal(Fields(item, f"delete[{index}]"), namespace)
        for index, item in enumerate(body.items("delete", max_items=MAX_CHANGES))
    ]
    puts = tuple(entry for entry in parsed if not isinstance(entry, StreambrokerError))
    return Proposed(proposal=Proposal(puts=puts, deletes=tuple(deletes)), parsed=parsed)


def limit_forecast(seconds: float) -> Callable[[int], None]:
    """Return a watch function that aborts a forecast that is too large or takes too long."""
    end = time.monotonic() + seconds

    def watch(found: int) -> None:
        if found > MAX_ROUTES or time.monotonic() > end:
            raise RequestError(
                422,
                "ForecastTooLarge",
                f"These changes affect more than {MAX_ROUTES:,} routes, or take longer than"
                f" {seconds:g} s to predict. Send fewer of them at once.",
            )

    return watch


def _read(document: object, namespace: str) -> Resource | StreambrokerError:
    try:
        resource = read_manifest(document, namespace=namespace)
    except StreambrokerError as error:
        return error
    return replace(resource, uid="", generation=1, created=0.0)


def _read_removal(fields: Fields, namespace: str) -> Removal:
    fields.allow_only(("kind", "namespace", "job", "pe", "port", "name"))
    if not fields.has("kind"):
        raise fields.error_at("kind", "is required")
    key = PortKey(
        namespace=fields.text("namespace", namespace, check=is_label, expected="a DNS label"),
        job=fields.text("job", check=is_label, expected="a DNS label"),
        pe=fields.integer("pe", 0, high=MAX_PE),
        port=fields.text("port", check=is_port_name, expected="the name of a port"),
    )
    kind = fields.word("kind", _KINDS, "Export")
    return Removal(kind, key, fields.optional_text("name") or "")


def _check_namespaces(request: web.Request, keys: Iterable[PortKey]) -> None:
    caller = request[CALLER]
    for key in keys:
        if not caller.can_read(key.namespace):
            raise not_yours_error(
                f"The token {caller.name!r} does not read the namespace {key.namespace!r}, so it"
                " cannot ask for the effect of a change there."
            )


def forecast_body(result: Forecast) -> dict[str, Any]:
    """Return the JSON of a forecast."""
    return {
        "added": [route_body(route) for route in result.added],
        "cut": [{**route_body(cut.route), "reason": cut.reason} for cut in result.cut],
        "changed": [
            {**route_body(one.route), "was": changed_values_body(one.route, one.old_route)}
            for one in result.changed
        ],
        "kept": result.unchanged,
        "problems": problems_body(result.problems),
        "text": render_forecast(result),
    }


def problems_body(problems: Iterable[ProposalProblem]) -> list[dict[str, Any]]:
    """Return the JSON of problems."""
    return [asdict(problem) for problem in problems]
