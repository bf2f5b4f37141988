"""Where rules come from: directories, tables, a thread beside the driver, and what goes wrong."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from streambroker.errors import ArgumentError
from streambroker.patterns import (
    DirectoryDiscoverer,
    Discovery,
    DiscoveryError,
    PatternProcessorDiscoverer,
    PatternProcessorManager,
    PeriodicPatternProcessorDiscoverer,
    QueryRules,
    TableDiscoverer,
    sqlite_table,
)
from streambroker_core.cep import Pattern
from streambroker_core.cep.engine.metrics import WindowMetrics
from streambroker_core.cep.pattern.rule import PatternProcessor
from streambroker_core.cep.rules.rule_set import RuleContext, RuleSet, RuleUpdate
from streambroker_core.model.durations import Duration

PATTERN = {"stages": [{"name": "a", "where": 'n == "A"'}]}


def document(name: str, version: int = 1, **fields: Any) -> dict[str, Any]:
    return {"id": name, "version": version, "pattern": PATTERN, **fields}


class Kept:
    """A manager that keeps what it hands on and what it tells."""

    def __init__(self) -> None:
        self.sets: list[RuleSet] = []
        self.reported: list[Sequence[RuleUpdate]] = []
        self.changed = threading.Event()
        self.manager = PatternProcessorManager(self._apply, on_outcomes=self.reported.append)

    def _apply(self, rules: RuleSet) -> None:
        self.sets.append(rules)
        self.changed.set()

    def rules(self) -> list[tuple[str, int]]:
        return [(rule.id, rule.version) for rule in self.manager.current_pattern_processors()]

    def refused(self) -> dict[str, str]:
        return {each.rule: each.message for each in self.reported[-1] if each.change == "refused"}


@contextmanager
def watched(discoverer: PatternProcessorDiscoverer, kept: Kept) -> Iterator[Discovery]:
    discovery = Discovery(discoverer, kept.manager)
    try:
        yield discovery
    finally:
        discovery.close()
        assert not discovery.running


def until(holds: Callable[[], bool], kept: Kept) -> None:
    for _ in range(500):
        if holds():
            return
        kept.changed.wait(0.02)
        kept.changed.clear()
    raise AssertionError("it has not come to this in time")


def put(path: Path, value: Any) -> None:
    """Write a file as a whole."""
    part = path.with_name(f".{path.name}")
    part.write_text(value if isinstance(value, str) else json.dumps(value), "utf-8")
    part.replace(path)


def test_the_manager_hands_on_a_set_only_when_it_is_another_one() -> None:
    kept = Kept()

    first = kept.manager.on_pattern_processors_updated([document("a")])
    again = kept.manager.on_pattern_processors_updated([document("a")])
    lower = kept.manager.on_pattern_processors_updated([document("a", 0)])

    assert [each.change for each in (*first, *again, *lower)] == ["added", "kept", "refused"]
    assert len(kept.sets) == 1
    assert len(kept.reported) == 3


def test_when_the_file_with_the_higher_version_goes_the_other_one_is_taken(tmp_path: Path) -> None:
    put(tmp_path / "low.json", document("a", 1))
    put(tmp_path / "high.json", document("a", 2))
    discoverer, kept = DirectoryDiscoverer(tmp_path), Kept()
    kept.manager.on_pattern_processors_updated(discoverer.initial_pattern_processors())
    assert kept.rules() == [("a", 2)]

    (tmp_path / "high.json").unlink()
    discoverer.poll(kept.manager)

    assert kept.rules() == [("a", 1)]
    assert [(each.version, each.change) for each in kept.reported[-1]] == [(1, "replaced")]


def test_a_row_of_a_table_that_goes_leaves_its_place_to_the_version_below(database: Path) -> None:
    insert(database, id="a", version=1, pattern=json.dumps(PATTERN))
    insert(database, id="a", version=2, pattern=json.dumps(PATTERN))
    discoverer, kept = TableDiscoverer(sqlite_table(database)), Kept()
    kept.manager.on_pattern_processors_updated(discoverer.initial_pattern_processors())

    execute(database, "DELETE FROM pattern_processors WHERE version = 2")
    discoverer.poll(kept.manager)

    assert kept.rules() == [("a", 1)]


def test_a_file_that_is_no_text_or_leads_nowhere_stops_no_other(tmp_path: Path) -> None:
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "nowhere.yaml").symlink_to(tmp_path / "gone")
    put(tmp_path / "good.json", document("a"))
    discoverer, kept = DirectoryDiscoverer(tmp_path), Kept()

    kept.manager.on_pattern_processors_updated(discoverer.initial_pattern_processors())

    assert kept.rules() == [("a", 1)]
    assert sorted(kept.refused()) == ["bytes.json", "nowhere.yaml"]


@pytest.mark.parametrize(
    "bad",
    [
        PatternProcessor(id="bad", version=1, pattern=Pattern.begin("a"), labels={"x": object()}),  # type: ignore[dict-item]
        PatternProcessor(id="bad", version=1, pattern=Pattern.begin("a"), labels=7),  # type: ignore[arg-type]
    ],
)
def test_a_rule_that_cannot_be_written_is_refused_alone(bad: PatternProcessor) -> None:
    kept = Kept()

    kept.manager.on_pattern_processors_updated([bad, document("a")])

    assert kept.rules() == [("a", 1)]
    assert list(kept.refused()) == ["bad"]


def test_the_log_has_a_line_for_each_rule_of_an_update(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "pe_agent.cep")
    processors = QueryRules(lambda _: None, RuleSet(), RuleContext())
    update = processors.manager.on_pattern_processors_updated
    update([document("a"), document("b")])
    processors.tally.add_all([WindowMetrics(bucket=0, window=7, rules=())])
    later = document("b", 2, scheduled="2100-01-01T00:00:00Z")

    update([document("a", 2), document("b"), later, document("c"), document("d", pattern={})])
    update([document("a", 2)])

    lines = [line.partition(" (")[0] for line in caplog.messages]
    assert sorted(lines) == sorted(
        [
            "rule a, version 1: added from the first window on",
            "rule b, version 1: added from the first window on",
            "rule d, version 1: refused",
            "rule a, version 2: replaced from the window after 7 on",
            "rule b, version 1: kept from the window after 7 on",
            "rule b, version 2: scheduled from the window after 7 on",
            "rule c, version 1: added from the window after 7 on",
            "rule a, version 2: kept from the window after 7 on",
            "rule b, version 2: removed from the window after 7 on",
            "rule c, version 1: removed from the window after 7 on",
        ]
    )


def test_a_rule_that_stopped_is_off_everywhere_until_it_is_enabled() -> None:
    kept = Kept()
    kept.manager.on_pattern_processors_updated([document("a"), document("b")])

    kept.manager.disable("a", 1)
    kept.manager.disable("a", 1)
    off = kept.rules()
    kept.manager.enable("a")

    assert off == [("b", 1)]
    assert kept.rules() == [("a", 1), ("b", 1)]
    assert [sorted(each.disabled) for each in kept.sets] == [[], [("a", 1)], []]
    with pytest.raises(KeyError):
        kept.manager.enable("c")


def test_a_set_that_cannot_be_handed_on_is_not_taken() -> None:
    def away(rules: RuleSet) -> None:
        raise ConnectionError("the control log is away")

    manager = PatternProcessorManager(away)

    with pytest.raises(ConnectionError):
        manager.on_pattern_processors_updated([document("a")])
    assert manager.current_pattern_processors() == []


def test_files_of_a_directory_are_rules_and_changes_are_taken_in(tmp_path: Path) -> None:
    put(tmp_path / "a.json", document("a"))
    put(tmp_path / "more.yaml", "---\n- {id: b, version: 1, pattern: {stages: [{name: s}]}}\n---\n")
    put(tmp_path / "readme.txt", "no rule")
    kept = Kept()

    with watched(DirectoryDiscoverer(tmp_path, interval=0.01), kept):
        assert kept.rules() == [("a", 1), ("b", 1)]
        put(tmp_path / "a.json", [document("a", 2), document("c")])
        until(lambda: kept.rules() == [("a", 2), ("b", 1), ("c", 1)], kept)
        (tmp_path / "more.yaml").unlink()
        until(lambda: kept.rules() == [("a", 2), ("c", 1)], kept)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.json", '{"id": ', "file a.json cannot be read"),
        ("a.json", "[7]", "file a.json has 7 where a rule is expected"),
        (
            "a.yaml",
            "id: a\nkey: [a}",
            "cannot be read: line 2, column 8: expected ',' or ']', but got '}',"
            " while parsing a flow sequence",
        ),
        ("a.yaml", "x: *lost", "cannot be read: line 1, column 4: found undefined alias 'lost'"),
        ("a.yaml", "x: \0", "unacceptable character #x0000: special characters are not allowed in"),
        ("a.yaml", "just text", "has 'just text' where a rule is expected"),
    ],
)
def test_a_file_that_cannot_be_read_keeps_the_rules_that_it_had(
    tmp_path: Path, name: str, text: str, problem: str
) -> None:
    put(tmp_path / name, json.dumps(document("a")))
    put(tmp_path / "b.json", document("b"))
    discoverer, kept = DirectoryDiscoverer(tmp_path), Kept()
    kept.manager.on_pattern_processors_updated(discoverer.initial_pattern_processors())

    put(tmp_path / name, text)
    put(tmp_path / "b.json", document("b", 2))
    discoverer.poll(kept.manager)

    assert kept.rules() == [("a", 1), ("b", 2)]
    assert problem in kept.refused()[name]
    assert not discoverer.check_pattern_processor_update()
    put(tmp_path / name, json.dumps(document("a", 3)))
    discoverer.poll(kept.manager)
    assert kept.rules() == [("a", 3), ("b", 2)]


def test_a_directory_that_is_away_keeps_the_rules_and_is_read_again_when_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place, away = tmp_path / "rules", tmp_path / "away"
    place.mkdir()
    put(place / "a.json", document("a"))
    discoverer, kept = DirectoryDiscoverer(place), Kept()
    kept.manager.on_pattern_processors_updated(discoverer.initial_pattern_processors())

    place.rename(away)
    discoverer.poll(kept.manager)
    discoverer.poll(kept.manager)

    assert kept.rules() == [("a", 1)]
    assert "cannot be read" in (discoverer.problem or "")
    assert len(caplog.records) == 1
    put(away / "a.json", document("a", 2))
    away.rename(place)
    discoverer.poll(kept.manager)
    assert kept.rules() == [("a", 2)]
    assert discoverer.problem is None


def test_without_first_rules_nothing_is_begun(tmp_path: Path) -> None:
    discoverer = DirectoryDiscoverer(tmp_path / "gone")

    with pytest.raises(DiscoveryError, match="gone cannot be read"):
        Discovery(discoverer, Kept().manager)
    assert not [each for each in threading.enumerate() if each.name == "pattern-rules"]


@pytest.mark.parametrize("interval", [0, -1, "0s", timedelta(0)])
def test_an_interval_has_to_be_above_nothing(tmp_path: Path, interval: Duration) -> None:
    with pytest.raises(ValueError, match="has to be above 0"):
        DirectoryDiscoverer(tmp_path, interval=interval)


@pytest.mark.parametrize("interval", [float("nan"), "soon", None])
def test_an_interval_has_to_be_a_duration(tmp_path: Path, interval: Any) -> None:
    with pytest.raises(ArgumentError, match=r"interval is .*, which is no duration: write"):
        DirectoryDiscoverer(tmp_path, interval=interval)


def test_a_discoverer_of_ones_own_is_closed_with_the_query_and_may_fail() -> None:
    class Own(PeriodicPatternProcessorDiscoverer):
        looked = 0

        def check_pattern_processor_update(self) -> bool:
            self.looked += 1
            if self.looked == 2:
                raise RuntimeError("of its own")
            return True

        def latest_pattern_processors(self) -> list[Any]:
            return [document("a", self.looked)]

    kept, own = Kept(), Own(interval=0.005)
    with watched(own, kept) as discovery:
        until(lambda: own.looked > 3 and kept.rules()[0][1] > 2, kept)
        assert discovery.problem is None
    assert [each.rules["a"][0].version for each in kept.sets[:3]] == [0, 1, 3]


def test_a_discoverer_whose_loop_ends_with_an_error_says_so() -> None:
    class Broken:
        def initial_pattern_processors(self) -> list[Any]:
            return [document("a")]

        def discover_pattern_processor_updates(self, manager: PatternProcessorManager) -> None:
            raise OSError("lost")

        def close(self) -> None:
            pass

    kept = Kept()
    with watched(Broken(), kept) as discovery:
        until(lambda: discovery.problem is not None, kept)
        assert discovery.problem == "OSError: lost"
    assert kept.rules() == [("a", 1)]


COLUMNS = (
    "id TEXT, version INT, pattern TEXT, function TEXT, on_error TEXT, scheduled TEXT,"
    " class_name TEXT, constructor_params TEXT, comment TEXT"
)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "rules.db"
    execute(path, f"CREATE TABLE pattern_processors ({COLUMNS})")
    return path


def execute(path: Path, sql: str, *values: Any) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(sql, values)
    connection.close()


def insert(path: Path, **fields: Any) -> None:
    names, marks = ", ".join(fields), ", ".join("?" for _ in fields)
    sql = f"INSERT INTO pattern_processors ({names}) VALUES ({marks})"
    execute(path, sql, *fields.values())


def test_rows_of_a_table_are_rules_and_changes_are_taken_in(database: Path) -> None:
    insert(database, id="a", version=1, pattern=json.dumps(PATTERN), on_error="disable")
    insert(database, id="a", version=2, pattern=json.dumps(PATTERN), comment="the higher one")
    insert(database, id="b", version=1, pattern=json.dumps(PATTERN))
    kept = Kept()

    with watched(TableDiscoverer(sqlite_table(database), interval=0.01), kept):
        assert kept.rules() == [("a", 2), ("b", 1)]
        assert kept.refused() == {}
        execute(database, "DELETE FROM pattern_processors WHERE id = 'a'")
        insert(database, id="b", version=2, pattern=json.dumps(PATTERN), on_error="disable")
        until(lambda: kept.rules() == [("b", 2)], kept)
    assert kept.manager.rules.rule("b", 2).on_error == "disable"


def test_a_version_with_a_schedule_stands_beside_the_one_before_it(database: Path) -> None:
    insert(database, id="a", version=1, pattern=json.dumps(PATTERN))
    insert(database, id="a", version=2, pattern=json.dumps(PATTERN))
    insert(database, id="a", version=3, pattern=json.dumps(PATTERN),
           scheduled="2030-01-01T00:00:00Z")  # fmt: skip
    discoverer, kept = TableDiscoverer(sqlite_table(database)), Kept()

    for _ in range(2):
        kept.manager.on_pattern_processors_updated(discoverer.latest_pattern_processors())

    assert kept.rules() == [("a", 2), ("a", 3)]
    assert kept.refused() == {}


def limit(name: str, version: int, column: str, low: float) -> PatternProcessor:
    pattern = Pattern.begin("a").where(f"{column} > {low}")
    return PatternProcessor(id=name, version=version, pattern=pattern)


def params(*values: tuple[str, Any]) -> str:
    return json.dumps([{"type": kind, "value": value} for kind, value in values])


def test_only_classes_that_the_job_has_registered_are_built(database: Path) -> None:
    good = params(("string", "price"), ("double", 3))
    insert(database, id="a", version=1, class_name="Limit", constructor_params=good)
    insert(database, id="b", version=1, class_name="os.system", constructor_params=params())
    insert(database, id="c", version=1, class_name="Limit",
           constructor_params=params(("string", "price"), ("integer", True)))  # fmt: skip
    insert(database, id="d", version=1, class_name="Limit", pattern="{}")
    insert(database, id="e", version=1, class_name="Limit", constructor_params="{")
    insert(database, id="f", version=1, pattern="no JSON")
    insert(database, id="g", version="one", pattern=json.dumps(PATTERN))
    kept = Kept()
    discoverer = TableDiscoverer(sqlite_table(database), classes={"Limit": limit})

    kept.manager.on_pattern_processors_updated(discoverer.initial_pattern_processors())

    assert kept.manager.current_pattern_processors() == [limit("a", 1, "price", 3.0)]
    refused = kept.refused()
    assert sorted(refused) == ["b", "c", "d", "e", "f", "g"]
    assert (
        "class os.system is not registered; the job has Limit. Register it with"
        " TableDiscoverer(…, classes={'os.system': …})" in refused["b"]
    )
    assert (
        "True is not of type integer; the types are string, int, integer, long, double, float,"
        " boolean" in refused["c"]
    )
    assert "it has both a pattern and a class_name" in refused["d"]


def original(path: Path, columns: str, *rows: Sequence[Any]) -> TableDiscoverer:
    """Return the discoverer of a table without versions."""
    execute(path, "DROP TABLE IF EXISTS processors")
    execute(path, f"CREATE TABLE processors ({columns})")
    for row in rows:
        execute(path, f"INSERT INTO processors VALUES ({', '.join('?' for _ in row)})", *row)
    classes: dict[str, Any] = {
        "org.x.Above": above,
        "org.x.Rule": limited,
        "org.x.Text": lambda: "no pattern",
    }
    return TableDiscoverer(sqlite_table(path), table="processors", classes=classes)


def above(low: int = 7, *more: Any) -> Pattern:
    return Pattern.begin("a").where(f"price > {low}" + "".join(f" && n != {one}" for one in more))


def limited(low: float) -> PatternProcessor:
    return replace(limit("its own", 9, "price", low), on_error="disable")


ORIGINAL = "uid TEXT, className TEXT, constructorParams TEXT"


def test_a_row_of_the_originals_table_is_a_rule_and_a_changed_one_a_new_version(
    database: Path,
) -> None:
    discoverer = original(
        database,
        ORIGINAL,
        ("a", "org.x.Above", params(("int", 3), ("String", "x"), ("long", 4))),
        ("b", "org.x.Rule", params(("float", 2))),
        ("c", "org.x.Above", None),
    )
    kept = Kept()
    kept.manager.on_pattern_processors_updated(discoverer.initial_pattern_processors())
    first = {rule.id: rule for rule in kept.manager.current_pattern_processors()}
    assert {name: rule.pattern for name, rule in first.items()} == {
        "a": above(3, "x", 4),
        "b": limited(2.0).pattern,
        "c": above(),
    }
    assert first["b"].on_error == "disable"

    execute(database, "UPDATE processors SET constructorParams = ? WHERE uid = 'c'",
            params(("int", 8)))  # fmt: skip
    execute(database, "DELETE FROM processors WHERE uid = 'b'")
    discoverer.poll(kept.manager)

    changes = {one.rule: (one.change, one.version) for one in kept.reported[-1]}
    assert changes["a"] == ("kept", first["a"].version)
    assert changes["b"] == ("removed", first["b"].version)
    assert changes["c"][0] == "replaced"
    execute(database, "UPDATE processors SET constructorParams = NULL WHERE uid = 'c'")
    discoverer.poll(kept.manager)
    assert kept.rules() == [("a", first["a"].version), ("c", first["c"].version)]


def test_rows_without_versions_are_refused_each_alone(database: Path) -> None:
    discoverer = original(
        database,
        ORIGINAL,
        ("good", "org.x.Above", "[]"),
        ("unknown", "os.system", params(("string", "ls"))),
        ("none", None, None),
        ("text", "org.x.Text", "[]"),
        ("param", "org.x.Above", "[3]"),
        ("value", "org.x.Above", '[{"type": "int"}]'),
        ("type", "org.x.Above", params(("int", 3.5))),
        ("much", "org.x.Rule", params(("int", 1), ("int", 2))),
        ("twice", "org.x.Above", "[]"),
        ("twice", "org.x.Above", "[]"),
    )
    kept = Kept()

    kept.manager.on_pattern_processors_updated(discoverer.initial_pattern_processors())

    assert [name for name, _ in kept.rules()] == ["good"]
    refused = kept.refused()
    parts = {
        "unknown": "class os.system is not registered; the job has org.x.Above, org.x.Rule",
        "none": "class None is not registered",
        "text": "class org.x.Text made 'no pattern', which is neither a pattern nor a rule",
        "param": '3 is no parameter; write {"type": "int", "value": 3}',
        "value": "is no parameter; write",
        "type": "3.5 is not of type int",
        "much": "takes 1 positional argument but 2 were given",
        "twice": "2 rows have this id",
    }
    assert sorted(refused) == sorted(parts)
    assert [name for name, part in parts.items() if part not in refused[name]] == []


def test_a_row_without_a_version_may_have_its_pattern_as_json(database: Path) -> None:
    columns = "UID INT, pattern TEXT, ON_ERROR TEXT"
    discoverer = original(database, columns, (7, json.dumps(PATTERN), "disable"))
    kept = Kept()

    kept.manager.on_pattern_processors_updated(discoverer.initial_pattern_processors())

    (found,) = kept.manager.current_pattern_processors()
    assert (found.id, found.on_error, kept.refused()) == ("7", "disable", {})


def test_a_table_without_ids_or_patterns_is_refused_as_a_whole(database: Path) -> None:
    discoverer = original(database, "className TEXT, name TEXT")

    with pytest.raises(DiscoveryError, match="the columns classname, name: rules need id or uid"):
        discoverer.initial_pattern_processors()


def test_a_rule_whose_row_becomes_unreadable_goes_on(database: Path) -> None:
    insert(database, id="a", version=1, pattern=json.dumps(PATTERN))
    discoverer, kept = TableDiscoverer(sqlite_table(database)), Kept()
    kept.manager.on_pattern_processors_updated(discoverer.initial_pattern_processors())

    execute(database, "UPDATE pattern_processors SET version = 2, pattern = '{'")
    discoverer.poll(kept.manager)

    assert kept.rules() == [("a", 1)]
    assert "its row cannot be read" in kept.refused()["a"]


def test_a_database_that_is_away_keeps_the_rules(database: Path) -> None:
    insert(database, id="a", version=1, pattern=json.dumps(PATTERN))
    discoverer, kept = TableDiscoverer(sqlite_table(database)), Kept()
    kept.manager.on_pattern_processors_updated(discoverer.initial_pattern_processors())

    database.rename(database.with_suffix(".away"))
    discoverer.poll(kept.manager)

    assert kept.rules() == [("a", 1)]
    assert "table pattern_processors cannot be read" in (discoverer.problem or "")
    assert not database.exists()  # reading makes no empty database


class Driver:
    """A connection and a cursor of a driver that makes objects of its own of what it reads."""

    def __init__(self, *rows: dict[str, Any]) -> None:
        self.rows, self.open = rows, 0

    def connect(self) -> Driver:
        self.open += 1
        return self

    def cursor(self) -> Driver:
        self.open += 1
        return self

    def close(self) -> None:
        self.open -= 1

    def execute(self, sql: str) -> None:
        assert sql == "SELECT * FROM risk.rules"

    @property
    def description(self) -> list[tuple[Any, ...]]:
        return [(name, None) for name in self.rows[0]]

    def fetchall(self) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for row in self.rows]


class Large:
    """A large object, which can be read as long as its connection is open."""

    def __init__(self, driver: Driver, text: str) -> None:
        self._driver, self._text = driver, text

    def read(self) -> str:
        assert self._driver.open
        return self._text


def test_whatever_objects_a_driver_makes_rows_are_rules() -> None:
    text, at = json.dumps(PATTERN), datetime(2030, 1, 1, tzinfo=UTC)
    driver, kept = Driver(), Kept()
    rest = {"ON_ERROR": None, "KEEP_MATCHES": None, "LIMITS": None, "SCHEDULED": None}
    driver.rows = (
        {"ID": "json", "VERSION": 1, "PATTERN": PATTERN, **rest, "LIMITS": {"runs": 5}},
        {"ID": "bytes", "VERSION": Decimal(2), "PATTERN": text.encode(), **rest},
        {"ID": "view", "VERSION": 3.0, "PATTERN": memoryview(text.encode()), **rest,
         "KEEP_MATCHES": Decimal(1)},
        {"ID": "large", "VERSION": 4, "PATTERN": Large(driver, text), **rest, "SCHEDULED": at},
        {"ID": "half", "VERSION": Decimal("1.5"), "PATTERN": text, **rest},
        {"ID": "nowhere", "VERSION": 1, "PATTERN": text, **rest,
         "SCHEDULED": at.replace(tzinfo=None)},
    )  # fmt: skip
    discoverer = TableDiscoverer(driver.connect, table="risk.rules")

    kept.manager.on_pattern_processors_updated(discoverer.initial_pattern_processors())

    assert kept.rules() == [("bytes", 2), ("json", 1), ("large", 4), ("view", 3)]
    rules = kept.manager.rules
    assert rules.rule("json", 1).limits.runs == 5
    assert rules.rule("view", 3).keep_matches
    assert rules.rule("large", 4).scheduled == at.timestamp() * 1_000_000
    assert "whole number" in kept.refused()["half"]
    assert "a time with its zone" in kept.refused()["nowhere"]
    assert not discoverer.check_pattern_processor_update()
    assert driver.open == 0


def test_a_table_that_has_no_rules_is_refused_by_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    execute(path, "CREATE TABLE pattern_processors (id TEXT, version INT, note TEXT)")

    with pytest.raises(DiscoveryError, match="has the columns id, version, note: rules need"):
        TableDiscoverer(sqlite_table(path)).latest_pattern_processors()


@pytest.mark.parametrize("table", ["", "a; DROP TABLE a", "a b", "a."])
def test_what_is_no_name_of_a_table_is_refused(database: Path, table: str) -> None:
    with pytest.raises(ValueError, match="is not a name of a table"):
        TableDiscoverer(sqlite_table(database), table=table)


def test_a_manifest_counts_as_the_rule_in_it(tmp_path: Path) -> None:
    manifest = {
        "apiVersion": "streambroker.io/v1alpha1",
        "kind": "PatternProcessor",
        "metadata": {"name": "named"},
        "spec": {"job": "alerts", "enable": 3, "version": 2, "pattern": PATTERN},
    }
    put(tmp_path / "a.json", manifest)
    put(tmp_path / "b.json", {**manifest, "spec": {**manifest["spec"], "id": "own"}})  # type: ignore[dict-item]
    kept = Kept()

    with watched(DirectoryDiscoverer(tmp_path), kept):
        assert kept.rules() == [("named", 2), ("own", 2)]
