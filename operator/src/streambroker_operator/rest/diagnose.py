"""``…/explain``, ``…/lint`` and ``…/whatif``: explain routes, find mistakes, preview changes.

Each may take long, so it runs in a thread on a snapshot or a copy of the board, one request at a
time, and the broker stays responsive.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import TypeVar

from aiohttp import web

from streambroker_core import diagnose
from streambroker_core.board import BoardReader
from streambroker_core.errors import ManifestError, StreambrokerError
from streambroker_core.model import (
    MAX_PE,
    Export,
    Import,
    Kind,
    PortKey,
    Removal,
    Resource,
    is_label,
    is_port_name,
    kind_of,
    seniority,
)
from streambroker_core.wire.encoding.canonical import JsonObject, without_none
from streambroker_core.wire.encoding.fields import Fields
from streambroker_core.wire.manifests.ports import read_manifest
from streambroker_operator.errors import RequestError
from streambroker_operator.rest.guard.authentication import CALLER, not_yours_error
from streambroker_operator.rest.guard.rate_limits import CALLER_LIMITS, caller_name
from streambroker_operator.rest.http import requests
from streambroker_operator.rest.http.paths import API, EXPLAIN, WHATIF
from streambroker_operator.rest.http.responses import json_answer, long_answer
from streambroker_operator.runtime.bodies import changed_values_body, route_body

DEFAULT_PAIRS = 20
MAX_PAIRS = 500
"""Maximum number of explained pairs in one response."""
DEFAULT_FINDINGS = 1_000
MAX_FINDINGS = 100_000
MAX_CHANGES = 1_000
"""Maximum number of resources, and of deletions, in one proposal."""
MAX_ROUTES = 100_000
"""Maximum number of routes of the changed resources after a proposal."""
MAX_FORECAST_S = 2.0
"""Maximum duration of a forecast, in seconds."""
BOARD_COPY_TTL_S = 300.0
"""How long the board copy is kept after the last what-if, in seconds."""

_KINDS: dict[str, Kind] = {"Export": "Export", "Import": "Import"}

R = TypeVar("R", Export, Import)

routes = web.RouteTableDef()


# ---- explain -----------------------------------------------------------------------------------


@routes.get(EXPLAIN)
async def explain(request: web.Request) -> web.Response:
    """Explain why two ports are connected or not, or which ports come nearest to one."""
    board = request.app[requests.RUNTIME].board
    export_key, import_key = _port(request, "export"), _port(request, "import")
    if export_key is None and import_key is None:
        raise requests.query_error("Name an import, an export or both: ?import=default/job/0/port.")
    limit = requests.parse_limit(request, MAX_PAIRS) or DEFAULT_PAIRS
    async with request.app[CALLER_LIMITS].scans.turn(caller_name(request)):
        snapshot = diagnose.take_snapshot(board, request[CALLER].namespaces)
        exports = _require_visible(request, "Export", export_key, board, snapshot.exports)
        imports = _require_visible(request, "Import", import_key, board, snapshot.imports)
        problems = _health_problems(request, [*exports, *imports])
        body = await asyncio.to_thread(_explain, snapshot, exports, imports, limit, problems)
    keys = {"export": export_key, "import": import_key}
    ports = {kind: None if key is None else str(key) for kind, key in keys.items()}
    return json_answer({**ports, **body})


def _port(request: web.Request, name: str) -> PortKey | None:
    text = request.query.get(name)
    if text is None:
        return None
    try:
        return PortKey.parse(text)
    except ManifestError as error:
        raise requests.query_error(
            f"{name}={text!r} is not NAMESPACE/JOB/PE/PORT: {error.reason}."
        ) from error


def _require_visible(
    request: web.Request,
    kind: Kind,
    key: PortKey | None,
    board: BoardReader,
    visible: Sequence[R],
) -> list[R]:
    """Return the visible resources that claim a port, oldest first, or raise 404.

    Raises 403 instead where the caller must not learn whether there are any.
    """
    if key is None:
        return []
    uids = {claimant.uid for claimant in board.claimants(kind, key)}
    found = sorted((one for one in visible if one.uid in uids), key=seniority) if uids else []
    if found:
        return found
    caller = request[CALLER]
    if not caller.can_read(key.namespace):
        raise not_yours_error(
            f"The token {caller.name!r} does not read the namespace {key.namespace!r}, and no"
            f" {kind.lower()} {key} is visible to its own namespace."
        )
    raise RequestError(404, "UnknownPort", f"There is no {kind.lower()} {key}.")


def _health_problems(request: web.Request, resources: Iterable[Resource]) -> list[JsonObject]:
    """Return why ports do not work, as their agents report it, of those the caller may read."""
    runtime, caller = request.app[requests.RUNTIME], request[CALLER]
    problems: list[JsonObject] = []
    for one in resources:
        kind, key = kind_of(one), one.key
        holds = runtime.board.holder(kind, key) == one and caller.can_read(key.namespace)
        healthy = runtime.port_reports.facts(one).healthy if holds else None
        if healthy is not None and not healthy.is_healthy:
            problems.append({"kind": kind, "port": str(key), **asdict(healthy)})
    return problems


def _explain(
    snapshot: diagnose.BoardSnapshot,
    exports: Sequence[Export],
    imports: Sequence[Import],
    limit: int,
    problems: Sequence[JsonObject],
) -> JsonObject:
    """Return the explanation of two ports, with all their claimants, or of the oldest of one."""
    findings: list[diagnose.LintFinding] = []
    if exports and imports:
        pairs = [snapshot.explain(export, import_) for export, import_ in product(exports, imports)]
        matched = sum(pair.matched for pair in pairs)
        nearest = sorted(pairs, key=lambda pair: pair.distance)[:limit]
        ranking = diagnose.Ranking(total=len(pairs), matched=matched, pairs=tuple(nearest))
        texts = [diagnose.render_pair(pair) for pair in nearest]
    else:
        resource = exports[0] if exports else imports[0]
        ranking = diagnose.explain_port(snapshot, resource, limit=limit)
        texts = [diagnose.render_ranking(resource, ranking)]
        if isinstance(resource, Import):
            offers = diagnose.collect_offered(snapshot)
            findings = diagnose.lint_import(resource, offers, matched=bool(ranking.matched))
        else:
            findings = diagnose.lint_export(resource, imported=bool(ranking.matched))
    texts += [f"! {finding.code}: {finding.message}" for finding in findings]
    texts += [
        f"! {one['kind']} {one['port']}: {one['reason']}: {one['message']}" for one in problems
    ]
    return {
        "total": ranking.total,
        "matched": ranking.matched,
        "pairs": [_pair_body(pair) for pair in ranking.pairs],
        "lint": [{"code": finding.code, "message": finding.message} for finding in findings],
        "problems": list(problems),
        "text": "\n".join(texts),
    }


def _pair_body(pair: diagnose.Pair) -> JsonObject:
    return {
        "export": str(pair.export),
        "import": str(pair.import_),
        "matched": pair.matched,
        "reason": pair.reason,
        "message": pair.message,
        "distance": pair.distance,
        **without_none(policies=pair.policies),
        "obstacles": [asdict(obstacle) for obstacle in pair.obstacles],
        "predicates": [asdict(finding) for finding in pair.predicates],
        "misses": [
            [
                {"text": finding.text, "wanted": wanted, "why": finding.why}
                for finding, wanted in zip(miss.wrong, miss.desired, strict=True)
            ]
            for miss in pair.nearest
        ],
    }


# ---- lint --------------------------------------------------------------------------------------


@routes.get(API + "/lint")
async def get_lint(request: web.Request) -> web.Response:
    """Return the findings of a namespace, or of all with ``?namespace=*``.

    Only resources that the caller may read are checked.
    """
    namespace = requests.parse_namespace_or_all(request)
    limit = requests.parse_limit(request, MAX_FINDINGS) or DEFAULT_FINDINGS
    board = request.app[requests.RUNTIME].board
    async with request.app[CALLER_LIMITS].scans.turn(caller_name(request)):
        lint_input = diagnose.collect_lint_input(
            board, diagnose.take_snapshot(board, request[CALLER].namespaces)
        )
        all_findings = await asyncio.to_thread(diagnose.lint, lint_input)
    selected = [
        finding
        for finding in all_findings
        if finding.about is None or namespace in ("*", finding.about.key.namespace)
    ]
    return json_answer(
        {
            "findings": [
                {"code": one.code, "resource": one.resource, "message": one.message}
                for one in selected[:limit]
            ],
            "total": len(selected),
            "text": diagnose.render_findings(selected[:limit], len(selected)),
        }
    )


# ---- what-if -----------------------------------------------------------------------------------


class Forecasts:
    """Runs forecasts on a copy of the board."""

    def __init__(self) -> None:
        self._board_copy: diagnose.BoardCopy | None = None
        self._lock = threading.Lock()
        self._end: asyncio.TimerHandle | None = None

    async def answer(self, board: BoardReader, proposal: Proposed) -> web.Response:
        """Return the effect of a proposal on the current board."""
        if self._end is not None:
            self._end.cancel()
        loop = asyncio.get_running_loop()
        try:
            return await asyncio.to_thread(self._answer, diagnose.take_snapshot(board), proposal)
        finally:
            self._end = loop.call_later(BOARD_COPY_TTL_S, self._forget)

    def _answer(self, resources: diagnose.BoardSnapshot, proposed: Proposed) -> web.Response:
        # The thread of a cancelled request may still be running.
        with self._lock:
            board_copy, self._board_copy = self._board_copy or diagnose.BoardCopy(), None
            board = board_copy.load(resources)
            self._board_copy = board_copy
            result = diagnose.forecast(
                board, proposed.proposal, watch=limit_forecast(MAX_FORECAST_S)
            )
        return long_answer(forecast_body(proposed.with_indices(result)))

    def _forget(self) -> None:
        self._board_copy = None


FORECASTS = web.AppKey("forecasts", Forecasts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposed:
    """A proposal, and the parsed resource or the error of each of its manifests."""

    proposal: diagnose.Proposal
    parsed: Sequence[Resource | StreambrokerError]

    @property
    def keys(self) -> list[PortKey]:
        """The ports of the proposal, without manifests that cannot be parsed."""
        puts, deletes = self.proposal.puts, self.proposal.deletes
        return [*(one.key for one in puts), *(one.key for one in deletes)]

    def with_indices(self, result: diagnose.Forecast) -> diagnose.Forecast:
        """Return a forecast with problem indices of the request, and with parse errors added."""
        errors = {n: one for n, one in enumerate(self.parsed) if isinstance(one, StreambrokerError)}
        count = len(self.parsed) + len(self.proposal.deletes)
        indices = [n for n in range(count) if n not in errors]
        problems = [replace(one, index=indices[one.index]) for one in result.problems]
        problems += [
            diagnose.ProposalProblem(
                index=n, change=f"resource {n}", code=error.code, detail=str(error)
            )
            for n, error in errors.items()
        ]
        ordered = sorted(problems, key=lambda problem: problem.index)
        return replace(result, problems=tuple(ordered))


@routes.post(WHATIF)
async def whatif(request: web.Request) -> web.Response:
    """Return the effect of a set of changes on the routes."""
    limits, caller = request.app[CALLER_LIMITS], caller_name(request)
    limits.forecasts.count(caller)
    body = await requests.json_body(request)
    namespace = requests.parse_namespace(request)
    async with limits.scans.turn(caller):
        proposed = await asyncio.to_thread(read_proposal, body, namespace)
        _check_namespaces(request, proposed.keys)
        return await request.app[FORECASTS].answer(request.app[requests.RUNTIME].board, proposed)


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
    return Proposed(proposal=diagnose.Proposal(puts=puts, deletes=tuple(deletes)), parsed=parsed)


def limit_forecast(seconds: float) -> Callable[[int], None]:
    """Return a watch function that aborts a forecast that is too large or takes too long."""
    end = time.monotonic() + seconds

    def watch(found: int) -> None:
        problem = ""
        if found > MAX_ROUTES:
            problem = f"affect more than {MAX_ROUTES:,} routes. Send fewer of them at once."
        elif time.monotonic() > end:
            problem = (
                f"take longer than {seconds:g} s to predict. Send fewer of them at once, or send"
                " them again when the broker is less busy."
            )
        if problem:
            raise RequestError(422, "ForecastTooLarge", f"These changes {problem}")

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


def forecast_body(result: diagnose.Forecast) -> JsonObject:
    """Return the JSON of a forecast."""
    return {
        "added": [route_body(route) for route in result.added],
        "cut": [{**route_body(cut.route), "reason": cut.reason} for cut in result.cut],
        "changed": [
            {**route_body(one.route), "was": changed_values_body(one.route, one.old_route)}
            for one in result.changed
        ],
        "kept": result.unchanged,
        "edited": [_edited_body(one) for one in result.edited],
        "problems": problems_body(result.problems),
        "text": diagnose.render_forecast(result),
    }


def _edited_body(edited: diagnose.EditedResource) -> JsonObject:
    fields = {name: {"was": old, "now": new} for name, (old, new) in edited.edits().items()}
    resource = edited.resource
    return {"kind": kind_of(resource), "port": str(resource.key), "fields": fields}


def problems_body(problems: Iterable[diagnose.ProposalProblem]) -> list[JsonObject]:
    """Return the JSON of problems."""
    return [asdict(problem) for problem in problems]
