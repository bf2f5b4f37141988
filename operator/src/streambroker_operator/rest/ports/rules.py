"""``/api/jobs/{job}/patterns``: the rules of patterns of a job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from aiohttp import web

from streambroker_core.errors import ManifestError
from streambroker_core.model import Rule, RuleKey, is_label, is_rule_id
from streambroker_core.wire.encoding.canonical import digest
from streambroker_core.wire.manifests.rules import read_rule_manifest, read_rule_spec
from streambroker_operator.errors import unknown_rule
from streambroker_operator.rest.http.paths import ENABLE, PATTERN, PATTERNS
from streambroker_operator.rest.http.preconditions import check_tag
from streambroker_operator.rest.http.requests import RUNTIME, json_body, namespace_of, terms_of
from streambroker_operator.rest.http.responses import json_answer
from streambroker_operator.rest.ports.resources import owners_of
from streambroker_operator.runtime.rules import rule_body
from streambroker_operator.storage.backend import StoredRule

routes = web.RouteTableDef()


@routes.get(PATTERNS)
async def list_patterns(request: web.Request) -> web.Response:
    """Answer the rules of a job, in the order of their ids; none if it has none."""
    job = _job_of(request)
    found = [_shown(request, stored) for stored in request.app[RUNTIME].rules.of_job(job)]
    return json_answer({"patterns": found})


@routes.get(PATTERN)
async def get_pattern(request: web.Request) -> web.Response:
    """Answer a rule's manifest with its status."""
    stored = _stored(request)
    body = _shown(request, stored)
    more = digest([stored.rule.name, body["status"]])[:16]
    return json_answer(body, headers={"ETag": f'"{_tag(stored)}+{more}"'})


@routes.put(PATTERN)
async def put_pattern(request: web.Request) -> web.Response:
    """Create or replace a rule from its document, a spec, or a whole manifest."""
    body, key = await json_body(request), _key_of(request)
    rule = _read(body, key)
    rules = request.app[RUNTIME].rules
    known = rules.get(key)
    check_tag(request, None if known is None else _tag(known))
    if known is not None and not rule.enable:
        rule = replace(rule, enable=known.rule.enable)
    stored = await rules.put(rule, terms=terms_of(request, owners_of(body)))
    return _written(stored, status=201 if stored.created else 200)


@routes.delete(PATTERN)
async def delete_pattern(request: web.Request) -> web.Response:
    """Delete a rule; its partial matches go."""
    stored = _stored(request)
    check_tag(request, _tag(stored))
    terms = terms_of(request)
    return _written(await request.app[RUNTIME].rules.delete(stored.rule.key, terms=terms))


@routes.post(ENABLE)
async def enable_pattern(request: web.Request) -> web.Response:
    """Have a rule run again that an error has turned off."""
    stored = _stored(request)
    check_tag(request, _tag(stored))
    terms = terms_of(request)
    return _written(await request.app[RUNTIME].rules.enable(stored.rule.key, terms=terms))


def _job_of(request: web.Request) -> tuple[str, str]:
    job = request.match_info["job"]
    if not is_label(job):
        raise ManifestError(path="job", reason=f"is {job[:64]!r}, which is not a DNS label")
    return namespace_of(request), job


def _key_of(request: web.Request) -> RuleKey:
    """Return the rule of the address, whether it is there or not.

    Raises:
        ManifestError: it cannot be one.
    """
    namespace, job = _job_of(request)
    id_ = request.match_info["id"]
    if not is_rule_id(id_):
        raise ManifestError(
            path="id",
            reason=f"is {id_[:64]!r}, which is not made of letters, digits, -, _ and ., with a"
            " letter or digit at both ends",
        )
    return RuleKey(namespace, job, id_)


def _stored(request: web.Request) -> StoredRule:
    """Return the rule of the address.

    Raises:
        RequestError: 404, there is none.
    """
    id_ = request.match_info["id"]
    try:
        key = _key_of(request)
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
    if document.key.namespace != key.namespace:
        raise ManifestError(
            path="metadata.namespace",
            reason=f"is {document.key.namespace!r}, but the address says {key.namespace!r}",
        )
    return replace(read_rule_spec(body["spec"], key=key, path="spec"), name=document.name)


def _shown(request: web.Request, stored: StoredRule) -> dict[str, Any]:
    runtime = request.app[RUNTIME]
    status = runtime.board.rules.status(stored.rule.uid)
    return rule_body(stored, status, runtime.rules.told(stored.rule))


def _tag(stored: StoredRule) -> str:
    return f"{stored.rule.uid}.{stored.rule.generation}"


def _written(stored: StoredRule, *, status: int = 200) -> web.Response:
    body = {
        "uid": stored.rule.uid,
        "generation": stored.rule.generation,
        "version": stored.version,
        "created": stored.created,
        "changed": stored.changed,
        **({"warnings": list(stored.warnings)} if stored.warnings else {}),
    }
    return json_answer(body, status=status, headers={"ETag": f'"{_tag(stored)}"'})
