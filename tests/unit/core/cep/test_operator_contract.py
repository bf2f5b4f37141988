"""What the operator promises a runtime beside matches: times, state, control, keys, functions."""

from __future__ import annotations

import gc
import struct
from typing import Any

import pyarrow as pa
import pytest

from streambroker_core.cep import Pattern, PatternArgumentError, RunError, Skip
from streambroker_core.cep.engine.gc_pause import gc_paused
from streambroker_core.cep.engine.key_columns import copy_rows
from streambroker_core.cep.engine.metrics import WindowMetrics
from streambroker_core.cep.engine.outputs import MatchedEvents
from streambroker_core.cep.nfa.compiled import shortest_timeout
from streambroker_core.cep.operator import MatchFunction, PatternOperator, RuleStopped
from streambroker_core.cep.pattern.rule import PatternProcessor
from streambroker_core.cep.pattern.run_limits import RunLimits
from streambroker_core.cep.rules.rule_set import RuleContext, RuleSet
from streambroker_core.control.operators.operator import OperatorError, StateError
from streambroker_core.control.tuples import (
    ControlError,
    ControlTuple,
    Delivery,
    SideTick,
    make_logged_tuple,
)
from streambroker_core.control.tuples.payloads import encode
from support.aligned.runner import Through, rows_of
from support.aligned.runner import control_of as control_of_outcome
from support.patterns.cases import compiled
from support.patterns.windows import Bucket, Buckets, control_of

SCHEMA = pa.schema(
    [("t", pa.int64()), ("user", pa.string()), ("n", pa.string()), ("v", pa.int64())]
)
FOUND = pa.schema([("who", pa.string()), ("sum", pa.int64())])
USERS = ["u1", "u2", "u3", "u4", "u5", "u6"]


def rows(*events: tuple[Any, ...]) -> pa.RecordBatch:
    """Return events ``(time, letter, user, v)``, the last two with defaults."""
    full = [(*event, *("u1", 0)[len(event) - 2 :]) for event in events]
    dicts = [{"t": t, "n": n, "user": user, "v": v} for t, n, user, v in full]
    return pa.RecordBatch.from_pylist(dicts, schema=SCHEMA)


def sequence(letters: str) -> Pattern:
    pattern = Pattern.begin(letters[0]).where(f'n == "{letters[0]}"')
    for letter in letters[1:]:
        pattern = pattern.followed_by(letter).where(f'n == "{letter}"')
    return pattern


def rule_set(*patterns: Pattern, **fields: Any) -> RuleSet:
    rules = [
        PatternProcessor(id=f"r{n}", version=1, pattern=each, **fields)
        for n, each in enumerate(patterns)
    ]
    context = RuleContext(outputs=frozenset({"alert"}))
    found, outcomes = RuleSet().apply_update(rules, context)
    assert [each.change for each in outcomes] == ["added"] * len(rules)
    return found


def operator(rules: RuleSet | None = None, **fields: Any) -> PatternOperator:
    given = {"event_time": "t", "key": ("user",), "maker": compiled, "rules": rules, **fields}
    return PatternOperator(**given)


def test_rows_without_a_time_are_late_also_before_there_is_a_watermark() -> None:
    bucket = Bucket(lambda: operator(rule_set(sequence("A"))))

    late = bucket.window([rows((None, "A"), (1, "A"))]).of("late")

    assert [row["t"] for row in late] == [None]
    assert len(bucket.window(watermark=1).of("matches")) == 1


def test_a_match_that_waits_holds_the_watermark_until_it_is_reported() -> None:
    pattern = (
        Pattern.begin("x", skip=Skip(strategy="skip_past_last")).where('n == "A" || n == "B"')
        .followed_by("y").where('n == "C" && last(x.n) == "B"').within("20us")
    )  # fmt: skip
    bucket = Bucket(lambda: operator(rule_set(pattern)))
    bucket.window([rows((1, "A"), (2, "B"), (3, "C"))])

    waiting = bucket.window(watermark=10)

    assert bucket.last is not None
    assert waiting.of("matches") == []
    assert bucket.last.held_at() == 3
    (match,) = bucket.window(watermark=21).of("matches")
    assert match["time"].microsecond == 3
    assert bucket.last.held_at() is None


def test_a_time_that_passed_for_nothing_wakes_a_bucket_once() -> None:
    pattern = Pattern.begin("a").where('n == "A"').followed_by("b")
    pattern = pattern.where('n == "B" && v == last(a.v)')
    bucket = Bucket(lambda: operator(rule_set(pattern.within("5us"))))
    bucket.window([rows((1, "A", "u1", 1), (2, "A", "u1", 2), (2, "B", "u1", 1))])
    bucket.window(watermark=2)
    assert bucket.last is not None
    assert bucket.last.wake_at() in (6, 7)  # the run that began at 1 is over already

    bucket.window(watermark=6)

    assert bucket.last.wake_at() == 7
    assert len(bucket.window(watermark=7).of("timeouts")) == 1
    assert bucket.last.wake_at() is None


def test_a_run_goes_on_over_windows_in_which_nothing_but_its_state_changes() -> None:
    bucket = Bucket(lambda: operator(rule_set(sequence("ABC"))))
    for time, letter in enumerate("ABC"):
        bucket.window([rows((time, letter))])
        emitted = bucket.window(watermark=time)

    assert len(emitted.of("matches")) == 1


@pytest.mark.parametrize("bits", [0x8000000000000000, 0x7FF8000000000000, 0xFFF8000000000001])
def test_zeros_are_one_key_and_so_are_all_nan(bits: int) -> None:
    odd = struct.unpack("<d", struct.pack("<Q", bits))[0]
    plain = 0.0 if odd == 0 else float("nan")
    columns = {"t": [1, 2, 3], "n": ["B", "A", "B"], "f": pa.array([odd, plain, odd])}
    bucket = Bucket(lambda: operator(rule_set(sequence("AB")), key=("f",)))
    bucket.window([pa.RecordBatch.from_pydict(columns)])

    assert len(bucket.window(watermark=9).of("matches")) == 1


def test_in_processing_time_the_pinned_clock_wakes_and_not_event_time() -> None:
    pattern = sequence("AB").within("5us")
    bucket = Bucket(lambda: operator(rule_set(pattern), time="processing"))

    bucket.window([rows((0, "A"))], clock=100, watermark=0)

    assert bucket.last is not None
    assert (bucket.last.wake_at(), bucket.last.timeout_at()) == (None, 105)
    assert len(bucket.window(clock=105).of("timeouts")) == 1
    assert bucket.last.timeout_at() is None


def tick(number: int) -> ControlTuple:
    kind, text = encode(SideTick(number))
    return make_logged_tuple("side-ticks", number, type_=kind, text=text, delivery=Delivery.BEGIN)


def test_a_tick_ends_the_windows_that_are_over_and_goes_no_further() -> None:
    """A window without rows tells what ended, in the order of its times, and what is due next."""
    quiet = Pattern.begin("A").where('n == "A"').not_followed_by("N").where('n == "N"')
    rules = rule_set(sequence("AB").within("7us"), quiet.within("3us"))
    seen: list[WindowMetrics] = []
    through = Through(lambda: operator(rules, time="processing", watch=seen.append), order_by="t")

    def window(clock: int, *given: tuple[int, str], control: list[ControlTuple]) -> list[Any]:
        batches = [("in", rows(*given))] if given else []
        (outcome,) = through.window(batches, control, watermark=None, clock=clock)
        assert control_of_outcome(outcome) == []
        return [(output, row["rule"]) for output, b in rows_of(outcome) for row in b.to_pylist()]

    assert window(100, (0, "A"), control=[]) == []
    assert seen[-1].due == 103
    assert window(102, control=[tick(1)]) == []
    assert window(103, control=[tick(2)]) == [("matches", "r1")]
    assert seen[-1].due == 107
    assert window(107, (1, "B"), control=[tick(3)]) == [("timeouts", "r0")]
    assert seen[-1].due is None


def test_the_shortest_time_limit_of_rules_is_that_of_a_window_or_a_gap() -> None:
    pause = Pattern.begin("A").where('n == "A"').next("B").within("2s", "previous_and_current")
    rules = [sequence("AB"), sequence("AB").within("10s"), pause]
    assert [shortest_timeout(rule_set(one)) for one in rules] == [0, 10_000_000, 2_000_000]
    assert shortest_timeout(rule_set(*rules)) == 2_000_000


def test_a_window_in_which_nothing_changed_writes_nothing() -> None:
    bucket = Bucket(lambda: operator(rule_set(sequence("AB"))))
    bucket.window([rows((1, "A"))])
    bucket.window(watermark=1)
    assert bucket.last is not None

    bucket.window(watermark=2)
    assert bucket.last.snapshot() == {}
    bucket.window([rows((3, "X"), (3, "A", "u2"))])
    assert sorted(bucket.last.snapshot()) == ["meta", "waiting/3"]
    bucket.window(watermark=3)
    assert "rules" not in bucket.last.snapshot()


def test_rows_that_wait_are_written_once_however_many_windows_they_wait() -> None:
    bucket = Bucket(lambda: operator(rule_set(sequence("AB"))))
    for number in range(4):
        bucket.window([rows((10 + number, "A"), (20 + number, "B"))])
        assert bucket.last is not None
        assert [name for name in bucket.last.snapshot() if name.startswith("waiting")] == [
            f"waiting/{number}"
        ]

    bucket.window(watermark=11)
    assert bucket.last is not None

    changes = bucket.last.snapshot()
    assert sorted(name for name in changes if name.startswith("waiting")) == [
        "waiting/0",
        "waiting/1",
    ]
    assert bucket.last.wake_at() == 12
    assert len(bucket.window(watermark=50).of("matches")) == 4
    assert not any(name.startswith("waiting") for name in bucket.blobs)


def test_state_of_which_a_part_is_lost_or_damaged_is_refused() -> None:
    bucket = Bucket(lambda: operator(rule_set(sequence("AB"))))
    bucket.window([rows((1, "A"))])

    for blobs, problem in (
        ({"meta": bucket.blobs["meta"]}, "missing"),
        ({**bucket.blobs, "meta": b"{"}, "damaged"),
        ({**bucket.blobs, "rules": b"{}"}, "damaged"),
    ):
        with pytest.raises(StateError, match=problem):
            operator().restore(1, blobs)
    lost = {name: blob for name, blob in bucket.blobs.items() if name != "waiting/0"}
    bucket.blobs = lost
    with pytest.raises(StateError, match="waiting/0 is missing"):
        bucket.window(watermark=1)


def delivered(rules: RuleSet, delivery: Delivery, at: int | None = None) -> ControlTuple:
    given = control_of(rules)
    return ControlTuple(
        type=given.type, id=given.id, delivery=delivery, at=at, epoch=0, emitter="log", seq=1,
        text=given.text,
    )  # fmt: skip


def test_rules_that_come_at_the_end_of_a_window_hold_from_the_next() -> None:
    through = Through(lambda: operator(RuleSet()))
    control = delivered(rule_set(sequence("A")), Delivery.END_WINDOW)
    through.window([("in", rows((1, "A")))], watermark=None)
    through.window([("in", rows((2, "A")))], [control], watermark=1)

    (outcome,) = through.window(watermark=2)

    (emitted,) = outcome.emitted
    assert emitted.batch.num_rows == 1  # type: ignore[union-attr]


@pytest.mark.parametrize(("delivery", "at"), [(Delivery.IMMEDIATE, None), (Delivery.AT_TIME, 5)])
def test_rules_that_are_to_hold_from_within_a_window_are_refused(
    delivery: Delivery, at: int | None
) -> None:
    through = Through(lambda: operator(RuleSet()))

    with pytest.raises(
        ControlError, match=f"delivered with {delivery.value}: a rule set applies to"
    ):
        through.window([], [delivered(RuleSet(), delivery, at)], watermark=9)


def raising(row: Any, run: Any) -> bool:
    if row["n"] == "X":
        raise ValueError(row["user"])
    return bool(row["n"] == "A")


def test_a_rule_that_fails_in_several_buckets_is_reported_by_each_and_is_one_tuple() -> None:
    functions = {"raising": raising}
    rules, _ = RuleSet().apply_update(
        [
            PatternProcessor(
                id="a/b%", version=1, pattern=Pattern.begin("a").where(raising),
                on_error="disable",
            )
        ]
    )  # fmt: skip
    buckets = Buckets(lambda: operator(rules, functions=functions, time="processing"))

    emitted = buckets.window([rows(*((0, "X", user) for user in USERS))])

    assert 1 < len(emitted.of("errors")) == len(buckets.through.outcomes)
    sent = {
        one.control.id: one.control
        for outcome in buckets.through.outcomes.values()
        for one in outcome.emitted
        if hasattr(one, "control")
    }
    assert [one.payload for one in sent.values()] == [{"rule": "a/b%", "version": 1}]
    assert next(iter(sent.values())).type == RuleStopped.__name__


def test_late_rows_are_reported_once_where_a_rule_is_off_in_some_buckets_alone() -> None:
    off = PatternProcessor(
        id="a", version=1, pattern=Pattern.begin("a").where(raising), key=("n",),
        on_error="disable",
    )  # fmt: skip
    other = PatternProcessor(id="b", version=1, pattern=sequence("A"), key=("user",))
    rules, _ = RuleSet().apply_update([off, other])
    buckets = Buckets(
        lambda: operator(rules, functions={"raising": raising}, copied=True),
        selectors=rules.selectors(("user",)),
    )
    buckets.window([rows((1, "X"))])
    buckets.window(watermark=1)

    late = buckets.window([rows(*((1, f"n{number}", user) for number, user in enumerate(USERS)))])

    assert sorted(row["user"] for row in late.of("late")) == USERS


def test_keys_may_be_expressions() -> None:
    pattern = Pattern.begin("a").where('n == "A"').followed_by("b").where('n == "B"')
    rules, outcomes = RuleSet().apply_update(
        [PatternProcessor(id="r", version=1, pattern=pattern, key=("v % 10", "user"))],
        RuleContext(fields=frozenset(SCHEMA.names)),
    )
    assert [each.change for each in outcomes] == ["added"]
    buckets = Buckets(lambda: operator(rules, copied=True), selectors=rules.selectors(("user",)))
    given = [(1, "A", "u1", 13), (2, "B", "u1", 14), (3, "B", "u2", 3), (4, "B", "u1", 23)]
    buckets.window([rows(*given)])

    (match,) = buckets.window(watermark=9).of("matches")

    assert match["key"] == [3, "u1"]
    assert [e["v"] for events in match["events"].values() for e in events] == [13, 23]


@pytest.mark.parametrize(
    ("part", "reason", "message"),
    [
        ("shop", "KeyUnknown", "the stream has no column `shop`"),
        ("v + shop", "KeyUnknown", "the stream has no column `shop`"),
        ("v +", "KeyInvalid", "the stream has no column `v +`, and it is not an expression"),
        ("1 + 2", "KeyInvalid", "expected a column, or an expression over columns"),
    ],
)
def test_a_key_that_the_stream_cannot_have_is_refused(part: str, reason: str, message: str) -> None:
    rule = PatternProcessor(id="r", version=1, pattern=sequence("A"), key=(part,))

    _, (outcome,) = RuleSet().apply_update([rule], RuleContext(fields=frozenset(SCHEMA.names)))

    assert outcome.reason == reason
    assert message in outcome.message


def test_copies_have_one_row_for_each_key_and_equal_keys_have_equal_bytes() -> None:
    batch = pa.RecordBatch.from_pydict({"f": [0.0, -0.0, float("nan"), None], "i": [1, 1, 2, None]})

    whole = copy_rows(batch, [("f",), ("f", "i"), ("i == 1",), ()])

    assert whole.num_rows == 16
    places = [whole.column("_place").to_pylist()[at : at + 4] for at in range(0, 16, 4)]
    assert [len(set(each)) for each in places] == [3, 3, 3, 1]
    assert places[0][0] == places[0][1] != places[0][2]
    assert whole.column("_first").to_pylist() == [True] * 4 + [False] * 12


@pytest.mark.parametrize("key", [(), ("v",)])
def test_rules_whose_rows_lie_in_other_buckets_are_refused(key: tuple[str, ...]) -> None:
    rules = rule_set(sequence("A"), key=key)
    through = Through(lambda: operator(rules, key=() if not key else ("user",)), buckets=4)

    with pytest.raises(OperatorError, match="copy the rows for each key"):
        through.window([("in", rows((1, "A")))], watermark=None)


def test_rows_without_copies_are_refused_where_copies_are_awaited() -> None:
    bucket = Bucket(lambda: operator(rule_set(sequence("A")), copied=True))

    with pytest.raises(OperatorError, match="are not copied for the keys of rules"):
        bucket.window([rows((1, "A"))])


def summed(found: MatchedEvents) -> Any:
    taken = [row["v"] for events in found.events.values() for row in events]
    return {"who": found.key[0], "sum": sum(taken)} if sum(taken) < 100 else None


def alerting(**more: Any) -> dict[str, Any]:
    return {"match_functions": {"alert": MatchFunction(schema=FOUND, matched=summed, **more)}}


def test_a_function_makes_rows_of_the_matches_of_rules_that_name_it() -> None:
    rules = rule_set(sequence("AB").within("50us"), function="alert")
    plain, _ = rules.apply_update(
        [*rules, PatternProcessor(id="plain", version=1, pattern=sequence("AB"))],
        RuleContext(outputs=frozenset({"alert"})),
    )
    bucket = Bucket(lambda: operator(plain, **alerting()))
    bucket.window([rows((1, "A", "u1", 3), (2, "B", "u1", 4), (3, "A", "u2", 99),
                        (4, "B", "u2", 1), (5, "A", "u3"))])  # fmt: skip

    emitted = bucket.window(watermark=60)

    assert bucket.last is not None
    assert bucket.last.outputs == ("matches", "timeouts", "late", "errors", "alert")
    assert emitted.of("alert") == [{"rule": "r0", "version": 1, "who": "u1", "sum": 7}]
    assert [row["rule"] for row in emitted.of("matches")] == ["plain", "plain"]
    assert [row["rule"] for row in emitted.of("timeouts")] == ["r0"]


def test_a_function_may_take_what_timed_out() -> None:
    def over(found: MatchedEvents) -> Any:
        return [{"who": f"{found.waited} at {found.time}"}, {"sum": found.noticed}]

    rules = rule_set(sequence("AB").within("50us"), function="alert")
    bucket = Bucket(lambda: operator(rules, **alerting(timed_out=over)))
    bucket.window([rows((5, "A"))])

    emitted = bucket.window(watermark=60)

    reported = [(row["who"], row["sum"]) for row in emitted.of("alert")]
    assert reported == [("`B` at 55", None), (None, 55)]
    assert emitted.of("timeouts") == []


def test_without_time_outs_only_a_function_that_asks_for_them_gets_them() -> None:
    def over(found: MatchedEvents) -> Any:
        return {"who": found.key[0], "sum": found.time}

    asking = {"match_functions": {
        "alert": MatchFunction(schema=FOUND, matched=summed, timed_out=over),
        "plain": MatchFunction(schema=FOUND, matched=summed),
    }}  # fmt: skip
    pattern = sequence("AB").within("50us")
    names = ("alert", "plain", None)
    rules, _ = RuleSet().apply_update(
        [PatternProcessor(id=f"{n}", version=1, pattern=pattern, function=n) for n in names],
        RuleContext(outputs=frozenset({"alert", "plain"})),
    )
    seen: list[WindowMetrics] = []
    bucket = Bucket(lambda: operator(rules, timeouts=False, watch=seen.append, **asking))
    bucket.window([rows((1, "A"), (2, "B"), (5, "A"))])

    emitted = bucket.window(watermark=60)

    assert bucket.last is not None
    assert bucket.last.outputs == ("matches", "late", "errors", "alert", "plain")
    assert [row["sum"] for row in emitted.of("alert")] == [0, 55]
    assert [row["sum"] for row in emitted.of("plain")] == [0]
    assert [row["rule"] for row in emitted.of("matches")] == ["None"]
    assert [one.timeouts for one in seen[-1].rules] == [1, 1, 1], "they are counted anyway"
    assert [one.alive for one in seen[-1].rules] == [0, 0, 0]


@pytest.mark.parametrize(
    ("matched", "problem"),
    [
        (lambda found: 1 // 0, "it raised ZeroDivisionError"),
        (lambda found: {"whom": "x"}, "a row has `whom`, and its columns are who, sum"),
        (lambda found: {"sum": "many"}, "it raised Arrow"),
        (lambda found: 7, "it raised TypeError"),
    ],
)
def test_a_function_that_fails_turns_its_rule_off_or_fails_the_query(
    matched: Any, problem: str
) -> None:
    function = {"alert": MatchFunction(schema=FOUND, matched=matched)}
    for policy in ("disable", "fail"):
        rules = rule_set(sequence("A"), function="alert", on_error=policy)
        bucket = Bucket(lambda rules=rules: operator(rules, match_functions=function))  # type: ignore[misc]
        bucket.window([rows((1, "A"), (2, "A"))])
        if policy == "fail":
            with pytest.raises(RunError, match="rule `r0`, function `alert`"):
                bucket.window(watermark=5)
            continue
        (error,) = bucket.window(watermark=5).of("errors")
        assert problem in error["problem"]
        assert error["where"] == "function `alert`"
        bucket.window([rows((6, "A"))])
        assert not bucket.window(watermark=9).rows


def test_a_rule_whose_function_failed_is_reported_no_further_in_its_batch() -> None:
    def first_only(found: MatchedEvents) -> Any:
        if found.events["A"][0]["v"] == 1:
            raise ValueError("not this one")
        return {"sum": found.events["A"][0]["v"]}

    function = {"alert": MatchFunction(schema=FOUND, matched=first_only)}
    rules = rule_set(sequence("A"), function="alert", on_error="disable")
    bucket = Bucket(lambda: operator(rules, match_functions=function))
    bucket.window([rows((1, "A", "u1", 7), (2, "A", "u1", 1), (3, "A", "u1", 8))])

    emitted = bucket.window(watermark=5)

    assert [row["sum"] for row in emitted.of("alert")] == [7]
    assert len(emitted.of("errors")) == 1


@pytest.mark.parametrize(
    ("policy", "taken", "dropped"), [("drop_oldest", [2, 3, 6], 1), ("refuse", [1, 2, 6], 1)]
)
def test_limits_of_a_rule_hold_for_each_key_and_what_is_given_up_is_counted(
    policy: str, taken: list[int], dropped: int
) -> None:
    reported: list[WindowMetrics] = []
    rules = rule_set(sequence("AC"), limits=RunLimits(runs=2, policy=policy))
    bucket = Bucket(lambda: operator(rules, watch=reported.append))
    events: list[tuple[Any, ...]] = [(t, "A", "u1", t) for t in (1, 2, 3)]
    events += [(4, "x"), (5, "C", "u1"), (6, "A", "u2", 6), (7, "C", "u2")]
    emitted = []
    for event in events:
        bucket.window([rows(event)])
        emitted.append(bucket.window(watermark=event[0]))

    found = [row["events"]["A"][0]["v"] for each in emitted for row in each.of("matches")]
    assert found == taken
    assert sum(one.dropped for window in reported for one in window.rules) == dropped


@pytest.mark.parametrize("on_error", ["disable", "fail"])
def test_a_rule_beyond_limits_that_say_fail_is_off_or_fails_the_query(on_error: str) -> None:
    limited = RunLimits(runs=2, policy="fail")
    bucket = Bucket(lambda: operator(rule_set(sequence("AC"), limits=limited, on_error=on_error)))
    bucket.window([rows((1, "A"), (2, "A"), (3, "A"), (4, "C"))])
    if on_error == "fail":
        with pytest.raises(RunError, match="rule `r0`, its limits"):
            bucket.window(watermark=9)
        return

    emitted = bucket.window(watermark=9)

    (error,) = emitted.of("errors")
    assert error["where"] == "its limits"
    assert error["problem"] == "one key has 3 runs, at most 2 are allowed"
    assert emitted.of("matches") == []
    assert not any(name.startswith("runs/") and blob for name, blob in bucket.blobs.items())


def test_a_thousand_rules_do_what_each_does_alone_and_free_what_they_kept() -> None:
    """D-14; ten keys, and two conditions of which one is that of all rules."""
    patterns = [
        Pattern.begin("A").where('n == "A"').followed_by("C").where(f"v == {n}").within("9us")
        for n in range(1_000)
    ]
    rules, users = rule_set(*patterns), [f"u{n}" for n in range(10)]
    bucket = Bucket(lambda: operator(rules))
    bucket.window([rows(*((1, "A", user, -1) for user in users))])
    bucket.window(watermark=1)
    bucket.window([rows((2, "C", "u3", 7), (3, "C", "u9", 999), (4, "C", "u9", 7))])

    matches = bucket.window(watermark=4).of("matches")
    kept = sum(len(blob) for name, blob in bucket.blobs.items() if name.startswith("runs"))
    over = bucket.window(watermark=10).of("timeouts")

    found = [(row["rule"], row["key"]) for row in matches]
    assert found == [("r7", ["u3"]), ("r999", ["u9"]), ("r7", ["u9"])]
    assert len(over) == 10 * 1_000 - 3
    assert kept / (10 * 1_000) < 24, "bytes of a run; rules with equal stages share their events"
    assert not any(name.startswith("runs/") and blob for name, blob in bucket.blobs.items())


def test_names_and_columns_of_functions_that_cannot_be_are_refused() -> None:
    with pytest.raises(PatternArgumentError, match="need an output of their own"):
        operator(match_functions={"late": MatchFunction(schema=FOUND, matched=summed)})
    with pytest.raises(PatternArgumentError, match="the reserved column rule"):
        MatchFunction(schema=pa.schema([("rule", pa.string())]), matched=summed)


def test_a_version_whose_time_is_over_is_forgotten_for_good() -> None:
    old = rule_set(sequence("AC"))
    new, _ = old.apply_update(
        [*old, PatternProcessor(id="r0", version=2, pattern=sequence("BC"), scheduled=10)]
    )
    bucket = Bucket(lambda: operator(old))
    bucket.window([rows((1, "A"), (2, "A", "u2"))], rules=new)
    bucket.window(watermark=2)

    bucket.window(watermark=10)
    bucket.window([rows((11, "B"), (12, "C"))])
    emitted = bucket.window(watermark=12)

    assert bucket.last is not None
    assert list(bucket.last.engine.active) == [("r0", 2)]
    assert b'\\"version\\":1' not in bucket.blobs["rules"]
    assert [row["version"] for row in emitted.of("matches")] == [2]


@pytest.mark.parametrize("before", [True, False])
def test_cycles_are_looked_for_again_after_a_call_however_it_ends(before: bool) -> None:
    seen: list[bool] = []

    @gc_paused
    def call(fail: bool) -> int:
        seen.append(gc.isenabled())
        return 1 // (not fail)

    was = gc.isenabled()
    try:
        (gc.enable if before else gc.disable)()
        assert call(fail=False) == 1
        with pytest.raises(ZeroDivisionError):
            call(fail=True)
        assert gc.isenabled() == before
    finally:
        (gc.enable if was else gc.disable)()
    assert seen == [False, False]
