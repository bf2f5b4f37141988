"""Pattern rules in the SQLite file of a broker without Kubernetes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from streambroker_core.board import Synced
from streambroker_core.model import RULE, Rule, RuleKey, rule_name_of
from streambroker_core.wire.encoding.canonical import canonical
from streambroker_core.wire.manifests.rules import read_rule_spec, write_rule_spec
from streambroker_operator.errors import RequestError
from streambroker_operator.storage.backend import StoredRule
from streambroker_operator.storage.sqlite_file import SqliteFile
from streambroker_operator.storage.sqlite_rows import read_row
from streambroker_operator.storage.write_options import UNCONDITIONAL, Touched, WriteOptions

TABLE = """
CREATE TABLE IF NOT EXISTS rules (
  namespace TEXT NOT NULL, job TEXT NOT NULL, id TEXT NOT NULL, uid TEXT NOT NULL UNIQUE,
  name TEXT NOT NULL, generation INTEGER NOT NULL, created REAL NOT NULL,
  version INTEGER NOT NULL, spec TEXT NOT NULL,
  PRIMARY KEY (namespace, job, id), UNIQUE (namespace, name)
) WITHOUT ROWID
"""
_COLUMNS = "namespace, job, id, uid, name, generation, created, version, spec"
_WHERE_KEY = "namespace = ? AND job = ? AND id = ?"


class RuleTable:
    """Table of rules, one row each."""

    def __init__(self, file: SqliteFile, new_uid: Callable[[], str]) -> None:
        self._file, self._db, self._new_uid = file, file.db, new_uid

    def load(self) -> Synced:
        """Return all rules as a `Synced` event with the version of the database.

        Raises:
            StoreError: a row is damaged.
        """
        rows = self._db.execute(f"SELECT {_COLUMNS} FROM rules").fetchall()  # noqa: S608 - ours
        listed = tuple(
            read_row(
                self._file.path, "rules", f"rule {'/'.join(map(str, row[:3]))}", _read_rule, row
            )
            for row in rows
        )
        return Synced(kind=RULE, listed=listed, version=self._file.version)

    def get(self, key: RuleKey) -> StoredRule | None:
        """Return a rule."""
        row = self._db.execute(
            f"SELECT {_COLUMNS} FROM rules WHERE {_WHERE_KEY}",  # noqa: S608 - ours
            key,
        ).fetchone()
        if row is None:
            return None
        rule, version = _read_rule(row)
        return StoredRule(rule=rule, version=version)

    async def put(
        self, rule: Rule, *, touched: Touched | None = None, options: WriteOptions = UNCONDITIONAL
    ) -> StoredRule:
        """Create or replace a rule; an equal one is not written again.

        `touched` and `options` are ignored, as in `Store.write`.

        Raises:
            RequestError: 409 `NameTaken`, another rule has the name.
        """
        with self._file.transaction():
            current = self.get(rule.key)
            desired = _with_name(rule, None if current is None else current.rule)
            if current is not None and _is_same(current.rule, desired):
                return current
            self._check_name(desired)
            stored = self._with_identity(desired, None if current is None else current.rule)
            version = self._file.next_version()
            values = stored.uid, stored.name, stored.generation, stored.created, version
            self._db.execute(
                "INSERT OR REPLACE INTO rules VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*stored.key, *values, _spec_text(stored)),
            )
        return StoredRule(rule=stored, version=version, created=current is None, changed=True)

    def _with_identity(self, rule: Rule, current: Rule | None) -> Rule:
        if current is None:
            return replace(rule, uid=self._new_uid(), generation=1, created=self._file.clock())
        generation = current.generation + (_spec_text(rule) != _spec_text(current))
        return replace(rule, uid=current.uid, generation=generation, created=current.created)

    def _check_name(self, rule: Rule) -> None:
        row = self._db.execute(
            "SELECT job, id FROM rules WHERE namespace = ? AND name = ?",
            (rule.key.namespace, rule.name),
        ).fetchone()
        if row is not None and row != tuple(rule.key[1:]):
            raise name_taken(rule.name, rule.key, RuleKey(rule.key.namespace, *row))

    async def delete(
        self, key: RuleKey, *, options: WriteOptions = UNCONDITIONAL
    ) -> StoredRule | None:
        """Delete a rule and free its id; return it at the version of the deletion, or None."""
        with self._file.transaction():
            current = self.get(key)
            if current is None:
                return None
            version = self._file.next_version()
            self._db.execute(f"DELETE FROM rules WHERE {_WHERE_KEY}", key)  # noqa: S608 - ours
        return StoredRule(rule=current.rule, version=version, changed=True)


def name_taken(name: str, key: RuleKey, holder: RuleKey) -> RequestError:
    """Return the 409 error for a name that another rule has."""
    return RequestError(
        409,
        "NameTaken",
        f"The name {name!r} belongs to the rule {holder}. Give {key} another one in"
        " metadata.name, or delete that one first.",
    )


def _with_name(rule: Rule, current: Rule | None) -> Rule:
    name = current.name if current is not None and not rule.name else rule.name
    return replace(rule, name=name or rule_name_of(rule))


def _is_same(one: Rule, other: Rule) -> bool:
    return one.name == other.name and _spec_text(one) == _spec_text(other)


def _spec_text(rule: Rule) -> str:
    return canonical(write_rule_spec(rule)).decode()


def _read_rule(row: tuple[Any, ...]) -> tuple[Rule, int]:
    namespace, job, id_, uid, name, generation, created, version, spec = row
    rule = read_rule_spec(json.loads(spec), key=RuleKey(namespace, job, id_))
    return replace(rule, uid=uid, name=name, generation=generation, created=created), version
