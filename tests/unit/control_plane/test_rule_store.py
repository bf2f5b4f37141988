"""Rules in the file of a broker: identity, generation, names, and what outlives a restart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streambroker_core.board import Synced
from streambroker_core.model import RULE, Rule, RuleKey
from streambroker_core.wire.manifests.rules import read_rule_spec
from streambroker_operator.errors import RequestError
from streambroker_operator.storage.sqlite_store import Store
from support.core.at_once import at_once


def rule(id_: str = "Dear_one", version: int = 1, **fields: Any) -> Rule:
    pattern = {"stages": [{"name": "a"}]}
    return replace(
        read_rule_spec({"job": "alerts", "id": id_, "version": version, "pattern": pattern}),
        **fields,
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "broker.db", clock=lambda: 100.0)
    yield opened
    opened.close()


def listed(store: Store) -> list[tuple[Rule, int]]:
    (event,) = [e for e in store.load() if isinstance(e, Synced) and e.kind == RULE]
    return [(one, version) for one, version in event.listed if isinstance(one, Rule)]


def test_a_rule_gets_identity_name_and_generation_and_keeps_them(store: Store) -> None:
    first = at_once(store.put_rule(rule()))
    same = at_once(store.put_rule(rule()))
    other = at_once(store.put_rule(rule(version=2)))

    assert (first.created, first.changed, first.version) == (True, True, 1)
    assert (first.rule.name, first.rule.generation) == ("alerts.dear-one", 1)
    assert (same.changed, same.version, same.rule) == (False, 1, first.rule)
    assert (other.created, other.rule.generation, other.version) == (False, 2, 2)
    assert (other.rule.uid, other.rule.created) == (first.rule.uid, first.rule.created)


def test_a_name_belongs_to_one_rule(store: Store) -> None:
    at_once(store.put_rule(rule("Dear_one")))

    with pytest.raises(RequestError) as caught:
        at_once(store.put_rule(rule("dear-one")))
    named = at_once(store.put_rule(rule("dear-one", name="other")))

    assert caught.value.code == "NameTaken"
    assert named.rule.name == "other"


def test_a_deleted_rule_that_is_made_again_is_another_one(store: Store) -> None:
    first = at_once(store.put_rule(rule()))

    gone = at_once(store.delete_rule(first.rule.key))
    again = at_once(store.put_rule(rule()))

    assert gone is not None
    assert (gone.rule, gone.version) == (first.rule, 2)
    assert again.rule.uid != first.rule.uid
    assert at_once(store.delete_rule(RuleKey("default", "alerts", "never"))) is None


def test_rules_outlive_the_broker_with_their_versions(tmp_path: Path) -> None:
    path = tmp_path / "rules.db"
    before = Store(path)
    at_once(before.put_rule(rule("a")))
    at_once(before.put_rule(rule("b", enable=2)))
    kept = listed(before)
    before.close()
    after = Store(path)

    assert listed(after) == kept
    assert [(one.key.id, one.enable, version) for one, version in kept] == [
        ("a", 0, 1),
        ("b", 2, 2),
    ]
    after.close()
