"""What rules cost that come to others in one operator, without Spark: time and state.

All rules begin with the same condition, which is asked once, and go on with one of a hundred.
"""

from __future__ import annotations

from itertools import pairwise

from measure import Figures, Settings, turns
from pattern_runs import Engine, events

from streambroker_core.cep import Pattern

PURPOSE = "1 to 1,000 pattern rules in one operator: time and state by rule"
RULES = (1, 10, 100, 1_000)
CASES = {f"{number:,} rules": (number, 100) for number in RULES} | {
    "1,000 rules, 10 keys": (1_000, 10)
}
MANY_KEYS = {"50 rules, 10,000 keys": (50, 100), "500 rules, 10,000 keys": (500, 20)}
"""Rules, and windows: what is kept of a key is read and written for few events."""
SHARE = 0.01
ROWS = 20_000
"""Of a window."""


def run(settings: Settings) -> Figures:
    """Measure numbers of rules in turns."""
    figures = Figures()
    count = (1 if settings.quick else 5) * ROWS
    given = {keys: events(count, SHARE, keys) for keys in {keys for _, keys in CASES.values()}}
    for round_ in settings.turns:
        if round_:
            figures.yardstick()
        for name in turns(list(CASES), round_):
            settings.say(f"round {round_}: {name}")
            number, keys = CASES[name]
            ran = Engine(patterns(number, keys), rows=ROWS).run(given[keys])
            if round_:
                figures.add(name, count / ran.seconds / 1e6, "M/s")
                figures.add(f"{name}, time", ran.seconds / count * 1e9, "ns/event")
                figures.add(f"{name}, matches", float(ran.matches), "")
                figures.add(f"{name}, runs", float(ran.runs), "")
                figures.add(f"{name}, state of a rule", ran.state / number, "bytes")
                figures.add(f"{name}, state of a run", ran.state / max(1, ran.runs), "bytes")
        for name in turns(list(MANY_KEYS), round_):
            settings.say(f"round {round_}: {name}")
            number, windows = MANY_KEYS[name]
            windows = 10 if settings.quick else windows
            engine = Engine(patterns(number, 10_000), rows=ROWS)
            took = engine.run(events(windows * ROWS, SHARE, 10_000)).windows
            if round_:
                for part, some in (("first", took[1:5]), ("last", took[-4:])):
                    each = sum(some) / len(some) / ROWS
                    figures.add(f"{name}, {part} of {windows} windows", each * 1e6, "us/event")
    for few, many in pairwise(RULES):
        less, more = (figures.samples[f"{number:,} rules, time"] for number in (few, many))
        for before, after in zip(less, more, strict=True):
            figures.add(
                f"each rule from {few:,} to {many:,}", (after - before) / (many - few), "ns/event"
            )
    figures.note(f"{count:,} events in windows of {ROWS:,}, state written and read each window")
    figures.note(
        "seconds are those that the process was given, so others on the machine count little"
    )
    figures.note("one core, no Spark: no shuffle, no serialisation of rows between processes")
    figures.note("state: runs and their indexes, when all events were seen")
    return figures


def patterns(number: int, keys: int) -> list[Pattern]:
    """Return patterns of two stages; a key has about two rows of each kind in a window."""
    return [
        Pattern.begin("a")
        .where('kind == "a"')
        .followed_by("b")
        .where(f'kind == "b" && price > {n % 100}')
        .within(f"{round(2 / SHARE * keys)}us")
        for n in range(number)
    ]
