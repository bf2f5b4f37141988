"""``…/explain``: why two ports are connected or not, and the nearest candidates of a port.

It may take long, so it runs in a thread on a snapshot of the board, and the broker stays
responsive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeVar

from aiohttp import web

from streambroker_core.diagnose import (
    BoardSnapshot,
    LintFinding,
    Pair,
    Ranking,
    collect_offered,
    explain_export,
    explain_import,
    explain_pair,
    lint_export,
    lint_import,
    render_export,
    render_import,
    render_pair,
    take_snapshot,
)
from streambroker_core.errors import ManifestError
from streambroker_core.model import Export, Import, PortKey, seniority
from streambroker_operator.errors import RequestError
from streambroker_operator.rest.guard.authentication import CALLER, not_yours_error
from streambroker_operator.rest.guard.fair_queue import FAIR_QUEUE
from streambroker_operator.rest.guard.rate_limits import caller_name
from streambroker_operator.rest.http.paths import EXPLAIN
from streambroker_operator.rest.http.requests import RUNTIME, parse_limit
from streambroker_operator.rest.http.responses import json_answer

DEFAULT_PAIRS = 20
MAX_PAIRS = 500
"""Maximum number of pairs in one response."""

R = TypeVar("R", Export, Import)

routes = web.RouteTableDef()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """Resources to explain; all claimants of a port are explained together."""

    exports: Sequence[Export]
    imports: Sequence[Import]
    candidates: BoardSnapshot
    limit: int


@routes.get(EXPLAIN)
async def explain(request: web.Request) -> web.Response:
    """Explain why two ports are connected or not, or which ports come nearest to one."""
    board = request.app[RUNTIME].board
    export_key, import_key = _port(request, "export"), _port(request, "import")
    if export_key is None and import_key is None:
        raise RequestError(
            400, "QueryInvalid", "Name an import, an export or both: ?import=default/job/0/port."
        )
    limit = parse_limit(request, MAX_PAIRS) or DEFAULT_PAIRS
    async with request.app[FAIR_QUEUE].turn(caller_name(request)):
        snapshot = take_snapshot(board, request[CALLER].namespaces)
        exports = board.exports_claiming(export_key) if export_key else []
        imports = board.imports_claiming(import_key) if import_key else []
        question = _Question(
            exports=_require_visible(
                request, export_key, "export", _select_visible(exports, snapshot.exports)
            ),
            imports=_require_visible(
                request, import_key, "import", _select_visible(imports, snapshot.imports)
            ),
            candidates=snapshot,
            limit=limit,
        )
        body = await asyncio.to_thread(_explain, question)
    ports = {"export": _text(export_key), "import": _text(import_key)}
    return json_answer({**ports, **body})


def _port(request: web.Request, name: str) -> PortKey | None:
    text = request.query.get(name)
    if text is None:
        return None
    try:
        return PortKey.parse(text)
    except ManifestError as error:
        raise RequestError(
            400, "QueryInvalid", f"{name}={text!r} is not NAMESPACE/JOB/PE/PORT: {error.reason}."
        ) from error


def _select_visible(resources: Sequence[R], visible: Sequence[R]) -> list[R]:
    uids = {resource.uid for resource in visible} if resources else set()
    among = (resource for resource in resources if resource.uid in uids)
    return sorted(among, key=seniority)


def _require_visible(
    request: web.Request, key: PortKey | None, kind: str, resources: list[R]
) -> list[R]:
    """Return the visible resources of a port, or raise 404.

    Raises 403 instead where the caller must not learn whether there are any.
    """
    if key is None or resources:
        return resources
    caller = request[CALLER]
    if not caller.can_read(key.namespace):
        raise not_yours_error(
            f"The token {caller.name!r} does not read the namespace {key.namespace!r}, and no"
            f" {kind} {key} is visible to its own namespace."
        )
    raise RequestError(404, "UnknownPort", f"There is no {kind} {key}.")


def _text(key: PortKey | None) -> str | None:
    return None if key is None else str(key)


def _explain(question: _Question) -> dict[str, Any]:
    findings: list[LintFinding] = []
    if question.exports and question.imports:
        pairs = _pairs(question)
        matched = sum(pair.matched for pair in pairs)
        ranking = Ranking(total=len(pairs), matched=matched, pairs=pairs[: question.limit])
        texts = [render_pair(pair) for pair in ranking.pairs]
    elif question.imports:
        import_ = question.imports[0]
        ranking = explain_import(question.candidates, import_, limit=question.limit)
        texts = [render_import(import_.key, ranking)]
        offers = collect_offered(question.candidates)
        findings = lint_import(import_, offers, matched=bool(ranking.matched))
    else:
        export = question.exports[0]
        ranking = explain_export(question.candidates, export, limit=question.limit)
        texts = [render_export(export.key, ranking)]
        findings = lint_export(export, imported=bool(ranking.matched))
    texts += [f"! {finding.code}: {finding.message}" for finding in findings]
    return {
        "total": ranking.total,
        "matched": ranking.matched,
        "pairs": [_pair_body(pair) for pair in ranking.pairs],
        "lint": [{"code": finding.code, "message": finding.message} for finding in findings],
        "text": "\n".join(texts),
    }


def _pairs(question: _Question) -> tuple[Pair, ...]:
    snapshot = question.candidates
    pairs = (
        explain_pair(
            export,
            import_,
            export_conflict=snapshot.export_conflicts.get(export.uid),
            import_conflict=snapshot.import_conflicts.get(import_.uid),
        )
        for export, import_ in product(question.exports, question.imports)
    )
    return tuple(sorted(pairs, key=lambda pair: pair.distance))


def _pair_body(pair: Pair) -> dict[str, Any]:
    return {
        "export": str(pair.export),
        "import": str(pair.import_),
        "matched": pair.matched,
        "reason": pair.reason,
        "message": pair.message,
        "distance": pair.distance,
        "obstacles": [
            {"reason": one.reason, "message": one.message, "changes": one.changes}
            for one in pair.obstacles
        ],
        "predicates": [
            {"text": finding.text, "value": finding.value, "why": finding.why}
            for finding in pair.predicates
        ],
        "misses": [
            [
                {"text": finding.text, "wanted": wanted, "why": finding.why}
                for finding, wanted in zip(miss.wrong, miss.desired, strict=True)
            ]
            for miss in pair.nearest
        ],
    }
