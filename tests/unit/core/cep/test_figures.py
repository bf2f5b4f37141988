"""What windows tell of their rules, rules that are part of the program, and where runs stand."""

from __future__ import annotations

import gc
import itertools
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from streambroker_core.cep import Pattern
from streambroker_core.cep.engine.metrics import WindowMetrics
from streambroker_core.cep.operator import PatternOperator
from streambroker_core.cep.pattern.rule import PatternProcessor
from streambroker_core.cep.rules.rule_set import RuleContext, RuleSet
from support.patterns.cases import compiled
from support.patterns.windows import Bucket, Buckets

SCHEMA = pa.schema([("t", pa.int64()), ("user", pa.string()), ("n", pa.string())])


def rows(*events: tuple[int, str, str]) -> pa.RecordBatch:
    dicts = [{"t": t, "user": user, "n": n} for t, user, n in events]
    return pa.RecordBatch.from_pylist(dicts, schema=SCHEMA)


def sequence(letters: str) -> Pattern:
    pattern = Pattern.begin(letters[0]).where(f'n == "{letters[0]}"')
    for letter in letters[1:]:
        pattern = pattern.followed_by(letter).where(f'n == "{letter}"')
    return pattern


def rule(name: str, version: int, letters: str, **fields: Any) -> PatternProcessor:
    return PatternProcessor(id=name, version=version, pattern=sequence(letters), **fields)


def rule_set(*rules: PatternProcessor, before: RuleSet | None = None) -> RuleSet:
    return (before or RuleSet()).apply_update(rules)[0]


def watched(reported: list[WindowMetrics], **fields: Any) -> Bucket:
    ticks = itertools.count()
    return Bucket(
        lambda: PatternOperator(
            key=("user",),
            event_time="t",
            maker=compiled,
            watch=reported.append,
            clock=lambda: next(ticks),
            **fields,
        )
    )


def alive(reported: list[WindowMetrics]) -> dict[str, int]:
    return {one.rule: one.alive for one in reported[-1].rules}


def test_each_window_tells_what_it_did_and_how_many_runs_there_are() -> None:
    reported: list[WindowMetrics] = []
    b = watched(reported)
    b.window([rows((1, "u", "A"), (2, "v", "A"), (3, "u", "x"))],
             rules=rule_set(rule("r", 1, "AC"), rule("s", 1, "AB")))  # fmt: skip

    b.window([rows((4, "u", "C"))], watermark=3)

    (r, s) = reported[-1].rules
    assert (r.rule, r.version, r.tested, r.matches, r.alive) == ("r", 1, 2, 0, 2)
    assert r.nanoseconds > 0

    b.window(watermark=4)

    (r, s) = reported[-1].rules
    assert (r.tested, r.matches, r.alive) == (1, 1, 1)
    assert (s.tested, s.alive) == (0, 2), "what it kept is counted though nothing was read"
    assert [one.window for one in reported] == [0, 1, 2]


def test_a_window_tells_how_many_rows_wait_for_the_watermark_and_for_which_time() -> None:
    reported: list[WindowMetrics] = []
    b = watched(reported)
    b.window([rows((5, "u", "A"), (3, "v", "A"))], rules=rule_set(rule("r", 1, "AC")))
    b.window([rows((9, "u", "x"))])
    b.window(watermark=3)
    b.window([rows((8, "u", "x"))], watermark=7)
    b.window(watermark=9)

    assert [(one.waiting, one.first, one.watermark) for one in reported] == [
        (2, 3, None), (3, 3, None), (2, 5, 3), (2, 8, 7), (0, None, 9),
    ]  # fmt: skip


def test_runs_of_rules_that_go_are_counted_no_more_and_those_handed_over_are() -> None:
    reported: list[WindowMetrics] = []
    b, first = watched(reported), rule_set(rule("r", 1, "AC"), rule("s", 1, "AC"))
    b.window([rows((1, "u", "A"))], rules=first)
    b.window(watermark=1)

    renamed = Pattern.begin("A").where('n == "A"').followed_by("C").where('n == "B"')
    b.window(
        rules=rule_set(
            PatternProcessor(id="r", version=2, pattern=renamed, keep_matches=True), before=first
        )
    )

    assert alive(reported) == {"r": 1}


def test_a_rule_that_stops_is_reported_with_its_window() -> None:
    def fails(row: Any, run: Any) -> bool:
        raise ValueError(row["n"])

    reported: list[WindowMetrics] = []
    bad = PatternProcessor(
        id="bad", version=3, pattern=Pattern.begin("a").where(fails), on_error="disable"
    )
    b = watched(reported, functions={"fails": fails})
    b.window([rows((1, "u", "A"))], rules=rule_set(bad))

    b.window(watermark=1)

    (stopped,) = reported[-1].stopped
    assert (stopped.rule, stopped.version) == ("bad", 3)
    assert "ValueError: A" in stopped.problem


def test_cycles_are_looked_for_again_after_a_window_that_failed() -> None:
    def looks(row: Any, run: Any) -> bool:
        raise ValueError(f"cycles: {gc.isenabled()}")

    bad = PatternProcessor(id="bad", version=1, pattern=Pattern.begin("a").where(looks))
    b = watched([], functions={"looks": looks})
    b.window([rows((1, "u", "A"))], rules=rule_set(bad))
    assert gc.isenabled()

    with pytest.raises(Exception, match="cycles: False"):
        b.window(watermark=1)

    assert gc.isenabled()


def fixed(rules: RuleSet) -> Any:
    return lambda: PatternOperator(
        key=("user",), event_time="t", maker=compiled, rules=rules, fixed=True
    )


def test_rules_of_the_program_stay_over_restarts_and_others_take_their_place() -> None:
    b = Bucket(fixed(rule_set(rule("r", 1, "AC"))))
    b.window([rows((1, "u", "A"), (2, "v", "A"))])
    b.make = fixed(rule_set(rule("r", 1, "AC")))
    b.window([rows((3, "u", "C"), (4, "u", "A"))], watermark=2)
    (match,) = b.window(watermark=4).of("matches")
    assert match["version"] == 1

    b.make = fixed(rule_set(rule("r", 1, "ABC")))
    b.window([rows((5, "u", "B"), (6, "u", "C"))])

    assert b.window(watermark=6).of("matches") == [], "its runs went with the old pattern"
    assert b.last is not None
    assert b.last.engine.run_states("r") == {}


def test_where_all_runs_of_a_rule_stand() -> None:
    b = watched([])
    b.window(
        [rows((1, "u", "A"), (2, "v", "A"), (3, "v", "B"))], rules=rule_set(rule("r", 1, "ABC"))
    )
    b.window(watermark=3)
    assert b.last is not None
    b.window()

    found = b.last.engine.run_states("r")

    assert {key: [one.waits for one in runs] for key, runs in found.items()} == {
        ("u",): ["`B`"],
        ("v",): ["`C`"],
    }


def test_a_key_for_which_rows_are_not_copied_is_refused_by_itself() -> None:
    context = RuleContext(fields=frozenset({"user", "n"}), selectors=frozenset({("user",)}))
    rules = [rule("r", 1, "A", key=("n",)), rule("s", 1, "A", key=("user",)), rule("t", 1, "A")]

    taken, outcomes = RuleSet().apply_update(rules, context)

    assert [one.id for one in taken] == ["s", "t"]
    (refused,) = (one for one in outcomes if one.change == "refused")
    assert (refused.rule, refused.reason) == ("r", "KeyNotCopied")
    assert "(user)" in refused.message


# -- D-15 ------------------------------------------------------------------------------------


def traffic(random: Random) -> None:
    """Change a rule in the middle of traffic over buckets; no window knows two versions."""
    b = Buckets(lambda: PatternOperator(key=("user",), event_time="t", maker=compiled), buckets=4,
                seed=random.randrange(1_000_000))  # fmt: skip
    users, time, passed, version = [f"u{number}" for number in range(8)], 0, 0, 1
    rules = rule_set(rule("r", 1, "AC"))
    b.window(rules=rules)
    for _ in range(12):
        change: RuleSet | None = None
        if random.random() < 0.4:
            version += 1
            word = "AC" if version % 2 else "ABC"
            rules = change = rule_set(rule("r", version, word), before=rules)
        events = []
        for letter in random.choice(["A", "AB", "C", "BC", "AC"]):
            time += 1
            events += [(time, user, letter) for user in users]
        random.shuffle(events)
        passed = max(passed, time - random.randrange(3))
        reported = b.window([rows(*events)], rules=change, watermark=passed)
        for match in reported.of("matches"):
            assert match["version"] == version
            letters = "".join(e["n"] for taken in match["events"].values() for e in taken)
            assert letters == ("AC" if version % 2 else "ABC")
        assert len(reported.of("matches")) % len(users) == 0, "all users in one window"


def test_all_buckets_change_in_one_window() -> None:
    for seed in range(10):
        traffic(Random(seed))


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_all_buckets_change_in_one_window_a_thousand_times() -> None:
    """D-15: no "AC" where the rule became "ABC"."""
    for seed in range(1_000):
        traffic(Random(seed))
