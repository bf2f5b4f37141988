"""Rules of patterns of a cluster, changed by server-side apply; the rules of `writes` hold."""

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
    """One rule as it should be, and how it is to become so."""

    target: ObjectPath
    rule: Rule
    touched: Touched | None
    options: WriteOptions


class RuleWrites:
    """Creates, changes and deletes the objects of rules.

    Args:
        objects: single objects of the API server.
        board: filled by the feed.
    """

    def __init__(self, objects: Objects, board: Board) -> None:
        self._objects, self._rules = objects, board.rules

    async def put(self, rule: Rule, touched: Touched | None, options: WriteOptions) -> StoredRule:
        """Create a rule, or change the fields that a change is about.

        Raises:
            RequestError: 404, a change of some fields is about a rule that is gone; 409
                `OwnedByOther` or `NameTaken`; 412 by the terms; 503, the API server cannot be
                asked, or the rule changes all the time.
        """
        known = self._rules.holder_at(rule.key)
        name = rule_name_of(rule if rule.name or known is None else known)
        place = ObjectPath(kind=RULE, namespace=rule.key.namespace, name=name)
        put = _RulePut(target=place, rule=rule, touched=touched, options=options)

        async def once(live: Document | None) -> StoredRule:
            return await (self._create(put) if live is None else self._change(put, live))

        return await self._objects.read_modify_write(place, once)

    async def _create(self, put: _RulePut) -> StoredRule:
        spec, terms = write_rule_spec(put.rule), put.options
        if put.touched is not None:
            terms.check(None)
            raise unknown_rule(put.rule.key)
        applied = await applying.create(self._objects, put.target, spec, terms)
        return _stored(applied.document, created=applied.created)

    async def _change(self, put: _RulePut, live: Document) -> StoredRule:
        _check_id(put, live)
        put.options.check(object_etag(live))
        now: Document = live.get("spec", {})
        edit = compute_edit({"id": put.rule.key.id, **now}, write_rule_spec(put.rule), put.touched)
        if not edit:
            return _stored(live, changed=False)
        check_removals(RULE, put.target.name, live, edit)
        outcome = apply_edit(now, edit)
        own = own_part(live).get("spec", {})
        body = apply_body(live, spec_to_apply(own, edit, outcome))
        document, warnings = await applying.change(
            self._objects, put.target, live, body, put.options
        )
        return _stored(document, warnings=warnings)

    async def delete(self, key: RuleKey, options: WriteOptions) -> StoredRule | None:
        """Delete a rule; return what it was, None if there is none.

        The deletion's own version is told by the feed alone.

        Raises:
            RequestError: 412 by the terms; 403, the broker may not; 503 as `put`.
        """
        known = self._rules.holder_at(key)
        if known is None:
            return None
        place = ObjectPath(kind=RULE, namespace=key.namespace, name=rule_name_of(known))
        version = self._rules.cache.version_of(known.uid)

        await applying.delete(self._objects, place, known.uid, options)
        return StoredRule(rule=known, version=version, changed=True)


def _check_id(put: _RulePut, live: Document) -> None:
    """Refuse to change an object that is another rule's.

    Raises:
        RequestError: 409 `NameTaken`.
    """
    key, spec = put.rule.key, live.get("spec", {})
    try:
        found = read_rule_spec(spec, namespace=key.namespace, name=put.target.name).key
    except ManifestError:
        found = RuleKey(key.namespace, str(spec.get("job")), str(spec.get("id")))
    if found != key:
        raise name_taken(put.target.name, key, found)


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
