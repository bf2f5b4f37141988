"""Rules that change while windows go on; D-1 to D-17 of the dynamic patterns."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streambroker_core.cep import Pattern, RunError, compile_pattern
from streambroker_core.cep.engine.key_store import encode_key
from streambroker_core.cep.operator import PatternOperator, copy_rows
from streambroker_core.cep.pattern.errors import PatternError
from streambroker_core.cep.pattern.rule import PatternProcessor
from streambroker_core.cep.rules.document import write_rule
from streambroker_core.cep.rules.rule_set import RuleContext, RuleSet, UnversionedRule
from streambroker_core.control.operators.operator import Window
from streambroker_core.control.tuples import END_OF_TIME
from support.patterns.cases import compiled
from support.patterns.windows import Bucket, Buckets, Emitted

SCHEMA = pa.schema(
    [("t", pa.int64()), ("user", pa.string()), ("item", pa.string()), ("n", pa.string())]
)
Given = tuple[Any, ...]


def rows(*events: Given) -> pa.RecordBatch:
    """Return events ``(time, letter, user, item)``, the last two with defaults."""
    full = [(*event, *("u", "i")[len(event) - 2 :]) for event in events]
    dicts = [{"t": t, "n": n, "user": user, "item": item} for t, n, user, item in full]
    return pa.RecordBatch.from_pylist(dicts, schema=SCHEMA)


def sequence(letters: str, **settings: Any) -> Pattern:
    """Return the pattern of letters that follow each other, others between them or not."""
    pattern = Pattern.begin(letters[0]).where(f'n == "{letters[0]}"')
    for letter in letters[1:]:
        pattern = pattern.followed_by(letter).where(f'n == "{letter}"')
    return pattern.within(settings.pop("within", 0))


def rule(name: str, version: int, letters: str, **fields: Any) -> PatternProcessor:
    within = fields.pop("within", 0)
    return PatternProcessor(
        id=name, version=version, pattern=sequence(letters, within=within), **fields
    )


def rule_set(*wanted: Any, before: RuleSet | None = None, **context: Any) -> RuleSet:
    return (before or RuleSet()).apply_update(wanted, RuleContext(**context))[0]


def bucket(**fields: Any) -> Bucket:
    given = {"event_time": "t", "key": ("user",), "maker": compiled, **fields}
    return Bucket(lambda: PatternOperator(**given))


def reported(*emitted: Emitted) -> list[tuple[str, int, str]]:
    """Return rule, version and letters of each match."""
    found = []
    for each in emitted:
        for row in each.of("matches"):
            letters = "".join(e["n"] for events in row["events"].values() for e in events)
            found.append((row["rule"], row["version"], letters))
    return found


def test_d1_a_rule_matches() -> None:
    b = bucket()

    b.window([rows((1, "A"), (2, "C"))], rules=rule_set(rule("r1", 1, "AC")))

    assert reported(b.window(watermark=2)) == [("r1", 1, "AC")]


def test_d2_a_new_rule_sees_only_what_comes_later() -> None:
    b, one = bucket(), rule("r1", 1, "AC")
    b.window([rows((1, "A"))], rules=rule_set(one))
    b.window(watermark=1)
    both = rule_set(one, rule("r2", 1, "AC"), before=rule_set(one))

    b.window([rows((2, "C"), (3, "A"), (4, "C"))], rules=both)

    assert reported(b.window(watermark=4)) == [
        ("r1", 1, "AC"), ("r1", 1, "AC"), ("r2", 1, "AC"),
    ]  # fmt: skip


def test_a_new_rule_sees_rows_that_arrived_before_it_and_still_wait() -> None:
    b = bucket()
    b.window([rows((1, "A"))])

    b.window([rows((2, "C"))], rules=rule_set(rule("r1", 1, "AC")))

    assert reported(b.window(watermark=5)) == [("r1", 1, "AC")]


def test_rows_that_wait_when_a_rule_is_replaced_are_evaluated_by_its_new_version() -> None:
    b, old = bucket(), rule_set(rule("r1", 1, "AC"))
    new = rule_set(rule("r1", 2, "BC"), before=old)
    b.window([rows((1, "A"), (2, "B"), (3, "C"))], rules=old)
    b.window([rows((4, "B"))], rules=new)

    assert reported(b.window([rows((5, "C"))], watermark=4)) == [("r1", 2, "BC")]
    assert reported(b.window(watermark=5)) == [("r1", 2, "BC")]


def test_the_rules_of_the_window_that_releases_a_row_evaluate_it() -> None:
    b, old = bucket(), rule_set(rule("r1", 1, "A"))
    b.window([rows((1, "A"), (2, "A"))], rules=old)

    first = b.window(watermark=1)
    second = b.window(rules=rule_set(rule("r1", 2, "A"), before=old), watermark=2)

    assert reported(first, second) == [("r1", 1, "A"), ("r1", 2, "A")]


def test_waiting_rows_before_the_time_of_a_scheduled_version_are_the_old_ones() -> None:
    b, old = bucket(), rule_set(rule("r1", 1, "A"))
    b.window([rows((8, "A"), (9, "A"), (10, "A"), (11, "A"))], rules=old)
    b.window(rules=rule_set(rule("r1", 2, "A", scheduled=10), before=old))

    emitted = b.window(watermark=11).of("matches")

    seen = [(row["version"], row["events"]["A"][0]["t"]) for row in emitted]
    assert seen == [(1, 8), (1, 9), (2, 10), (2, 11)]


def test_where_rows_were_left_out_a_rule_that_needs_them_sees_rows_from_its_window_on() -> None:
    b, old = bucket(), rule_set(rule("r1", 1, "AC"))
    need = 'n == "A" || n == "C"'
    b.window([rows((1, "A"), (3, "C"))], rules=old, relevant=need)  # a B was not sent
    same = rule("r2", 1, "CA")
    new = rule_set(rule("r1", 2, "ABC"), same, before=old)
    b.window(
        [rows((4, "A"), (5, "B"), (6, "C"))], rules=new, relevant='n == "A" || n == "B" || n == "C"'
    )

    emitted = b.window(watermark=6).of("matches")

    seen = [(r["rule"], [e["t"] for es in r["events"].values() for e in es]) for r in emitted]
    assert seen == [("r2", [3, 4]), ("r1", [4, 5, 6])]


def test_d3_a_new_version_knows_nothing_of_the_old_one() -> None:
    b, old = bucket(), rule_set(rule("r1", 1, "AC"))
    new = rule_set(rule("r1", 2, "ABC"), before=old)
    b.window([rows((1, "A"))], rules=old)
    b.window(watermark=1)
    b.window([rows((2, "C"), (3, "B"), (4, "C"))], rules=new)

    assert reported(b.window(watermark=4)) == []

    b.window([rows((5, "A"), (6, "B"), (7, "C"))])
    assert reported(b.window(watermark=7)) == [("r1", 2, "ABC")]


def test_d4_the_same_version_again_keeps_partial_matches() -> None:
    b, one = bucket(), rule("r1", 1, "AC")
    b.window([rows((1, "A"))], rules=rule_set(one))
    b.window(watermark=1)

    b.window([rows((2, "C"))], rules=rule_set(one, before=rule_set(one)))

    assert reported(b.window(watermark=2)) == [("r1", 1, "AC")]


def test_d5_a_rule_that_is_gone_matches_nothing_and_its_state_is_freed() -> None:
    b = bucket()
    b.window([rows((1, "A"))], rules=rule_set(rule("r1", 1, "AC")))
    b.window(watermark=1)
    assert any(name.startswith("runs/") and blob for name, blob in b.blobs.items())

    b.window([rows((2, "C"))], rules=rule_set())

    assert reported(b.window(watermark=2)) == []
    assert not any(name.startswith("runs/") and blob for name, blob in b.blobs.items())


def test_d6_without_rules_rows_pass_without_a_word_and_time_goes_on() -> None:
    b = bucket()

    emitted = [b.window([rows((1, "A"), (9, "C"))]), b.window(watermark=5)]

    assert all(not each.rows for each in emitted)
    assert b.window([rows((4, "A"))]).of("late") == [{"t": 4, "user": "u", "item": "i", "n": "A"}]


def test_d7_rules_with_keys_of_their_own_match_by_them() -> None:
    by_user, by_item = rule("r1", 1, "AC", key=("user",)), rule("r2", 1, "AC", key=("item",))
    rules, b = rule_set(by_user, by_item), bucket(copied=True)
    given = rows((1, "A", "u1", "i1"), (2, "C", "u1", "i2"), (3, "C", "u2", "i1"))

    b.window([copy_rows(given, rules.selectors(("user",)))], rules=rules)
    matches = b.window(watermark=3).of("matches")

    assert [(row["rule"], row["key"]) for row in matches] == [("r2", ["i1"]), ("r1", ["u1"])]
    times = [[e["t"] for events in row["events"].values() for e in events] for row in matches]
    assert times == [[1, 3], [1, 2]]


def test_d7_late_rows_are_reported_once_however_many_keys() -> None:
    rules = rule_set(rule("r1", 1, "AC", key=("user",)), rule("r2", 1, "AC", key=("item",)))
    b = bucket(copied=True)
    b.window(rules=rules, watermark=5)

    late = b.window([copy_rows(rows((1, "A")), rules.selectors(()))]).of("late")

    assert [row["t"] for row in late] == [1]


def test_d8_a_scheduled_version_sees_what_is_not_before_its_time_again_in_a_replay() -> None:
    old = rule_set(rule("r1", 1, "AC"))
    new = rule_set(rule("r1", 2, "BC", scheduled=10), before=old)

    def run() -> list[tuple[str, int, str]]:
        b = bucket()
        b.window(rules=old)
        b.window([rows((8, "A"), (8, "B"), (9, "C"), (9, "A"), (10, "B"))], rules=new)
        emitted = [b.window([rows((11, "C"))], watermark=9)]
        return reported(*emitted, b.window(watermark=10), b.window(watermark=11))

    # The old version's second A waits for a C before 10; none comes. The new one sees no B of 8.
    assert run() == run() == [("r1", 1, "AC"), ("r1", 2, "BC")]


def test_d8_until_its_time_the_old_version_goes_on() -> None:
    old = rule_set(rule("r1", 1, "AC"))
    new = rule_set(rule("r1", 2, "BC", scheduled=10), before=old)
    b = bucket()
    b.window([rows((1, "A"))], rules=old)
    b.window([rows((9, "C"))], rules=new, watermark=1)

    assert reported(b.window(watermark=9)) == [("r1", 1, "AC")]
    b.window(watermark=10)
    assert b.last is not None
    assert list(b.last.engine.active) == [("r1", 2)]


def test_d8_in_processing_time_the_first_window_not_before_its_time_has_it() -> None:
    old = rule_set(rule("r1", 1, "AC"))
    new = rule_set(rule("r1", 2, "BC", scheduled=10), before=old)
    b = bucket(time="processing")
    b.window([rows((0, "A"), (0, "B"))], rules=old, clock=8)

    emitted = [b.window([rows((0, "C"))], rules=new, clock=9)]
    emitted.append(b.window([rows((0, "B"), (0, "C"), (0, "A"), (0, "C"))], clock=10))

    assert reported(*emitted) == [("r1", 1, "AC"), ("r1", 2, "BC")]


def test_d9_a_time_in_the_past_is_at_once() -> None:
    b = bucket()
    b.window(watermark=100)

    b.window([rows((101, "A"), (102, "C"))], rules=rule_set(rule("r1", 1, "AC", scheduled=7)))

    assert reported(b.window(watermark=102)) == [("r1", 1, "AC")]


def test_d10_both_rules_go_on_after_a_restart_and_a_change_comes_in_order() -> None:
    both = rule_set(rule("r1", 1, "AC"), rule("r2", 1, "BC"))
    b = bucket()
    b.window([rows((1, "A"), (2, "B"))], rules=both)
    b.window(watermark=2)
    again = bucket()
    again.blobs, again.number = dict(b.blobs), b.number

    again.window([rows((3, "C"))], watermark=2)
    first = again.window(watermark=3)
    second = again.window(rules=rule_set(rule("r1", 1, "AC"), before=both), watermark=4)

    assert reported(first, second) == [("r1", 1, "AC"), ("r2", 1, "BC")]
    assert again.last is not None
    assert list(again.last.engine.active) == [("r1", 1)]


def test_d11_an_invalid_rule_is_refused_alone_and_says_why() -> None:
    wanted = [
        {"id": "r1", "version": 1, "pattern": {"stages": [{"name": "a", "where": 'n == "A"'}]}},
        {"id": "r3", "version": 1, "pattern": {"stages": [{"name": "a", "where": "n =="}]}},
        {"id": "r4", "version": 1, "pattern": {"skip": {"strategy": "skip_to_last", "stage": "x"},
                                               "stages": [{"name": "a"}]}},
        {"id": "r5", "version": 1, "function": "gone", "pattern": {"stages": [{"name": "a"}]}},
        {"id": "r6", "version": 1, "pattern": {"stages": [{"name": "a", "where": "m == 1"}]}},
        {"id": "r7", "version": 1, "key": ["shop"], "pattern": {"stages": [{"name": "a"}]}},
        "no rule",
    ]  # fmt: skip

    rules, outcomes = RuleSet().apply_update(wanted, RuleContext(fields=frozenset({"n"})))

    assert list(rules.rules) == ["r1"]
    refused = {each.rule: each.reason for each in outcomes if each.change == "refused"}
    assert refused == {
        "r3": "Invalid",
        "r4": "Invalid",
        "r5": "FunctionUnknown",
        "r6": "FieldUnknown",
        "r7": "KeyUnknown",
        "number 6": "Invalid",
    }
    (r3,) = (each for each in outcomes if each.rule == "r3")
    assert r3.message == (
        "Invalid condition at pattern.stages[0].where, line 1, column 5: found the end of the text,"
        " expected a name or a value"
    )


def test_d11_an_invalid_new_version_leaves_the_old_one_in_force() -> None:
    before = rule_set(rule("r1", 1, "AC"))

    after, (outcome,) = before.apply_update([{"id": "r1", "version": 2, "pattern": {"stages": []}}])

    assert after == before
    assert (outcome.change, outcome.version) == ("refused", 2)
    assert outcome.message.endswith("; version 1 stays in force as it was")
    _, (again,) = before.with_disabled("r1", 1).apply_update([{"id": "r1", "version": 2}])
    assert again.message.endswith("; version 1 stays off")


def test_a_refusal_names_no_version_if_another_one_takes_over_in_the_same_update() -> None:
    wanted = [rule("r1", 2, "AC"), {"id": "r1", "version": 3, "pattern": {"stages": []}}]

    _, outcomes = rule_set(rule("r1", 1, "AB")).apply_update(wanted)

    (refused,) = (each for each in outcomes if each.change == "refused")
    assert "stays" not in refused.message


def raising(row: Any, run: Any) -> bool:
    return bool(1 // (row["n"] != "X"))


def failing(**fields: Any) -> PatternProcessor:
    pattern = Pattern.begin("a").where(raising)
    return PatternProcessor(id="r3", version=1, pattern=pattern, **fields)


def test_d12_a_rule_that_raises_is_off_and_reported_and_the_others_go_on() -> None:
    rules = rule_set(rule("r1", 1, "AC"), failing(on_error="disable"))
    b = bucket(functions={"raising": raising})
    b.window([rows((1, "A"), (2, "X"), (3, "C"))], rules=rules)

    emitted = b.window(watermark=3)

    assert reported(emitted) == [("r3", 1, "A"), ("r1", 1, "AC")]
    assert emitted.of("errors") == [
        {
            "rule": "r3",
            "version": 1,
            "where": "condition `function raising`",
            "problem": "it raised ZeroDivisionError: integer division or modulo by zero",
        }
    ]
    assert [(each.rule, each.version) for each in emitted.control] == [("r3", 1)]
    b.window([rows((4, "A"), (5, "X"))])
    assert not b.window(watermark=5).rows


def test_d12_a_rule_that_raised_is_asked_nothing_more_in_its_window() -> None:
    rules = rule_set(failing(on_error="disable"))
    b = bucket(functions={"raising": raising}, time="processing")

    emitted = b.window([rows((1, "X")), rows((2, "X")), rows((3, "A"))], rules=rules)

    assert len(emitted.of("errors")) == 1
    assert reported(emitted) == []


def test_d12_by_default_a_rule_that_raises_fails_the_query_and_is_named() -> None:
    b = bucket(functions={"raising": raising})
    b.window([rows((2, "X"))], rules=rule_set(failing()))

    with pytest.raises(RunError, match="rule `r3`, condition `function raising`: it raised Zero"):
        b.window(watermark=3)


def test_d12_a_rule_that_is_off_is_on_again_with_a_new_version_or_when_enabled() -> None:
    rules = rule_set(rule("r1", 1, "AC")).with_disabled("r1", 1)
    assert list(rules) == []

    assert [each.version for each in rules.with_enabled("r1")] == [1]
    assert [each.version for each in rule_set(rule("r1", 2, "AC"), before=rules)] == [2]
    assert list(rule_set(rule("r1", 1, "AC"), before=rules)) == []


def test_d13_a_lower_version_is_refused() -> None:
    before = rule_set(rule("r1", 2, "AC"))

    after, (outcome,) = before.apply_update([rule("r1", 1, "AC")])

    assert after == before
    assert (outcome.change, outcome.reason) == ("refused", "VersionTooLow")
    assert outcome.message == "version 1 is lower than 2; version 2 stays in force as it was"


def test_the_same_version_with_other_content_is_refused() -> None:
    before = rule_set(rule("r1", 1, "AC"))

    after, (outcome,) = before.apply_update([rule("r1", 1, "AB")])

    assert after == before
    assert outcome.reason == "ContentDiffers"


Traffic = list[tuple[str, str]]
traffic = st.lists(
    st.tuples(st.sampled_from("ABC"), st.sampled_from(["u1", "u2", "u3", "u4"])), max_size=12
)


def check_change(events: Traffic, change: int) -> None:
    """Compare four buckets with one: what is released before the change meets v1, the rest v2."""
    old = rule_set(rule("r1", 1, "AC"))
    new = rule_set(rule("r1", 2, "ABC"), before=old)

    def run(buckets: int) -> list[tuple[str, int, str]]:
        parts = [bucket() for _ in range(buckets)]
        found: list[tuple[str, int, str]] = []
        for b in parts:
            b.window(rules=old, watermark=0)
        for time, (letter, user) in enumerate(events, start=1):
            for number, b in enumerate(parts):
                mine = int(user[1]) % buckets == number
                given = [rows((time, letter, user))] if mine else []
                rules = new if time - 1 == change else None
                found += reported(b.window(given, rules=rules, watermark=time - 1))
        return sorted(found + [each for b in parts for each in reported(b.window(watermark=100))])

    assert run(4) == run(1)
    assert not any(version == 2 and letters == "AC" for _, version, letters in run(1))


@settings(max_examples=15)
@given(events=traffic, change=st.integers(0, 12))
def test_d15_all_buckets_change_in_one_window(events: Traffic, change: int) -> None:
    check_change(events, change)


@pytest.mark.long
@settings(max_examples=1_000)
@given(events=traffic, change=st.integers(0, 12))
def test_d15_all_buckets_change_in_one_window_at_length(events: Traffic, change: int) -> None:
    check_change(events, change)


def test_d16_results_carry_rule_version_key_and_times() -> None:
    b = bucket()
    b.window([rows((1, "A"))], rules=rule_set(rule("r1", 7, "AC", within="5us")))

    (row,) = b.window(watermark=END_OF_TIME).of("timeouts")

    assert (row["rule"], row["version"], row["key"]) == ("r1", 7, ["u"])
    assert row["time"] == row["noticed"]
    assert row["time"].microsecond == 6


def test_a_new_version_that_differs_in_conditions_only_may_keep_partial_matches() -> None:
    def limit(version: int, price: str, **fields: Any) -> PatternProcessor:
        pattern = Pattern.begin("A").where('n == "A"').followed_by("C").where(f'n == "{price}"')
        return PatternProcessor(id="r1", version=version, pattern=pattern, **fields)

    for keep, expected in ((True, [("r1", 2, "AD")]), (False, [])):
        b, old = bucket(), rule_set(limit(1, "C"))
        b.window([rows((1, "A"))], rules=old)
        b.window(watermark=1)
        new = rule_set(limit(2, "D", keep_matches=keep), before=old)
        b.window([rows((2, "D"))], rules=new)
        assert reported(b.window(watermark=2)) == expected


def from_a_to(letter: str, version: int, **fields: Any) -> PatternProcessor:
    pattern = Pattern.begin("A").where('n == "A"').followed_by("C").where(f'n == "{letter}"')
    return PatternProcessor(id="r1", version=version, pattern=pattern.within("9us"), **fields)


HANDED = [(5, "A"), (8, "A"), (9, "D"), (10, "A"), (11, "C"), (12, "D"), (15, "D")]


def taking_over(*, keep: bool = True) -> tuple[RuleSet, RuleSet]:
    """Return a rule set, and the next one, whose version takes over at time 10."""
    old = rule_set(from_a_to("C", 1))
    return old, rule_set(from_a_to("D", 2, scheduled=10, keep_matches=keep), before=old)


@pytest.mark.parametrize("cut", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("keep", [True, False])
def test_a_scheduled_version_takes_over_partial_matches_at_its_time(cut: int, keep: bool) -> None:
    old, new = taking_over(keep=keep)
    b = bucket()
    b.window(rules=old)
    emitted = [b.window(rules=new)]
    for place in range(0, len(HANDED), cut):
        given = HANDED[place : place + cut]
        emitted.append(b.window([rows(*given)]))
        emitted.append(b.window(watermark=given[-1][0]))
    emitted.append(b.window(watermark=100))

    matches = [row["events"] for each in emitted for row in each.of("matches")]
    times = [[e["t"] for events in one.values() for e in events] for one in matches]
    assert times == ([[5, 12], [8, 12], [10, 12]] if keep else [[10, 12]])
    assert {version for _, version, _ in reported(*emitted)} == {2}
    over = [(row["version"], row["time"].microsecond) for e in emitted for row in e.of("timeouts")]
    assert over == []
    assert b.last is not None
    assert not any(active.metrics.alive for active in b.last.engine.active.values())


def test_what_a_scheduled_version_takes_over_goes_on_over_windows_and_ends_in_time() -> None:
    old, new = taking_over()
    b = bucket()
    b.window([rows((5, "A"), (8, "A"))], rules=old)
    b.window(rules=new, watermark=9)
    b.window(watermark=11)
    assert b.last is not None
    assert {n: a.metrics.alive for n, a in b.last.engine.active.items()} == {("r1", 2): 2}

    emitted = b.window([rows((16, "D"))], watermark=15)

    assert [(row["version"], row["time"].microsecond) for row in emitted.of("timeouts")] == [
        (2, 14)
    ]
    assert reported(b.window(watermark=16)) == [("r1", 2, "AD")]


def test_a_version_that_takes_over_sees_rows_that_wait_from_its_time_on() -> None:
    old, new = taking_over()
    b = bucket()
    b.window([rows((8, "A"), (11, "A"), (12, "D"))], rules=old)
    b.window(rules=new, watermark=9)
    b.window([rows((13, "D"))])

    matches = b.window(watermark=13).of("matches")
    assert [[e["t"] for events in row["events"].values() for e in events] for row in matches] == [
        [8, 12],
        [11, 12],
    ]


def test_a_set_that_still_has_the_version_before_hides_no_rows_of_the_one_that_took_over() -> None:
    old, new = taking_over()
    b = bucket()
    b.window([rows((5, "A"))], rules=old)
    b.window(rules=new, watermark=9)
    b.window([rows((12, "A"))], watermark=11)
    b.window([rows((13, "D"))], watermark=12)
    more = rule_set(*new.rules["r1"], rule("r2", 1, "A"), before=new)

    assert reported(b.window(rules=more, watermark=20)) == [("r1", 2, "AD"), ("r1", 2, "AD")]


@pytest.mark.parametrize("late", [False, True])
def test_in_processing_time_they_are_taken_over_by_the_first_window_not_before_it(
    late: bool,
) -> None:
    old, new = taking_over()
    b = bucket(time="processing")
    b.window([rows((0, "A"))], rules=old, clock=8)
    if not late:
        b.window([rows((0, "D"))], rules=new, clock=9)

    emitted = b.window([rows((0, "A"), (0, "D"))], rules=new if late else None, clock=11)

    assert reported(emitted) == [("r1", 2, "AD"), ("r1", 2, "AD")]


@pytest.mark.parametrize("time", ["event", "processing"])
def test_time_that_passes_a_handover_without_rows_ends_what_was_handed_over(time: str) -> None:
    old, new = taking_over()
    b = bucket(time=time)
    b.window([rows((5, "A"))], rules=old, clock=5)
    b.window(rules=new, watermark=9, clock=9)

    emitted = b.window(watermark=14, clock=14).of("timeouts")

    assert [(row["version"], row["time"].microsecond) for row in emitted] == [(2, 14)]


def test_two_versions_take_over_in_one_window_without_rows() -> None:
    old, new = taking_over()
    third = from_a_to("E", 3, scheduled=12, keep_matches=True)
    b = bucket()
    b.window([rows((5, "A"), (8, "A"))], rules=old)
    b.window(rules=rule_set(*new.rules["r1"], third, before=new), watermark=9)

    emitted = b.window([rows((16, "E"))], watermark=15).of("timeouts")

    assert [(row["version"], row["time"].microsecond) for row in emitted] == [(3, 14)]
    assert reported(b.window(watermark=16)) == [("r1", 3, "AE")]


@pytest.mark.parametrize("between", [[], [rows((10, "X"))]])
def test_an_immediate_version_gets_no_partial_matches_that_a_scheduled_one_has_ended(
    between: list[pa.RecordBatch],
) -> None:
    old, new = taking_over(keep=False)
    third = rule_set(from_a_to("E", 3, keep_matches=True), before=new)
    b = Buckets(bucket().make, buckets=1)
    b.window([rows((8, "A"))], rules=old)
    b.window(between, rules=new, watermark=9)
    b.window(watermark=11)

    b.window([rows((13, "E"))], rules=third)

    assert reported(b.window(watermark=13)) == []


def test_a_new_version_of_another_shape_keeps_nothing() -> None:
    b, old = bucket(), rule_set(rule("r1", 1, "AC"))
    b.window([rows((1, "A"))], rules=old)
    b.window(watermark=1)
    new = rule_set(rule("r1", 2, "ABC", keep_matches=True), before=old)
    b.window([rows((2, "B"), (3, "C"))], rules=new)

    assert reported(b.window(watermark=3)) == []


def test_a_rule_set_is_read_as_it_was_written() -> None:
    rules = rule_set(
        rule("r1", 1, "AC"), rule("r1", 2, "AB", scheduled=10**15), rule("r2", 5, "B", key=("n",))
    ).with_disabled("r2", 5)

    assert RuleSet.read(rules.document()) == rules


def test_a_version_is_settled_once_the_time_of_the_next_has_come() -> None:
    rules = rule_set(rule("r1", 2, "AB", scheduled=10), before=rule_set(rule("r1", 1, "AC")))

    assert [each.version for each in rules.without_expired(9)] == [1, 2]
    assert [each.version for each in rules.without_expired(10)] == [2]


def test_a_scheduled_version_that_is_not_asked_for_any_more_is_withdrawn() -> None:
    one = rule("r1", 1, "AC")
    rules = rule_set(one, rule("r1", 2, "AB", scheduled=10))

    assert [each.version for each in rule_set(one, before=rules)] == [1]


def test_explain_says_in_a_later_window_where_the_runs_of_a_key_stand() -> None:
    b = bucket()
    b.window([rows((1, "A", "u1", "i"))], rules=rule_set(rule("r1", 1, "AC")))
    b.window(watermark=1)
    operator = b.make()
    operator.bind(Window(number=9, time=0, watermark=1, bucket=0, buckets=1), None)
    operator.restore(1, b.blobs)

    assert [str(each) for each in operator.engine.explain("r1", ("u1",))] == [
        'taken: A 1; waits for `C` (`C`: n == "C")'
    ]
    assert operator.engine.explain("r1", ("u2",)) == []


def test_keys_that_are_equal_numbers_are_one_key() -> None:
    assert encode_key(("k",), (0.0,)) == encode_key(("k",), (-0.0,))
    assert encode_key(("k",), (float("nan"),)) == encode_key(("k",), (-float("nan"),))
    assert encode_key(("k",), (1,)) != encode_key(("j",), (1,))


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
FIRST = rule("r1", 1, "AC")
BAD: list[Any] = [
    lambda: rule("bad", 1, "A", labels={"x": object()}),
    lambda: rule("bad", 1, "A", labels={"x": "y" * 300_000}),
    lambda: rule("bad", 1, "A", labels={"x": float("nan")}),
    lambda: {"id": "bad", "version": 1, "pattern": {"stages": [
        {"name": f"s{n}", **({"join": "next"} if n else {})} for n in range(250)]}},
    lambda: {"id": "bad", "version": 1, "pattern": {"stages": [{"name": "a", "times": 1000}]}},
    lambda: {"id": "bad", "version": 1, "pattern": nested(600)},
    lambda: {"id": "bad", "version": 1, "limits": {"runs": 0}, "pattern": {"stages": [
        {"name": "a"}]}},
    lambda: {"id": "bad", "version": 1, "scheduled": "soon", "pattern": {"stages": [
        {"name": "a"}]}},
]  # fmt: skip


def nested(depth: int) -> dict[str, Any]:
    document: dict[str, Any] = {"stages": [{"name": "a"}]}
    for _ in range(depth):
        document = {"stages": [{"group": document["stages"]}]}
    return document


@pytest.mark.parametrize("made", BAD)
def test_a_rule_that_cannot_be_used_is_refused_alone_whatever_it_raises(made: Any) -> None:
    rules, outcomes = RuleSet().apply_update([FIRST, made()])

    assert list(rules) == [FIRST]
    (refused,) = (each for each in outcomes if each.change == "refused")
    assert (refused.rule, refused.version, refused.reason) == ("bad", 1, "Invalid")
    assert refused.message


def test_a_pattern_that_is_too_long_says_how_many_stages_are_allowed() -> None:
    pattern = Pattern.begin("s0")
    for number in range(1, 250):
        pattern = pattern.followed_by(f"s{number}")

    _, (outcome,) = RuleSet().apply_update([PatternProcessor(id="r", version=1, pattern=pattern)])

    assert outcome.message == (
        "Invalid pattern: the pattern has more than 160 stages, or takes them too often; write"
        " fewer stages, counting those of a repeated group each time, or two rules"
    )


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (NOON, int(NOON.timestamp()) * 10**6),
        ("2026-01-01T12:00:00Z", int(NOON.timestamp()) * 10**6),
        (-(2**63), None),
        (2**62, 2**62),
        (-(2**62), -(2**62)),
        (5, 5),
    ],
)
def test_a_schedule_is_a_datetime_or_microseconds_or_always(given: Any, kept: int | None) -> None:
    made = rule("r1", 1, "AC", scheduled=given)

    rules, (outcome,) = RuleSet().apply_update([made])

    assert made.starts == kept
    assert outcome.change == ("added" if kept is None else "scheduled")
    assert RuleSet.read(rules.document()) == rules


@pytest.mark.parametrize("given", [NOON.replace(tzinfo=None), "soon", 1.5, True, 2**63])
def test_a_schedule_that_is_no_time_is_refused(given: Any) -> None:
    with pytest.raises(PatternError, match="is not a time; write it with its zone"):
        rule("r1", 1, "AC", scheduled=given)


def test_a_key_that_is_one_text_is_one_column() -> None:
    assert rule("r1", 1, "A", key="user_id").key == ("user_id",)
    assert rule("r1", 1, "A", key=["user", "item"]).key == ("user", "item")
    with pytest.raises(PatternError, match="5 cannot be a key"):
        rule("r1", 1, "A", key=5)


def test_when_the_higher_of_two_listed_versions_goes_the_lower_takes_its_place() -> None:
    low, high = rule("r1", 1, "AC"), rule("r1", 2, "AB")
    both, outcomes = RuleSet().apply_update([low, high])
    assert [(each.version, each.change) for each in outcomes] == [(2, "added")]

    after, (outcome,) = both.apply_update([low], listed={("r1", 1), ("r1", 2)})

    assert list(after) == [low]
    assert (outcome.version, outcome.change) == (1, "replaced")
    assert both.apply_update([low])[1][0].reason == "VersionTooLow"


@pytest.mark.compatibility(
    "rule set of a bucket",
    "format 1 is read, and `gap` keeps its meaning",
)
def test_a_set_of_an_earlier_release_keeps_what_gap_meant() -> None:
    pattern = Pattern.begin("a").followed_by("b").times_or_more(2, gap_between="3s")
    rules = rule_set(PatternProcessor(id="r1", version=1, pattern=pattern))
    text = json.dumps(rules.document()).replace("gapBetween", "gap")
    document = json.loads(text) | {"format": 1}

    assert RuleSet.read(document) == rules


def test_warnings_name_what_has_no_effect() -> None:
    a = Pattern.begin("a").where('n == "a"')
    given = {
        "first": a.within("1s", "previous_and_current").followed_by("b").within("5s"),
        "exactly 2 times": a.times(2).greedy().followed_by("b").within("5s"),
        "the last": a.followed_by("b").one_or_more().greedy().within("5s"),
        "window of the whole": a.within("3s").followed_by("b").within("5s"),
    }
    for why, pattern in given.items():
        (warning,) = compile_pattern(pattern).warnings
        assert why in warning
    with pytest.raises(PatternError, match="within is set twice, as 3s and as 5s; keep one"):
        a.within("3s").within("5s")


def unversioned(letters: str, **fields: Any) -> UnversionedRule:
    return UnversionedRule({**write_rule(rule("r", 0, letters)), **fields})


@given(st.lists(st.sampled_from(["", "A", "AB", "ABC", "B", "C"]), min_size=1, max_size=8))
def test_a_rule_without_versions_has_always_the_last_content(contents: list[str]) -> None:
    rules, before, versions = RuleSet(), "", dict[str, int]()
    for letters in contents:
        rules = RuleSet.read(rules.document())  # as after a restart
        rules, outcomes = rules.apply_update([unversioned(letters)] if letters else [])

        if not letters:
            assert list(rules) == []
            assert [one.change for one in outcomes] == (["removed"] if before else [])
        else:
            (found,) = rules
            (outcome,) = outcomes
            changes = {"": "added", letters: "kept"}
            assert outcome.change == changes.get(before, "replaced")
            assert found.pattern == sequence(letters)
            assert found.version == versions.setdefault(letters, found.version)
        before = letters
    assert len(set(versions.values())) == len(versions)


@pytest.mark.parametrize("letters", ["A", "AB", "ABC", "B", "C", "AC", "BC", "BA"])
def test_a_scheduled_rule_without_versions_leaves_the_one_before_it_until_its_time(
    letters: str,
) -> None:
    later = unversioned(letters, scheduled="2100-01-01T00:00:00Z")
    rules = rule_set(unversioned("CBA"))

    for _ in range(2):
        rules, (outcome,) = RuleSet.read(rules.document()).apply_update(
            [later], listed={("r", later["version"])}
        )
        assert [one.pattern for one in rules] == [sequence("CBA"), sequence(letters)]
    assert outcome.change == "kept"


def test_the_version_of_content_is_the_same_on_every_machine() -> None:
    first, second = (
        UnversionedRule({"id": "r", "labels": {}}),
        UnversionedRule({"labels": {}, "id": "r"}),
    )

    assert first["version"] == second["version"] == 147836807080457
    assert UnversionedRule(first) == first
