"""``/api/jobs/{job}/patterns``: pattern rules of a job."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from aiohttp import web

from streambroker_core.errors import ManifestError
from streambroker_core.model import Rule, RuleKey, is_label, is_rule_id
from streambroker_core.wire.manifests.rules import read_rule_manifest, read_rule_spec
from streambroker_operator.errors import unknown_rule
from streambroker_operator.rest.http.paths import ENABLE, PATTERN, PATTERNS
from streambroker_operator.rest.http.preconditions import body_etag, check_match
from streambroker_operator.rest.http.requests import (
    RUNTIME,
    json_body,
    parse_namespace,
    parse_write_options,
)
from streambroker_operator.rest.http.responses import json_answer, stored_answer
from streambroker_operator.rest.ports.resources import check_namespace, parse_owners
from streambroker_operator.runtime.bodies import ResourceBody
from streambroker_operator.runtime.rules import rule_body
from streambroker_operator.storage.backend import StoredRule

routes = web.RouteTableDef()


@routes.get(PATTERNS)
async def list_patterns(request: web.Request) -> web.Response:
    """Return the rules of a job, sorted by id."""
    job = _parse_job(request)
    bodies = [
        _rule_answer_body(request, stored) for stored in request.app[RUNTIME].rules.job_rules(job)
    ]
    return json_answer({"patterns": bodies})


@routes.get(PATTERN)
async def get_pattern(request: web.Request) -> web.Response:
    """Return a rule's manifest with its status."""
    stored = _require_rule(request)
    body = _rule_answer_body(request, stored)
    return json_answer(body, headers={"ETag": body_etag(stored.rule, body["status"])})


@routes.put(PATTERN)
async def put_pattern(request: web.Request) -> web.Response:
    """Create or replace a rule from its document, a spec, or a whole manifest."""
    body, key = await json_body(request), _parse_key(request)
    rule = _read(body, key)
    rules = request.app[RUNTIME].rules
    current = rules.get(key)
    check_match(request, None if current is None else current.rule)
    if current is not None and not rule.enable:
        rule = replace(rule, enable=current.rule.enable)
    stored = await rules.put(rule, options=parse_write_options(request, parse_owners(body)))
    return stored_answer(stored.rule, stored, status=201 if stored.created else 200)


@routes.delete(PATTERN)
async def delete_pattern(request: web.Request) -> web.Response:
    """Delete a rule and its partial matches."""
    return await _change(request, request.app[RUNTIME].rules.delete)


@routes.post(ENABLE)
async def enable_pattern(request: web.Request) -> web.Response:
    """Re-enable a rule that an error has turned off."""
    return await _change(request, request.app[RUNTIME].rules.enable)


async def _change(
    request: web.Request, change: Callable[..., Awaitable[StoredRule]]
) -> web.Response:
    rule = _require_rule(request).rule
    check_match(request, rule)
    stored = await change(rule.key, options=parse_write_options(request))
    return stored_answer(stored.rule, stored)


def _parse_job(request: web.Request) -> tuple[str, str]:
    job = request.match_info["job"]
    if not is_label(job):
        raise ManifestError(path="job", reason=f"is {job[:64]!r}, which is not a DNS label")
    return parse_namespace(request), job


def _parse_key(request: web.Request) -> RuleKey:
    """Return the rule key of the path, valid but not necessarily known."""
    namespace, job = _parse_job(request)
    id_ = request.match_info["id"]
    if not is_rule_id(id_):
        raise ManifestError(
            path="id",
            reason=f"is {id_[:64]!r}, which is not made of letters, digits, -, _ and ., with a"
            " letter or digit at both ends",
        )
    return RuleKey(namespace, job, id_)


def _require_rule(request: web.Request) -> StoredRule:
    id_ = request.match_info["id"]
    try:
        key = _parse_key(request)
    except ManifestError:
        raise unknown_rule(RuleKey("", request.match_info["job"], id_)) from None
    stored = request.app[RUNTIME].rules.get(key)
    if stored is None:
        raise unknown_rule(key)
    return stored


def _read(body: Any, key: RuleKey) -> Rule:
    if not (isinstance(body, dict) and "kind" in body and "spec" in body):
        return read_rule_spec(body, key=key)
    document = read_rule_manifest(body, namespace=key.namespace)
    check_namespace(document.key.namespace, key.namespace)
    return replace(read_rule_spec(body["spec"], key=key, path="spec"), name=document.name)


def _rule_answer_body(request: web.Request, stored: StoredRule) -> ResourceBody:
    runtime = request.app[RUNTIME]
    status = runtime.board.rules.status(stored.rule.uid)
    return rule_body(stored, status, runtime.rules.reported_status(stored.rule))
