"""Dead letters: what operators refuse, as rows of one form, in place of a window that fails."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from streambroker_core.cep import Pattern, RunError, Skip
from streambroker_core.cep.operator import MatchFunction, PatternOperator
from streambroker_core.cep.pattern.rule import PatternProcessor
from streambroker_core.cep.pattern.run_limits import RunLimits
from streambroker_core.cep.rules.rule_set import RuleContext, RuleSet
from streambroker_core.control.operators.dead_letters import (
    DEAD_LETTER_SCHEMA,
    MAX_MESSAGE,
    MAX_TEXT,
    DeadLetter,
    DeadLetters,
    to_json,
)
from streambroker_core.control.operators.typed_operator import TypedOperator, handles
from streambroker_core.control.runtime.buckets import Layout, bucket_for_key
from streambroker_core.control.runtime.packing import by_bucket, pack_control
from streambroker_core.control.runtime.runner import AlignedRunner
from streambroker_core.control.tuples import ControlTuple, Delivery, Target, UndeliverableError
from streambroker_core.side import SideInput, SideJoin, SideOperator, fixed, sliding
from streambroker_core.side.errors import SideRowError
from support.aligned.runner import Through, rows_of
from support.aligned.window import control, emitted, stage, window

EVENTS = pa.schema([("t", pa.int64()), ("user", pa.string()), ("n", pa.string())])
RATES = pa.schema([("currency", pa.string()), ("rate", pa.float64()), ("t", pa.timestamp("us"))])
TRADES = pa.schema([("id", pa.string()), ("currency", pa.string()), ("t", pa.timestamp("us"))])


def letters(through: Through) -> list[DeadLetter]:
    """Return the dead letters of the last window, of all buckets."""
    return [one for outcome in through.outcomes.values() for one in outcome.dead_letters]


def outputs(through: Through, output: str) -> list[dict[str, Any]]:
    """Return the rows of an output in the last window, of all buckets."""
    found = [pair for outcome in through.outcomes.values() for pair in rows_of(outcome)]
    assert {name for name, _ in found} <= {output}
    return [row for _, batch in found for row in batch.to_pylist()]


def times(through: Through) -> list[int]:
    """Return the times of the events of the matches of one stage."""
    found = [json.loads(row["events"]) for row in outputs(through, "matches")]
    return [event["t"] for match in found for (event,) in match.values()]


def events(*given: tuple[int, str, str]) -> pa.RecordBatch:
    rows = [dict(zip(EVENTS.names, one, strict=True)) for one in given]
    return pa.RecordBatch.from_pylist(rows, schema=EVENTS)


def raising(row: Mapping[str, Any], run: Any) -> bool:
    del run
    if row["n"] == "X":
        raise ValueError("no X")
    return bool(row["n"] == "A")


def b_or_raising(row: Mapping[str, Any], run: Any) -> bool:
    raising(row, run)
    return bool(row["n"] == "B")


def a_or_c_or_raising(row: Mapping[str, Any], run: Any) -> bool:
    return raising(row, run) or bool(row["n"] == "C")


def d_of_c_or_raising(row: Mapping[str, Any], run: Any) -> bool:
    raising(row, run)
    return bool(row["n"] == "D" and run.events("a")[-1]["n"] == "C")


def alert(found: Any) -> dict[str, Any]:
    raise ValueError(f"no alert of {found.key[0]}")


def rule_of(pattern: Pattern, **fields: Any) -> RuleSet:
    context = RuleContext(outputs=frozenset({"alert", "count"}))
    rule = PatternProcessor(id="r", version=2, pattern=pattern, **fields)
    rules, (outcome,) = RuleSet().apply_update([rule], context)
    assert outcome.change == "added"
    return rules


def patterns(rules: RuleSet, *, dead_letters: bool = True) -> Through:
    match_functions = {
        "alert": MatchFunction(schema=pa.schema([("user", pa.string())]), matched=alert),
        "count": MatchFunction(
            schema=pa.schema([("number", pa.int64())]), matched=lambda one: {"number": one.number}
        ),
    }

    def make() -> PatternOperator:
        return PatternOperator(
            key=("user",),
            event_time="t",
            functions={
                one.__name__: one
                for one in (raising, b_or_raising, a_or_c_or_raising, d_of_c_or_raising)
            },
            match_functions=match_functions,
            rules=rules,
        )

    return Through(make, 2, dead_letters=dead_letters)


def test_a_row_on_which_a_rule_fails_is_a_dead_letter_and_the_rule_goes_on() -> None:
    through = patterns(rule_of(Pattern.begin("a").where(raising), on_error="fail"))
    batch = events((1, "u", "A"), (2, "u", "X"), (3, "u", "A"))
    through.window([("in", batch)], watermark=None)
    assert letters(through) == []

    through.window(watermark=5, clock=70)

    (letter,) = letters(through)
    assert letter._asdict() == {
        "source": "op/in",
        "kind": "rule_error",
        "code": "RuleFailed",
        "message": "condition `function raising`: it raised ValueError: no X",
        "rule": "r",
        "version": 2,
        "key": '["u"]',
        "row": '{"t": 2, "user": "u", "n": "X"}',
        "cut": False,
        "event_time": 2,
        "window": 1,
        "at": 70,
    }
    assert times(through) == [1, 3]
    through.window([("in", events((6, "u", "X"), (7, "u", "A"), (8, "u", "X")))], watermark=5)
    through.window(watermark=9)
    assert [one.event_time for one in letters(through)] == [6, 8]
    assert times(through) == [7]


def followed(*given: tuple[int, str], each: bool) -> list[str]:
    """Return the results of A or C, then D of C, with skip_past_last; given are seconds."""
    first = Pattern.begin("a").where(a_or_c_or_raising)
    pattern = first.followed_by_any("b").where(d_of_c_or_raising).within(100)
    through = patterns(rule_of(pattern.skipping(Skip(strategy="skip_past_last"))))
    found = list[str]()
    for part in [[one] for one in given] if each else [given]:
        batch = events(*((at * 1_000_000, "u", n) for at, n in part))
        first_at, last_at = part[0][0], part[-1][0]
        for given_rows, at in (([("in", batch)], first_at - 1), ([], last_at)):
            through.window(given_rows, watermark=at * 1_000_000)
            for outcome in through.outcomes.values():
                for output, rows in rows_of(outcome):
                    for row in rows.to_pylist():
                        taken = json.loads(row["events"]).values()
                        found.append(
                            f"{output} {''.join(e['n'] for stage in taken for e in stage)}"
                        )
                found += [
                    f"letter {json.loads(one.row or '')['n']}" for one in outcome.dead_letters
                ]
    return sorted(found)


@pytest.mark.parametrize("each", [False, True])
def test_a_failing_row_keeps_what_was_complete_before_it(each: bool) -> None:
    given = [(1, "A"), (50, "C"), (60, "D")]
    assert followed(*given, (70, "Z"), each=each) == []
    late = followed(*given, (120, "Z"), each=each)
    assert late == ["matches CD", "timeouts A"]
    assert followed(*given, (120, "X"), each=each) == ["letter X", *late]
    assert followed(*given, (70, "X"), each=each) == ["letter X", "matches CD"]


@pytest.mark.parametrize("each", [False, True])
def test_a_match_that_time_completes_does_not_fail_with_a_later_row(each: bool) -> None:
    pattern = Pattern.begin("a").where('n == "A"').not_followed_by("b").where(b_or_raising)
    through = patterns(rule_of(pattern.within(10)))
    a, x = (1_000_000, "u", "A"), (21_000_000, "u", "X")
    through.window([("in", events(*([a] if each else [a, x])))], watermark=0)
    found = list[int]()
    if each:
        through.window([("in", events(x))], watermark=1_000_000)
        found += times(through)
    through.window(watermark=30_000_000)
    assert found + times(through) == [1_000_000]


def test_a_skip_without_a_target_fails_and_keeps_the_matches_and_time_outs_of_its_event() -> None:
    pattern = Pattern.begin("a").where('n == "A"').followed_by_any("b").where('n == "B"')
    again = Skip(strategy="skip_to_first", stage="a", throw_on_miss=True)
    through = patterns(rule_of(pattern.skipping(again)))
    through.window([("in", events((1, "u", "A"), (2, "u", "B")))], watermark=0)
    through.window(watermark=3)
    (letter,) = letters(through)
    assert "own first event" in letter.message
    (match,) = outputs(through, "matches")
    assert [one[0]["t"] for one in json.loads(match["events"]).values()] == [1, 2]


def test_a_row_that_is_set_aside_ends_the_partial_matches_of_its_key_and_keeps_their_number() -> (
    None
):
    pattern = Pattern.begin("a").where('n == "A"').followed_by("b").where(b_or_raising)
    through = patterns(rule_of(pattern, numbered=True, function="count"))
    given = [(1, "u", "A"), (2, "u", "B"), (3, "u", "A"), (3, "v", "A"), (4, "u", "X")]
    through.window([("in", events(*given))], watermark=None)
    through.window(watermark=4)
    assert outputs(through, "count") == [{"rule": "r", "version": 2, "number": 1}]
    assert [(one.key, one.event_time) for one in letters(through)] == [('["u"]', 4)]

    given = [(5, "u", "B"), (5, "v", "B"), (6, "u", "A"), (7, "u", "B")]
    through.window([("in", events(*given))], watermark=4)
    through.window(watermark=8)

    assert letters(through) == []
    assert sorted(row["number"] for row in outputs(through, "count")) == [1, 2]


def test_without_dead_letters_a_rule_fails_the_query_as_it_says() -> None:
    through = patterns(rule_of(Pattern.begin("a").where(raising)), dead_letters=False)
    through.window([("in", events((2, "u", "X")))], watermark=None)
    with pytest.raises(RunError, match="rule `r`, condition `function raising`"):
        through.window(watermark=5)


def test_each_match_whose_function_fails_is_a_dead_letter_with_its_events() -> None:
    pattern = Pattern.begin("a").where('n == "A"').followed_by("b").where('n == "B"')
    through = patterns(rule_of(pattern, function="alert"))
    given = [(1, "u", "A"), (2, "u", "B"), (3, "u", "A"), (4, "u", "B")]
    through.window([("in", events(*given))], watermark=None)

    through.window(watermark=5)

    found = letters(through)
    assert {one.message for one in found} == {
        "function `alert`: it raised ValueError: no alert of u"
    }
    assert [(one.key, one.event_time) for one in found] == [('["u"]', 2), ('["u"]', 4)]
    taken = json.loads(found[0].row or "")
    assert {stage: [e["t"] for e in rows] for stage, rows in taken.items()} == {"a": [1], "b": [2]}
    assert outputs(through, "alert") == []


def test_of_a_rule_beyond_its_limits_the_dead_letter_has_the_row_that_was_too_much() -> None:
    pattern = Pattern.begin("a").where('n == "A"').followed_by("b").where('n == "B"')
    through = patterns(rule_of(pattern, limits=RunLimits(runs=2, policy="fail")))
    given = [(at, "u", "A") for at in range(1, 5)]
    through.window([("in", events(*given))], watermark=None)

    through.window(watermark=9)

    (letter,) = letters(through)
    assert letter.message == "its limits: one key has 3 runs, at most 2 are allowed"
    assert json.loads(letter.row or "")["t"] == 3


def test_of_a_rule_that_fails_as_time_passes_the_dead_letter_has_its_key_and_no_row() -> None:
    first_again = Skip(strategy="skip_to_first", stage="a", throw_on_miss=True)
    pattern = Pattern.begin("a").where('n == "A"').not_followed_by("b").where('n == "B"')
    through = patterns(rule_of(pattern.within(10).skipping(first_again)))
    for second in (1, 21):
        through.window(
            [("in", events((second * 1_000_000, "u", "A")))], watermark=(second - 1) * 1_000_000
        )
        through.window(watermark=second * 1_000_000)

        through.window(watermark=(second + 10) * 1_000_000)

        (letter,) = letters(through)
        assert "stage `a` took the match's own first event" in letter.message
        assert (letter.key, letter.row) == ('["u"]', None)


def side_join(*, dead_letters: bool = True, **settings: Any) -> Through:
    side = SideInput(name="rates", kind="map", key=("currency",), schema=RATES, **settings)
    join = SideJoin(
        schema=TRADES,
        inputs=(side,),
        key=("currency",),
        event_time="t" if "windows" in settings else None,
        windows=settings.get("windows"),
    )
    return Through(lambda: SideOperator(join), 2, dead_letters=dead_letters)


def rates(*given: tuple[str | None, float, int | None]) -> pa.RecordBatch:
    rows = [dict(zip(RATES.names, one, strict=True)) for one in given]
    return pa.RecordBatch.from_pylist(rows, schema=RATES)


def test_refused_rows_of_a_side_input_are_dead_letters_once_for_all_buckets() -> None:
    through = side_join(update="refuse", on_refused="output")
    batch = rates((None, 1.0, None), ("EUR", 2.0, None), ("EUR", 3.0, None))

    through.window([("rates", batch)], watermark=None)

    found = {json.loads(one.row or "")["rate"]: one for one in letters(through)}
    assert sorted(found) == [1.0, 3.0]
    assert {(one.source, one.kind, one.code) for one in found.values()} == {
        ("op/rates", "side_row", "SideRowRefused")
    }
    assert found[1.0].message == "rows whose key (currency) is null"
    assert found[3.0].message.startswith("a second value for a key")
    output = [row for one in through.outcomes.values() for name, batch in rows_of(one)
              if name == "errors" for row in batch.to_pylist()]  # fmt: skip
    assert [row["row"] for row in output] == [one.row for one in letters(through)]


def test_refused_rows_still_fail_the_query_without_dead_letters() -> None:
    through = side_join(dead_letters=False)
    with pytest.raises(SideRowError, match="rows whose key"):
        through.window([("rates", rates((None, 1.0, None)))], watermark=None)


def test_a_side_row_whose_window_is_over_is_a_dead_letter_and_no_error() -> None:
    through = side_join(windows=fixed(10), event_time="t")
    through.window([("rates", rates(("EUR", 1.0, 95_000_000)))], watermark=50_000_000)
    assert letters(through) == []

    through.window([("rates", rates(("EUR", 2.0, 5_000_000)))], watermark=50_000_000)

    (letter,) = letters(through)
    assert (letter.kind, letter.code, letter.event_time) == ("side_row", "SideLate", 5_000_000)
    assert json.loads(letter.row or "")["rate"] == 2.0
    assert not any(one.emitted for one in through.outcomes.values())


def test_a_main_row_that_waited_too_long_is_a_dead_letter_of_the_main_input() -> None:
    through = side_join(timeout=1, on_timeout="error")
    trades = pa.RecordBatch.from_pylist([{"id": "a", "currency": "EUR"}], schema=TRADES)
    through.window([("main", trades)], watermark=None)

    through.window(watermark=None, clock=2_000_000)

    (letter,) = letters(through)
    assert (letter.source, letter.kind, letter.code) == ("op/main", "main_row", "SideTimeout")
    assert json.loads(letter.row or "")["id"] == "a"


@dataclass
class Open:
    path: str


class Strict(TypedOperator):
    strict = True

    @handles(Open)
    def open(self, port: str, payload: Open, control: ControlTuple) -> bool:
        return True


KEYED = Layout(port="in", buckets=4, key=(("k", pa.int64()),))


def refused(one: ControlTuple, **more: Any) -> tuple[list[tuple[int, DeadLetter]], int]:
    """Return the dead letters of a tuple with their buckets, and how many copies went on."""
    runner = AlignedRunner(Strict, stage(4, **more), layouts={"in": KEYED})
    found, copies = list[tuple[int, DeadLetter]](), 0
    for bucket, packed in by_bucket(pack_control([(0, one)], "in", 4)):
        outcome = runner.run(window(3, bucket=bucket, buckets=4), [packed], {})
        found += [(bucket, letter) for letter in outcome.dead_letters]
        copies += len(emitted(outcome))
    return found, copies


def test_a_control_tuple_that_is_refused_is_one_dead_letter_and_goes_on() -> None:
    unknown = control(type="Close", text='{"path":"f"}')
    ((bucket, letter),), copies = refused(unknown, dead_letters=True)
    assert (bucket, copies) == (0, 4)
    assert (letter.source, letter.kind, letter.code) == ("op/in", "control", "ControlInvalid")
    assert "type Close, which is not known" in letter.message
    assert "on_invalid" not in letter.message
    row = json.loads(letter.row or "")
    assert (row["id"], row["payload"], letter.window) == ("e/1/0", {"path": "f"}, 3)
    assert refused(unknown, pass_invalid=True) == ([], 4)
    with pytest.raises(UndeliverableError):
        refused(unknown)


def test_a_tuple_for_one_bucket_is_a_dead_letter_of_that_bucket() -> None:
    at = bucket_for_key([7], KEYED)
    wrong: dict[str, Any] = {"type": "Open", "text": '{"path":3}'}
    assert at != 0
    for target in (Target(key=(7,)), Target(bucket=at)):
        ((bucket, letter),), _ = refused(control(**wrong, target=target), dead_letters=True)
        assert (bucket, letter.key) == (at, "[7]" if target.key else None)
    nowhere = Target(operator="op", bucket=9)
    later: dict[str, Any] = {"delivery": Delivery.AT_TIME, "at": 5}
    ((bucket, letter),), _ = refused(control(**wrong, **later, target=nowhere), dead_letters=True)
    assert (bucket, letter.event_time) == (0, 5)
    assert "bucket 9, and there are 4" in letter.message


def test_long_texts_are_cut_between_characters_and_say_how_long_they_were() -> None:
    some = DeadLetters("op", 1, 2)
    some.add("rule_error", "in", "C", "é" * MAX_MESSAGE, row="x" * MAX_TEXT, key=["a"])
    some.add("rule_error", "in", "C", "m", row="é" * MAX_TEXT, key=["é" * MAX_TEXT])
    whole, cut = some.letters
    assert (whole.row, whole.cut) == ("x" * MAX_TEXT, False)
    assert whole.message == "é" * (MAX_MESSAGE // 2) + "… (cut from 8,192 bytes)"
    assert cut.row == "é" * (MAX_TEXT // 2) + "… (cut from 131,072 bytes)"
    assert cut.cut
    assert cut.key is not None
    assert cut.key.endswith("… (cut from 131,076 bytes)")
    assert tuple(DEAD_LETTER_SCHEMA.names) == DeadLetter._fields


def test_text_that_is_no_utf_8_is_replaced() -> None:
    some = DeadLetters("op", 1, 2)
    some.add("control", "in", "C", "no \ud800", row=to_json({"a": "\ud800"}), key=["\ud800"])
    (letter,) = some.letters
    assert (letter.message, letter.row, letter.key) == ("no ?", '{"a": "?"}', '["?"]')
    assert not letter.cut
    pa.array(letter[:4] + letter[6:8], pa.string())


def test_json_of_a_row_has_the_forms_that_spark_reads_as_the_types_of_its_columns() -> None:
    schema = pa.schema(
        [
            ("raw", pa.binary()),
            ("tags", pa.map_(pa.string(), pa.int64())),
            ("pairs", pa.list_(pa.struct([("a", pa.float64())]))),
        ]
    )
    given = {"raw": b"\xff\x00", "tags": [("x", 1)], "pairs": [{"a": float("nan")}]}
    (row,) = pa.RecordBatch.from_pylist([given], schema=schema).to_pylist()
    assert json.loads(to_json(row)) == {"raw": "/wA=", "tags": {"x": 1}, "pairs": [{"a": "NaN"}]}
    assert json.loads(to_json({"a": [float("inf"), -float("inf")], "b": [], 1: True})) == {
        "a": ["Infinity", "-Infinity"],
        "b": [],
        "1": True,
    }


def test_a_control_tuple_whose_text_is_no_utf_8_is_a_row_of_errors() -> None:
    text = '{"input":"\\ud800"}'
    through = side_join()
    through.window(control=[control(type="SideComplete", text=text)], watermark=None)
    (row,) = outputs(through, "errors")
    assert (row["input"], row["row"]) == ("?", '{"input": "?"}')


@pytest.mark.parametrize(
    ("type_", "text", "why"),
    [
        *(
            (type_, text, "")
            for type_ in ("SideComplete", "SideVersion", "PatternRules")
            for text in ("[]", '"x"', "{}", '{"input":[1]}', '{"rules":{}}')
        ),
        ("SideComplete", '{"input":"rates","window":"x"}', "window"),
        ("SideComplete", '{"input":"rates","window":5}', "no window that begins at 5"),
        ("SideComplete", '{"input":"rates","whole":true}', "row by row"),
        ("SideVersion", '{"input":"rates","version":"v"}', "is a stream; send SideComplete"),
        ("PatternRules", '{"rules":{"format":2,"rules":[5],"disabled":[]}}', ""),
        ("PatternRules", '{"rules":{"format":2,"rules":5,"disabled":[]}}', ""),
        ("PatternRules", '{"rules":{"format":99,"rules":[],"disabled":[]}}', "99"),
    ],
)
def test_a_payload_that_does_not_fit_is_a_dead_letter(type_: str, text: str, why: str) -> None:
    rules = type_ == "PatternRules"
    through = patterns(RuleSet()) if rules else side_join(windows=fixed(10), event_time="t")
    wrong = control(type=type_, text=text, delivery=Delivery.BEGIN)
    through.window(control=[wrong], watermark=None)
    (letter,) = letters(through)
    fits = why.startswith(("no window", "row by row", "is a stream"))
    assert (letter.kind, letter.code) == ("control", "SideFailed" if fits else "ControlInvalid")
    assert why in letter.message
    assert len([one for one in through.outcomes.values() if one.emitted]) == 2


def test_rules_that_would_hold_from_within_a_window_are_a_dead_letter() -> None:
    through = patterns(RuleSet())
    through.window(
        control=[control(type="PatternRules", text="{}", delivery=Delivery.IMMEDIATE)],
        watermark=None,
    )
    (letter,) = letters(through)
    assert "a rule set applies to whole windows" in letter.message


def test_a_message_for_an_unknown_side_input_is_a_dead_letter_of_the_bucket_it_is_for() -> None:
    through = side_join()
    for at in (0, 1):
        unknown = control(type="SideComplete", text='{"input":"x"}', target=Target(bucket=at))
        through.window(control=[unknown], watermark=None)
        ((bucket, letter),) = [
            (bucket, one) for bucket, each in through.outcomes.items() for one in each.dead_letters
        ]
        assert (bucket, letter.code) == (at, "SideUnknown")


def test_a_refused_tuple_that_comes_on_two_inputs_is_one_dead_letter() -> None:
    through = side_join()
    wrong = control(type="SideComplete", text="[]")
    probe = through.make()
    packed = [
        one
        for side in probe.inputs
        for bucket, one in by_bucket(pack_control([(0, wrong)], side.name, 1))
    ]
    runner = AlignedRunner(through.make, stage(1, dead_letters=True))
    assert len(packed) == 2
    assert len(runner.run(window(), packed, {}).dead_letters) == 1


def test_a_late_side_row_of_sliding_windows_is_one_dead_letter_if_none_took_it() -> None:
    through = side_join(windows=sliding(10, 5), event_time="t")
    late, partly = ("EUR", 1.0, 12_000_000), ("EUR", 2.0, 47_000_000)
    through.window([("rates", rates(late, partly))], watermark=50_000_000)
    (letter,) = letters(through)
    assert letter.event_time == 12_000_000


def test_a_main_row_of_sliding_windows_is_one_dead_letter() -> None:
    through = side_join(windows=sliding(10, 5), event_time="t", timeout=1, on_timeout="error")
    trade = {"id": "a", "currency": "EUR", "t": 12_000_000}
    trades = pa.RecordBatch.from_pylist([trade], schema=TRADES)
    through.window([("main", trades)], watermark=0)
    through.window(watermark=0, clock=2_000_000)
    assert len(outputs(through, "errors")) == 2
    assert len(letters(through)) == 1
