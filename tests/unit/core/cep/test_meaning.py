"""What patterns mean, in small examples: events from left to right, and all of their matches.

An event ``b2`` is a ``b``; a stage called ``b`` takes those. A match is written as what its stages
took, ``a b1b2 c``, and behind ``@`` the event at which it came out, or ``end``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from streambroker_core.cep import (
    Pattern,
    PatternArgumentError,
    PatternError,
    RunError,
    Skip,
    compile_pattern,
)
from streambroker_core.cep.engine.trace import list_run_states
from streambroker_core.cep.nfa.condition_bits import ConditionBits
from streambroker_core.cep.nfa.matcher import Matcher, PatternMatch, Timeout
from streambroker_core.cep.nfa.nfa import FINAL
from streambroker_core.cep.pattern.match_buffer import Event

END = 2**62
Shape = Callable[[], Pattern]


def is_a(letters: str) -> str:
    return " || ".join(f'startsWith(n, "{letter}")' for letter in letters)


def begin(name: str, letters: str = "", **skip: Any) -> Pattern:
    return Pattern.begin(name, skip=Skip(**skip)).where(is_a(letters or name))


def then(pattern: Pattern, how: str, name: str, letters: str = "") -> Pattern:
    joined: Pattern = getattr(pattern, how)(name)
    return joined.where(is_a(letters or name))


def chain(*parts: str) -> Pattern:
    """Return stages that follow each other: ``b`` relaxed, ``>b`` next, ``*b`` any, ``!b`` not."""
    joins = {">": "next", "*": "followed_by_any", "!": "not_followed_by", "~": "not_next"}
    pattern = begin(parts[0])
    for part in parts[1:]:
        pattern = then(pattern, joins.get(part[0], "followed_by"), part[-1])
    return pattern


class Matched:
    """What came of events that are fed one after the other, a microsecond apart if not said."""

    def __init__(self, pattern: Pattern, words: str, *times: int) -> None:
        automaton = compile_pattern(pattern)
        self.matcher = Matcher(automaton, ConditionBits(automaton))
        self.found: list[str] = []
        self.matches: list[PatternMatch] = []
        self.timeouts: list[Timeout] = []
        for seq, word in enumerate(words.split()):
            time = times[seq] if times else seq
            self._take(self.matcher.process(Event(seq, time, {"n": word, "v": seq})), word)
        self.alive = len(self.matcher.runs)

    def end(self, time: int = END) -> Matched:
        self._take(self.matcher.advance(time), "end")
        return self

    def over(self) -> list[tuple[str, int]]:
        return [(written(each), each.time) for each in self.timeouts]

    def _take(self, answer: tuple[list[PatternMatch], list[Timeout]], at: str) -> None:
        self.matches += answer[0]
        self.timeouts += answer[1]
        self.found += [f"{written(each)} @{at}" for each in answer[0]]


def written(reported: PatternMatch | Timeout) -> str:
    stages = reported.events.values()
    return " ".join("".join(event.row["n"] for event in taken) for taken in stages)


def matches(pattern: Pattern, words: str, *times: int) -> set[str]:
    """Return all matches without where they came out; each has to come once."""
    found = [each.split(" @")[0] for each in Matched(pattern, words, *times).end().found]
    assert len(found) == len(set(found))
    return set(found)


B_LOOP = "a b1 d1 b2 d2 b3 c"
A_LOOP = "c d1 a1 a2 a3 d2 a4 b"
CONTIGUITY: list[tuple[str, Shape, str, set[str]]] = [
    ("next", lambda: chain("a", ">b"), "a c b1 b2", set()),
    ("followed by", lambda: chain("a", "b"), "a c b1 b2", {"a b1"}),
    ("followed by any", lambda: chain("a", "*b"), "a c b1 b2", {"a b1", "a b2"}),
    ("any, consecutive",
     lambda: then(chain("a", "*b").one_or_more().consecutive(), "followed_by", "c"),
     B_LOOP, {"a b1 c", "a b2 c", "a b3 c"}),
    ("any, relaxed", lambda: then(chain("a", "*b").one_or_more(), "followed_by", "c"), B_LOOP,
     {"a b1 c", "a b1b2 c", "a b1b2b3 c", "a b2 c", "a b2b3 c", "a b3 c"}),
    ("any, combinations",
     lambda: then(chain("a", "*b").one_or_more().allow_combinations(), "followed_by", "c"), B_LOOP,
     {"a b1 c", "a b1b2 c", "a b1b2b3 c", "a b2 c", "a b2b3 c", "a b3 c", "a b1b3 c"}),
    ("loop, consecutive",
     lambda: then(chain("c", "a").one_or_more().consecutive(), "followed_by", "b"),
     A_LOOP, {"c a1 b", "c a1a2 b", "c a1a2a3 b"}),
    ("loop, relaxed", lambda: then(chain("c", "a").one_or_more(), "followed_by", "b"), A_LOOP,
     {"c a1 b", "c a1a2 b", "c a1a2a3 b", "c a1a2a3a4 b"}),
    ("loop, combinations",
     lambda: then(chain("c", "a").one_or_more().allow_combinations(), "followed_by", "b"), A_LOOP,
     {"c a1 b", "c a1a2 b", "c a1a3 b", "c a1a4 b", "c a1a2a3 b", "c a1a2a4 b", "c a1a3a4 b",
      "c a1a2a3a4 b"}),
    ("loop alone", lambda: begin("a").one_or_more(), "a1 x a2", {"a1", "a1a2", "a2"}),
    ("from 0 on", lambda: then(chain("a", "b").times(0, 2), "followed_by", "c"), "a b1 b2 b3 c",
     {"a c", "a b1 c", "a b1b2 c"}),
    ("at least 2", lambda: then(chain("a", "b").times_or_more(2), "followed_by", "c"),
     "a b1 b2 b3 c", {"a b1b2 c", "a b1b2b3 c"}),
    ("until, alone", lambda: begin("a").one_or_more().until(is_a("b")), "a1 c a2 b a3",
     {"a1", "a1a2", "a2", "a3"}),
    ("until, and what follows takes its event",
     lambda: then(begin("a").one_or_more().until(is_a("b")), "next", "b"), "a1 a2 b",
     {"a1a2 b", "a2 b"}),
    ("optional", lambda: then(chain("a", "b").optional(), "followed_by", "c"), "a b c",
     {"a b c", "a c"}),
    ("optional, next", lambda: then(chain("a", ">b").optional(), "next", "c"), "a b c", {"a b c"}),
    ("optional first", lambda: then(begin("a").optional(), "followed_by", "b"), "a b",
     {"a b", "b"}),
    ("optional alone is never empty", lambda: begin("a").optional(), "x a x", {"a"}),
    ("group", lambda: then(Pattern.begin(chain("b", "c")).one_or_more(), "followed_by", "d"),
     "b1 c1 b2 c2 d", {"b1 c1 d", "b1b2 c1c2 d", "b2 c2 d"}),
    ("greedy keeps what follows could take",
     lambda: then(chain("c", "a").one_or_more().greedy(), "followed_by", "d", "a"),
     "c a1 a2 d", set()),
    ("greedy lets go of the event that ends it",
     lambda: then(chain("c", "a").one_or_more().greedy().until('n == "a3"'), "followed_by", "d",
                  "a"),
     "c a1 a2 a3", {"c a1a2 a3"}),
    ("greedy in a group that is left out keeps it, too",
     lambda: then(Pattern.begin(begin("a").one_or_more().greedy()).optional(), "followed_by", "b",
                  "ab"), "a1 a2 b", {"a1a2 b", "a2 b", "b"}),
    ("as the stage by itself does",
     lambda: then(begin("a").one_or_more().greedy().optional(), "followed_by", "b", "ab"),
     "a1 a2 b", {"a1a2 b", "a2 b", "b"}),
    ("and in a group in a group, but for what stops it",
     lambda: then(Pattern.begin(Pattern.begin(begin("a", "ax").one_or_more().greedy()
                                              .until(is_a("x"))).optional()).optional(),
                  "followed_by", "b", "abx"), "a1 b a2 x", {"a1 b", "b", "a1a2 x", "a2 x", "x"}),
    ("greedy is nothing for an exact number",
     lambda: then(begin("a").times(2).greedy(), "followed_by", "d", "a"), "a1 a2 a3 a4",
     {"a1a2 a3", "a2a3 a4"}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "words", "expected"), [row[1:] for row in CONTIGUITY], ids=[r[0] for r in CONTIGUITY]
)
def test_which_events_stages_take(shape: Shape, words: str, expected: set[str]) -> None:
    assert matches(shape(), words) == expected


NEGATED: list[tuple[str, Shape, str, list[str]]] = [
    ("not next", lambda: chain("a", "~b", "c"), "a b c a x c", ["a c @c"]),
    ("not next, at the end", lambda: chain("a", "~b"), "a1 b a2 c a3", ["a2 @c"]),
    ("not followed by", lambda: chain("a", "!x", "b"), "a1 x a2 b", ["a2 b @b"]),
    ("the end of all stops before it takes",
     lambda: then(chain("a", "!x"), "followed_by", "c", "cx"), "a x", ["a x @x"]),
    ("on the way it stops",
     lambda: chain("a", "!x").followed_by("c").where(is_a("cx")).followed_by("d").where(is_a("d")),
     "a x d", []),
    ("behind an optional stage that took it holds no more",
     lambda: then(chain("a", "!x", "b").optional(), "followed_by", "c"), "a b x c", ["a b c @c"]),
    ("before it it holds", lambda: then(chain("a", "!x", "b").optional(), "followed_by", "c"),
     "a x b c", []),
    ("and without it, too", lambda: then(chain("a", "!x", "b").optional(), "followed_by", "c"),
     "a x c", []),
    ("behind a loop whose rounds may be empty",
     lambda: then(then(Pattern.begin(begin("a").optional()).one_or_more(), "not_followed_by", "b"),
                  "followed_by", "c"), "a b c", ["c @c"]),
    ("in a loop before it, too",
     lambda: then(then(begin("a").one_or_more(), "not_followed_by", "x"), "followed_by", "b"),
     "a1 x a2 b", ["a2 b @b"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "words", "expected"), [row[1:] for row in NEGATED], ids=[row[0] for row in NEGATED]
)
def test_what_must_not_come(shape: Shape, words: str, expected: list[str]) -> None:
    assert Matched(shape(), words).end().found == expected


LOOP = "b1 b2 b3 c"
SKIPS: list[tuple[dict[str, Any], list[str], int]] = [
    ({"strategy": "no_skip"}, ["b1b2b3 c @c", "b2b3 c @c", "b3 c @c"], 3),
    ({"strategy": "skip_to_next"}, ["b1b2b3 c @c", "b2b3 c @c", "b3 c @c"], 0),
    ({"strategy": "skip_past_last"}, ["b1b2b3 c @c"], 0),
    ({"strategy": "skip_to_last", "stage": "b"}, ["b1b2b3 c @c", "b3 c @c"], 1),
    # The first run waits for more, so all later matches wait for it.
    ({"strategy": "skip_to_first", "stage": "b"}, ["b1b2b3 c @c"], 3),
]


@pytest.mark.parametrize(
    ("skip", "expected", "alive"), SKIPS, ids=[r[0]["strategy"] for r in SKIPS]
)
def test_what_a_match_gives_up(skip: dict[str, Any], expected: list[str], alive: int) -> None:
    reported = Matched(then(begin("b", **skip).one_or_more(), "next", "c"), LOOP)

    assert (reported.found, reported.alive) == (expected, alive)


def test_where_nothing_goes_on_the_matches_that_waited_come() -> None:
    loop = begin("b", strategy="skip_to_first", stage="b").one_or_more().consecutive().greedy()

    assert Matched(then(loop, "next", "c"), LOOP).found == ["b1b2b3 c @c", "b2b3 c @c", "b3 c @c"]


def test_a_match_that_is_given_up_while_it_waits_never_comes() -> None:
    skip = {"strategy": "skip_past_last"}
    pattern = then(then(begin("x", "ab", **skip), "followed_by", "y", "cd"), "next", "z", "d")
    pattern = pattern.or_('n == "e" && startsWith(last(x.n), "a")').within("9us")
    reported = Matched(pattern, "a b c d", 0, 1, 2, 3)

    assert reported.end().found == ["a c d @d"]


def test_a_miss_is_an_error_only_where_it_was_asked_for() -> None:
    def shape(**more: Any) -> Pattern:
        first = begin("a", strategy="skip_to_last", stage="b", **more)
        return then(then(first, "followed_by", "b").optional(), "followed_by", "c")

    assert matches(shape().within("9us"), "a c") == {"a c"}
    with pytest.raises(RunError, match="stage `b` took no event of the match"):
        Matched(shape(throw_on_miss=True), "a c")


TIMES: list[tuple[str, Shape, str, tuple[int, ...], set[str], list[tuple[str, int]]]] = [
    ("just within", lambda: chain("a", "b").within("5us"), "a b", (0, 4), {"a b"}, []),
    ("just not", lambda: chain("a", "b").within("5us"), "a b", (0, 5), set(), [("a", 5)]),
    ("the shortest applies", lambda: chain("a", "b").within("5us").followed_by("c").where(is_a("c"))
     .within("9us"), "a b c", (0, 1, 6), set(), [("a b", 5)]),
    ("since the event before",
     lambda: chain("a", "b").within("3us", "previous_and_current").followed_by("c")
     .where(is_a("c")), "a b c a b", (0, 2, 99, 100, 103), {"a b c"}, [("a", 103)]),
    ("of what must not be next",
     lambda: chain("a", "~b").within("2us", "previous_and_current"), "a1 x a2 x",
     (0, 2, 5, 6), {"a2"}, [("a1", 2)]),
    ("of what must not be next, and not of what follows",
     lambda: chain("a", "~b").within("2us", "previous_and_current").followed_by("c")
     .where(is_a("c")), "a1 x a2 c1 c2", (0, 2, 5, 6, 9), {"a2 c1"}, [("a1", 2)]),
    ("of what must not be next, and a loop before it goes on",
     lambda: then(begin("a").one_or_more().consecutive(), "not_next", "b")
     .within("2us", "previous_and_current"), "a1 a2 x", (0, 2, 3), {"a1a2", "a2"}, []),
    ("and ignored on a stage that is taken twice",
     lambda: begin("a").times(2).within("3us", "previous_and_current"), "a1 a2", (0, 5), {"a1a2"},
     []),
    ("which has a gap instead", lambda: begin("a").times(2, gap="3us"), "a1 a2 a3", (0, 3, 5),
     {"a2a3"}, [("a1", 3), ("a3", 8)]),
    ("a gap is not for what follows",
     lambda: then(begin("a").times(2, gap="3us"), "followed_by", "b"), "a1 a2 b", (0, 2, 9),
     {"a1a2 b"}, [("a2", 5)]),
    ("a first event before 1970", lambda: chain("a", "b").within("5us"), "a b", (-7, -2), set(),
     [("a", -2)]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "words", "times", "expected", "over"),
    [row[1:] for row in TIMES],
    ids=[row[0] for row in TIMES],
)
def test_windows_are_exclusive(
    shape: Shape,
    words: str,
    times: tuple[int, ...],
    expected: set[str],
    over: list[tuple[str, int]],
) -> None:
    assert matches(shape(), words, *times) == expected
    assert Matched(shape(), words, *times).end().over() == over


@pytest.mark.parametrize(
    ("words", "times", "expected"),
    [
        ("a b", (1, 5), []),
        ("a b", (1, 6), ["a @b"]),
        ("a c", (1, 9), ["a @c"]),
        ("a", (1,), ["a @end"]),
    ],
)
def test_a_negated_end_is_decided_by_the_window_and_reported_with_both_times(
    words: str, times: tuple[int, ...], expected: list[str]
) -> None:
    reported = Matched(chain("a", "!b").within("5us"), words, *times).end(20)

    assert reported.found == expected
    noticed = times[-1] if len(times) > 1 else 20
    assert [(each.time, each.noticed) for each in reported.matches] == [(6, noticed)] * len(
        expected
    )


def test_equal_events_are_events_of_their_own() -> None:
    assert Matched(then(begin("a").times(2), "followed_by", "b"), "a a a b").found == [
        "aa b @b", "aa b @b",
    ]  # fmt: skip


def test_a_stop_condition_may_ask_what_the_loop_has_taken() -> None:
    loop = chain("c", "a").one_or_more().until("sum(a.v) >= 3")

    assert matches(loop, "c a1 a2 a3 a4") == {"c a1", "c a1a2"}


@pytest.mark.parametrize(
    ("shape", "empty"),
    [
        (lambda: begin("a"), False),
        (lambda: begin("a").optional(), True),
        (lambda: begin("a").one_or_more(), False),
        (lambda: begin("a").one_or_more().optional(), True),
        (lambda: begin("a").times(0, 3), True),
        (lambda: then(begin("a").optional(), "next", "b"), False),
        (lambda: then(begin("a").optional(), "next", "b").optional(), True),
        (lambda: Pattern.begin(chain("a", "b")).optional(), True),
        (lambda: Pattern.begin(begin("a").optional()), True),
    ],
)
def test_whether_all_of_a_pattern_may_be_left_out(shape: Shape, empty: bool) -> None:
    automaton = compile_pattern(shape())

    assert (FINAL in automaton.closure(automaton.start)) is empty


@pytest.mark.parametrize(
    ("quantifier", "expected"),
    [
        ({"gap": "3us"}, ["c a1 a2 a3 b", "c a1 a2 b"]),
        ({"gap_between": "3us"}, ["c a1 a2 a3 b", "c a1 a2 b", "c a2 a3 b"]),
    ],
)
@pytest.mark.parametrize("most", [3, None])
def test_a_gap_limits_the_first_event_of_a_stage_and_one_between_does_not(
    quantifier: dict[str, Any], expected: list[str], most: int | None
) -> None:
    """As `TimesOrMoreITCase.testTimesOrMoreNonStrict` of the original, with a time of 3."""
    middle = Pattern.begin("c").where('n == "c"').followed_by_any("a").where('n == "a"')
    counted = middle.times_or_more(2, **quantifier)
    if most is not None:
        counted = middle.times(2, most, **quantifier)
    shape = counted.allow_combinations().followed_by("b").where('n == "b"')
    automaton = compile_pattern(shape)
    matcher = Matcher(automaton, ConditionBits(automaton))
    found = []
    for seq, (name, time) in enumerate(
        [("c", 1), ("f", 2), ("a1", 3), ("f", 4), ("a2", 5), ("a3", 6), ("b", 7)]
    ):
        matches, _ = matcher.process(Event(seq, time, {"n": name[0], "name": name}, time))
        found += [" ".join(e.row["name"] for es in m.events.values() for e in es) for m in matches]
    assert sorted(found) == expected


def either(*branches: str) -> Pattern:
    return Pattern.either(*(chain(*branch.split()) for branch in branches))


@pytest.mark.parametrize(
    ("pattern", "words", "expected"),
    [
        (begin("a").followed_by(either("b", "c")), "a b c", {"a b", "a c"}),
        (begin("a").next(either("b", "c")), "a c b", {"a c"}),
        (begin("a").next(either("b", "c >d")), "a x c d", set()),
        (begin("a").followed_by(either("b >c", "b >d")), "a b d", {"a b d"}),
        (begin("a").next(either("b", "c")).times(2).consecutive(), "a c b", {"a b c"}),
        (then(begin("a").next(either("b", "c")).optional(), "next", "d"), "a d a c d",
         {"a d", "a c d"}),
        (either("a b", "a c"), "a b c", {"a b", "a c"}),
        (then(either("a", "b").one_or_more(), "followed_by", "c"), "b a c",
         {"b c", "a c", "a b c"}),
        (begin("a").followed_by(either("b !x c", "d")), "a b x c d", {"a d"}),
    ],
)  # fmt: skip
def test_without_a_skip_every_alternative_is_tried(
    pattern: Pattern, words: str, expected: set[str]
) -> None:
    assert matches(pattern, words) == expected


def test_with_a_skip_a_match_waits_while_a_preferred_alternative_is_possible() -> None:
    pattern = begin("a").followed_by(either("b c", "d")).within("10us")
    pattern = pattern.skipping(Skip(strategy="skip_past_last"))

    assert Matched(pattern, "a b d c").found == ["a b c @c"]
    waiting = Matched(pattern, "a d x")
    assert waiting.found == []
    assert [str(state) for state in list_run_states(waiting.matcher)][-1] == (
        "matched (a 1, d 1), waits for runs that began earlier, or are preferred"
    )
    assert waiting.end().found == ["a d @end"]


def test_alternatives_are_two_or_more() -> None:
    with pytest.raises(PatternArgumentError, match="either has 1 alternatives; give two patterns"):
        either("a")
    with pytest.raises(PatternError, match="`b`: the name is used twice"):
        begin("a").next(either("b", "c")).next("b")
