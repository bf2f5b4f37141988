"""``…/apply``: make a set of changes, all or none."""

from __future__ import annotations

import asyncio
from functools import partial

from aiohttp import web

from streambroker_core.diagnose import Forecast, render_forecast
from streambroker_core.model import PortKey, kind_of, name_of
from streambroker_core.wire.encoding.canonical import JsonObject
from streambroker_operator.errors import RequestError
from streambroker_operator.rest.diagnose import (
    Proposed,
    forecast_body,
    limit_forecast,
    problems_body,
    read_proposal,
)
from streambroker_operator.rest.guard.authentication import CALLER, not_yours_error
from streambroker_operator.rest.guard.rate_limits import CALLER_LIMITS, caller_name
from streambroker_operator.rest.http.paths import APPLY
from streambroker_operator.rest.http.requests import (
    PRINCIPAL,
    RUNTIME,
    json_body,
    parse_integer,
    parse_namespace,
)
from streambroker_operator.rest.http.responses import long_answer
from streambroker_operator.runtime.runtime import AppliedProposal
from streambroker_operator.storage.write_options import WriteOptions

MAX_FORECAST_S = 1.0
"""Maximum duration of the forecast of several changes; it blocks the event loop. In seconds."""
MAX_COUNT = 999_999_999

_STATE_CODES = ("NameTaken", "PortTaken", "UnknownPort")
"""Problems caused by the current state; all others are faults of the change itself."""

routes = web.RouteTableDef()


@routes.post(APPLY)
async def apply(request: web.Request) -> web.Response:
    """Make a set of changes, all or none."""
    body = await json_body(request)
    namespace = parse_namespace(request)
    max_removed = parse_integer(request, "maxRemoved", 0, MAX_COUNT)
    runtime, limits = request.app[RUNTIME], request.app[CALLER_LIMITS]
    async with limits.scans.turn(caller_name(request)):
        proposed = await asyncio.to_thread(read_proposal, body, namespace)
        changes = len(proposed.parsed) + len(proposed.proposal.deletes)
        _check_owner(request, proposed.keys)
        limits.charge(request, max(changes, 1))
        puts = [(kind_of(one), one.key) for one in proposed.proposal.puts]
        limits.check_ports(
            runtime.board, (port for port in puts if runtime.store.get(*port) is None)
        )
        applied = await runtime.apply(
            proposed.proposal,
            partial(_check, proposed, max_removed),
            # A single change may be as expensive as the same change by PUT or DELETE.
            limit_forecast(MAX_FORECAST_S) if changes > 1 else lambda routes: None,
            options=WriteOptions(principal=request[PRINCIPAL]),
        )
    return await asyncio.to_thread(_answer, proposed, applied)


def _check_owner(request: web.Request, keys: list[PortKey]) -> None:
    caller = request[CALLER]
    foreign = [str(key) for key in keys if not caller.can_change(key.namespace, key.job)]
    if foreign:
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        raise not_yours_error(
            f"The token {caller.name!r} may not change {foreign[0]}{more}; nothing was changed."
            " Use the token of that job, or an admin's."
        )


def _check(proposed: Proposed, most: int | None, forecast: Forecast) -> None:
    result = proposed.with_indices(forecast)
    refused = [problem for problem in result.problems if problem.refused]
    if refused:
        first, others = refused[0], len(refused) - 1
        more = f" {others} more would be refused, too." if others else ""
        raise RequestError(
            409 if first.code in _STATE_CODES else 422,
            first.code,
            f"{first.change}: {first.detail}{more} Nothing was changed.",
            facts={"problems": problems_body(result.problems)},
        )
    if most is not None and len(result.cut) > most:
        count = "1 route" if len(result.cut) == 1 else f"{len(result.cut):,} routes"
        raise RequestError(
            409,
            "WouldCut",
            f"{count} would be cut, {most:,} may be; nothing was changed.",
            facts={"text": render_forecast(result), "cut": len(result.cut)},
        )


def _answer(proposed: Proposed, applied: AppliedProposal) -> web.Response:
    puts = len(proposed.proposal.puts)
    results: list[JsonObject] = []
    for index, stored in enumerate(applied.stored):
        resource = stored.resource
        outcome = "created" if stored.created else "changed" if stored.changed else "unchanged"
        results.append(
            {
                "kind": kind_of(resource),
                "port": str(resource.key),
                "name": name_of(resource),
                "became": outcome if index < puts else "deleted",
                "uid": resource.uid,
                "generation": resource.generation,
                "version": stored.version,
            }
        )
    body = forecast_body(proposed.with_indices(applied.forecast))
    return long_answer({**body, "results": results})
