"""Pattern rules of a cluster, changed by server-side apply as in `port_store`."""

from __future__ import annotations

from dataclasses import dataclass

from streambroker_core.board import Board
from streambroker_core.errors import ManifestError
from streambroker_core.model import RULE, Rule, RuleKey, rule_name_of
from streambroker_core.wire.manifests.rules import (
    read_rule_manifest,
    read_rule_spec,
    write_rule_spec,
)
from streambroker_operator.errors import unknown_rule
from streambroker_operator.kubernetes.apply import server_side as applying
from streambroker_operator.kubernetes.apply.conflicts import check_removals, object_etag
from streambroker_operator.kubernetes.apply.patch import (
    apply_body,
    apply_edit,
    compute_edit,
    own_part,
    spec_to_apply,
)
from streambroker_operator.kubernetes.client.managed_fields import Document
from streambroker_operator.kubernetes.client.objects import ObjectPath, Objects
from streambroker_operator.storage.backend import StoredRule
from streambroker_operator.storage.sqlite_rules import name_taken
from streambroker_operator.storage.write_options import Touched, WriteOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class _RulePut:
    """Desired state of one rule, and how to write it."""

    target: ObjectPath
    rule: Rule
    touched: Touched | None
    options: WriteOptions


class RuleWrites:
    """Creates, changes and deletes the objects of rules."""

    def __init__(self, objects: Objects, board: Board) -> None:
        self._objects, self._rules = objects, board.rules

    async def put(self, rule: Rule, touched: Touched | None, options: WriteOptions) -> StoredRule:
        """Create a rule, or change the touched fields.

        Raises:
            RequestError: 404, no such rule to change partially; 409 `OwnedByOther` or
                `NameTaken`; 412, precondition failed; 503, the API server is unavailable, or the
                rule keeps changing.
        """
        current = self._rules.holder_at(rule.key)
        name = rule_name_of(rule if rule.name or current is None else current)
        target = ObjectPath(kind=RULE, namespace=rule.key.namespace, name=name)
        put = _RulePut(target=target, rule=rule, touched=touched, options=options)

        async def once(live: Document | None) -> StoredRule:
            return await (self._create(put) if live is None else self._change(put, live))

        return await self._objects.read_modify_write(target, once)

    async def _create(self, put: _RulePut) -> StoredRule:
        spec, options = write_rule_spec(put.rule), put.options
        if put.touched is not None:
            options.check(None)
            raise unknown_rule(put.rule.key)
        applied = await applying.create(self._objects, put.target, spec, options)
        return _stored(applied.document, created=applied.created)

    async def _change(self, put: _RulePut, live: Document) -> StoredRule:
        _check_id(put, live)
        put.options.check(object_etag(live))
        current: Document = live.get("spec", {})
        edit = compute_edit(
            {"id": put.rule.key.id, **current}, write_rule_spec(put.rule), put.touched
        )
        if not edit:
            return _stored(live, changed=False)
        check_removals(RULE, put.target.name, live, edit)
        outcome = apply_edit(current, edit)
        own_spec = own_part(live).get("spec", {})
        body = apply_body(live, spec_to_apply(own_spec, edit, outcome))
        document, warnings = await applying.change(
            self._objects, put.target, live, body, put.options
        )
        return _stored(document, warnings=warnings)

    async def delete(self, key: RuleKey, options: WriteOptions) -> StoredRule | None:
        """Delete a rule; return its last known state, or None if there is none.

        Only the feed reports the version of the deletion.

        Raises:
            RequestError: 412, precondition failed; 403, forbidden; 503 as for `put`.
        """
        rule = self._rules.holder_at(key)
        if rule is None:
            return None
        target = ObjectPath(kind=RULE, namespace=key.namespace, name=rule_name_of(rule))
        version = self._rules.cache.version_of(rule.uid)

        await applying.delete(self._objects, target, rule.uid, options)
        return StoredRule(rule=rule, version=version, changed=True)


def _check_id(put: _RulePut, live: Document) -> None:
    """Raise 409 `NameTaken` unless the object belongs to the rule."""
    key, spec = put.rule.key, live.get("spec", {})
    try:
        existing = read_rule_spec(spec, namespace=key.namespace, name=put.target.name).key
    except ManifestError:
        existing = RuleKey(key.namespace, str(spec.get("job")), str(spec.get("id")))
    if existing != key:
        raise name_taken(put.target.name, key, existing)


def _stored(
    document: Document,
    *,
    changed: bool = True,
    created: bool = False,
    warnings: tuple[str, ...] = (),
) -> StoredRule:
    return StoredRule(
        rule=read_rule_manifest(document, loose=True),
        version=int(document["metadata"]["resourceVersion"]),
        created=created,
        changed=changed,
        warnings=warnings,
    )
