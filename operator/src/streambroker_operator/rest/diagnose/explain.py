"""``…/explain``: why two ports are connected or not, and who is how near.

It may take long, so it is done in a thread, on a picture of the board: the broker answers
others meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeVar

from aiohttp import web

from streambroker_core.diagnose import (
    Finding,
    Pair,
    Ranking,
    Survey,
    explain_export,
    explain_import,
    explain_pair,
    lint_export,
    lint_import,
    offers_of,
    survey,
    tell_export,
    tell_import,
    tell_pair,
)
from streambroker_core.errors import ManifestError
from streambroker_core.model import Export, Import, PortKey, seniority
from streambroker_operator.errors import RequestError
from streambroker_operator.rest.guard.authentication import CALLER, not_yours
from streambroker_operator.rest.guard.fair_queue import TURNS
from streambroker_operator.rest.guard.rate_limits import who_asks
from streambroker_operator.rest.http.paths import EXPLAIN
from streambroker_operator.rest.http.requests import RUNTIME, limit_of
from streambroker_operator.rest.http.responses import json_answer

USUAL_PAIRS = 20
MAX_PAIRS = 500
"""Pairs that are explained in one answer."""

R = TypeVar("R", Export, Import)

routes = web.RouteTableDef()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """What is to be explained; rivals for a port are asked about together."""

    exports: Sequence[Export]
    imports: Sequence[Import]
    known: Survey
    limit: int


@routes.get(EXPLAIN)
async def explain(request: web.Request) -> web.Response:
    """Answer why two ports are connected or not, or who is how near to one of them."""
    board = request.app[RUNTIME].board
    export_key, import_key = _port(request, "export"), _port(request, "import")
    if export_key is None and import_key is None:
        raise RequestError(
            400, "QueryInvalid", "Name an import, an export or both: ?import=default/job/0/port."
        )
    limit = limit_of(request, MAX_PAIRS) or USUAL_PAIRS
    async with request.app[TURNS].of(who_asks(request)):
        known = survey(board, request[CALLER].namespaces)
        exports = board.exports_on(export_key) if export_key else []
        imports = board.imports_on(import_key) if import_key else []
        question = _Question(
            exports=_held(request, export_key, "export", _shown(exports, known.exports)),
            imports=_held(request, import_key, "import", _shown(imports, known.imports)),
            known=known,
            limit=limit,
        )
        body = await asyncio.to_thread(_explained, question)
    named = {"export": _text(export_key), "import": _text(import_key)}
    return json_answer({**named, **body})


def _port(request: web.Request, name: str) -> PortKey | None:
    text = request.query.get(name)
    if text is None:
        return None
    try:
        return PortKey.parse(text)
    except ManifestError as error:
        raise RequestError(
            400, "QueryInvalid", f"{name}={text!r} is no NAMESPACE/JOB/PE/PORT: {error.reason}."
        ) from error


def _shown(found: Sequence[R], known: Sequence[R]) -> list[R]:
    """Return the resources that are among those known to the caller, the oldest first."""
    uids = {resource.uid for resource in known} if found else set()
    among = (resource for resource in found if resource.uid in uids)
    return sorted(among, key=seniority)


def _held(request: web.Request, key: PortKey | None, kind: str, found: list[R]) -> list[R]:
    """Return the resources of a port that is asked about.

    Raises:
        RequestError: 404, there are none; 403, the caller may not know whether there are.
    """
    if key is None or found:
        return found
    caller = request[CALLER]
    if not caller.reads(key.namespace):
        raise not_yours(
            f"The token {caller.name!r} does not read the namespace {key.namespace!r}, and no"
            f" {kind} {key} is shown to its own."
        )
    raise RequestError(404, "UnknownPort", f"There is no {kind} {key}.")


def _text(key: PortKey | None) -> str | None:
    return None if key is None else str(key)


def _explained(question: _Question) -> dict[str, Any]:
    findings: list[Finding] = []
    if question.exports and question.imports:
        pairs = _pairs(question)
        matched = sum(pair.matched for pair in pairs)
        ranking = Ranking(total=len(pairs), matched=matched, pairs=pairs[: question.limit])
        told = [tell_pair(pair) for pair in ranking.pairs]
    elif question.imports:
        import_ = question.imports[0]
        ranking = explain_import(question.known, import_, limit=question.limit)
        told = [tell_import(import_.key, ranking)]
        offers = offers_of(question.known)
        findings = lint_import(import_, offers, matched=bool(ranking.matched))
    else:
        export = question.exports[0]
        ranking = explain_export(question.known, export, limit=question.limit)
        told = [tell_export(export.key, ranking)]
        findings = lint_export(export, imported=bool(ranking.matched))
    told += [f"! {finding.code}: {finding.message}" for finding in findings]
    return {
        "total": ranking.total,
        "matched": ranking.matched,
        "pairs": [_pair_body(pair) for pair in ranking.pairs],
        "lint": [{"code": finding.code, "message": finding.message} for finding in findings],
        "text": "\n".join(told),
    }


def _pairs(question: _Question) -> tuple[Pair, ...]:
    known = question.known
    found = (
        explain_pair(
            export,
            import_,
            export_taken=known.taken_exports.get(export.uid),
            import_taken=known.taken_imports.get(import_.uid),
        )
        for export, import_ in product(question.exports, question.imports)
    )
    return tuple(sorted(found, key=lambda pair: pair.distance))


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
                for finding, wanted in zip(miss.wrong, miss.wanted, strict=True)
            ]
            for miss in pair.nearest
        ],
    }
