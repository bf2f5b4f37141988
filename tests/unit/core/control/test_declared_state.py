"""Fields that a dataclass operator declares are its state, whatever callback changes them."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streambroker_core.control.operators.operator import (
    Blobs,
    Changes,
    Operator,
    OperatorError,
    StateError,
)
from streambroker_core.control.operators.typed_operator import TypedOperator, handles
from streambroker_core.control.runtime.runner import WindowResult
from streambroker_core.control.tuples import ControlTuple
from streambroker_core.control.tuples.payloads import Codec
from support.aligned.window import apply, control, emitted, rows, run, sent, window

CALLBACKS = ("begin_window", "advance", "process", "process_control", "end_window")


@dataclass(frozen=True)
class Total:
    count: int


@dataclass
class Generator(Operator):
    """The original's: counts rows, and says at the end of the window how many there have been."""

    count: int = 0

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        self.count += batch.num_rows

    def end_window(self) -> None:
        self.emit_control(Total(self.count))


class Windows:
    """Windows of one bucket; the state is all that goes from one to the next."""

    def __init__(self, make: Callable[[], Operator]) -> None:
        self.make, self.blobs, self.number = make, dict[str, bytes](), 0

    def run(self, *values: int) -> WindowResult:
        self.number += 1
        packed = [*rows(*values), *sent(control(self.number))]
        at = window(self.number, watermark=self.number)
        outcome = run(self.make, packed, blobs=self.blobs, at=at)
        self.blobs = apply(self.blobs, outcome)
        return outcome


Field = tuple[str, Any, Any]


def declared(*fields: Field, bases: Any = (), **more: Any) -> Any:
    """Return a dataclass operator with fields of name, type and default."""
    made = {"__annotations__": {name: kind for name, kind, _ in fields}, **more}
    made |= {name: default for name, _, default in fields}
    return dataclass(type("Declared", bases or (Operator,), {**made, "__module__": __name__}))


def counts(outcome: WindowResult) -> list[int]:
    return [one.payload["count"] for one in emitted(outcome) if one.type == "Total"]


def test_the_generator_counts_across_windows() -> None:
    windows = Windows(Generator)
    assert [counts(windows.run(*range(size))) for size in (2, 3, 1)] == [[2], [5], [6]]


@pytest.mark.parametrize("callback", CALLBACKS)
def test_a_change_in_any_callback_is_seen_by_the_next_window(callback: str) -> None:
    def change(self: Any, *given: Any) -> bool:
        self.total += 1
        self.seen.append(self.window.number)
        return False

    fields: tuple[Field, ...] = ("total", int, 0), ("seen", list[int], field(default_factory=list))
    windows = Windows(declared(*fields, **{callback: change}))
    for _ in range(3):
        windows.run(1)
    found = []
    windows.make = declared(
        *fields, begin_window=lambda self: found.append((self.total, list(self.seen)))
    )
    windows.run(1)
    assert found == [(3, [1, 2, 3])]


@given(st.lists(st.lists(st.integers(-9, 9), max_size=4), min_size=1, max_size=6))
def test_a_restart_behind_each_window_gives_what_one_run_gives(
    given_windows: list[list[int]],
) -> None:
    @dataclass
    class Seen:
        all: list[int] = field(default_factory=list)
        by_value: dict[int, int] = field(default_factory=dict)
        last: tuple[int, str] | None = None

    def process(self: Any, port: str, batch: pa.RecordBatch) -> None:
        for value in batch.column("k").to_pylist():
            self.all.append(value)
            self.by_value[value] = self.by_value.get(value, 0) + 1
            self.last = (value, str(value))

    fields: tuple[Field, ...] = (
        ("all", list[int], field(default_factory=list)),
        ("by_value", dict[int, int], field(default_factory=dict)),
        ("last", tuple[int, str] | None, None),
    )
    windows, expected = Windows(declared(*fields, process=process)), Seen()
    for values in given_windows:
        windows.make = declared(*fields, process=process)
        windows.run(*values)
        for value in values:
            expected.all.append(value)
            expected.by_value[value] = expected.by_value.get(value, 0) + 1
            expected.last = (value, str(value))
    found: list[Any] = []
    windows.make = declared(
        *fields, begin_window=lambda self: found.append((self.all, self.by_value, self.last))
    )
    windows.run()
    assert found == [(expected.all, expected.by_value, expected.last)]


@pytest.mark.parametrize("callback", CALLBACKS)
@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_window_cut_off_in_any_callback_runs_again_from_the_same_state(
    callback: str, cut: int
) -> None:
    cuts = [cut]

    def changing(name: str) -> Callable[..., bool]:
        def change(self: Any, *given: Any) -> bool:
            self.seen.append((self.window.number, name))
            self.calls[name] = self.calls.get(name, 0) + 1
            if name == callback and [self.window.number] == cuts:
                cuts.clear()
                raise KeyboardInterrupt
            return False

        return change

    kind = declared(
        ("seen", list[tuple[int, str]], field(default_factory=list)),
        ("calls", dict[str, int], field(default_factory=dict)),
        **{name: changing(name) for name in CALLBACKS},
    )
    calm, cut_off = Windows(kind), Windows(kind)
    for number in (1, 2, 3):
        if number == cut:
            with pytest.raises(KeyboardInterrupt):
                cut_off.run(number)
            cut_off.number -= 1
        cut_off.run(number)
    assert cuts == []
    for number in (1, 2, 3):
        calm.run(number)
    assert cut_off.blobs == calm.blobs


class Level(enum.Enum):
    LOW = "low"
    HIGH = "high"


@dataclass(frozen=True)
class Part:
    name: str
    share: Decimal


VALUES: Sequence[tuple[Any, Any]] = (
    (bool, True),
    (bytes, b"\x00\xff"),
    (float, 1.5),
    (str | None, "a"),
    (Level, Level.HIGH),
    (Decimal, Decimal("1.10")),
    (timedelta, timedelta(seconds=1.5)),
    (set[str], {"a", "b"}),
    (frozenset[int], frozenset({1, 2})),
    (dict[tuple[int, str], list[Part]], {(1, "a"): [Part("a", Decimal(1))]}),
)


@pytest.mark.parametrize(("kind", "value"), VALUES)
def test_a_field_comes_back_as_it_was(kind: Any, value: Any) -> None:
    def end(self: Any) -> None:
        self.value = value

    windows = Windows(declared(("value", kind | None, None), end_window=end))
    windows.run(1)
    found: list[Any] = []
    reading = declared(
        ("value", kind | None, None), begin_window=lambda self: found.append(self.value)
    )
    windows.make = reading
    windows.run(1)
    assert found == [value]
    assert type(found[0]) is type(value)


def test_a_number_of_numpy_is_stored_as_pythons_own() -> None:
    def process(self: Any, port: str, batch: pa.RecordBatch) -> None:
        self.count = self.count + np.int64(batch.num_rows)

    windows = Windows(declared(("count", int, 0), process=process))
    windows.run(1, 2)
    windows.run(3)
    assert windows.blobs["field/count"] == b"\x92\xa3int\x03"


def test_only_what_a_window_changed_is_written() -> None:
    def process(self: Any, port: str, batch: pa.RecordBatch) -> None:
        self.count += batch.num_rows

    names = ("names", list[str], field(default_factory=lambda: ["a"]))
    windows = Windows(declared(("count", int, 0), names, process=process))
    assert {*windows.run(1).changes} >= {"field/count"}
    assert "field/names" not in windows.blobs
    assert [name for name in windows.run().changes if name.startswith("field/")] == []


class Old(Operator):
    def process(self, port: str, batch: pa.RecordBatch) -> None:
        self.count += batch.num_rows  # type: ignore[attr-defined]


def counting(kind: Any = int, default: Any = 0, *, name: str = "count", **more: Any) -> Any:
    return declared((name, kind, default), bases=(Old,), **more)


def test_a_new_field_takes_its_default_and_others_go_on() -> None:
    windows = Windows(counting())
    windows.run(1, 2)
    windows.make = declared(("count", int, 0), ("limit", int, 7), bases=(Old,))
    windows.run(3)
    assert windows.blobs["field/count"] == b"\x92\xa3int\x03"


def test_a_field_of_another_type_is_refused_with_both_types() -> None:
    windows = Windows(counting())
    windows.run(1)
    windows.make = counting(list[str], field(default_factory=list))
    before = dict(windows.blobs)
    message = (
        r"field Declared\.count has type list\[str\], and the checkpoint has it as int: .*"
        r"restore that type, or .* list 'count' in dropped_fields"
    )
    with pytest.raises(StateError, match=message):
        windows.run(1)
    assert windows.blobs == before


def test_a_wider_type_reads_what_a_narrower_wrote() -> None:
    windows = Windows(counting())
    windows.run(1)
    windows.make = counting(float | None, 0.0)
    windows.run(1)
    assert windows.blobs["field/count"].endswith(b"\xcb\x40\x00" + b"\x00" * 6)


def test_a_field_that_is_gone_is_refused_and_removed_once_it_is_named() -> None:
    windows = Windows(counting())
    windows.run(1)
    windows.make = declared(("other", int, 0))
    message = r"the field count of type int, which operator Declared does not declare"
    with pytest.raises(StateError, match=message):
        windows.run(1)
    windows.make = declared(("other", int, 0), dropped_fields=("count",))
    windows.run(1)
    assert "field/count" not in windows.blobs


def test_a_final_field_is_a_parameter_and_not_stored() -> None:
    @dataclass
    class Scaled(Generator):
        step: Final[int] = 1
        act: Final[Callable[[int], int]] = abs

        def process(self, port: str, batch: pa.RecordBatch) -> None:
            self.count += self.step

    windows = Windows(lambda: Scaled(step=2))
    windows.run(1)
    windows.make = lambda: Scaled(step=5)
    windows.run(1)
    assert counts(windows.run(1)) == [12]
    assert [name for name in windows.blobs if name.startswith("field/")] == ["field/count"]


def test_a_field_that_no_window_changes_takes_a_new_value() -> None:
    windows = Windows(lambda: Generator(5))
    windows.run()
    windows.make = lambda: Generator(9)
    assert counts(windows.run()) == [9]


@pytest.mark.parametrize(
    ("kind", "value"), [(int, "text"), (Any, object()), (int, 1 << 70), (list[int], ["a"])]
)
def test_a_value_that_does_not_fit_its_field_fails_the_window_by_name(
    kind: Any, value: object
) -> None:
    def end(self: Any) -> None:
        self.value = value

    windows = Windows(declared(("value", kind, None), end_window=end))
    with pytest.raises(OperatorError, match=r"field Declared\.value of type .* cannot be stored"):
        windows.run(1)


def test_a_default_that_cannot_be_stored_is_refused_before_a_query_starts() -> None:
    with pytest.raises(OperatorError, match=r"Declared\.act .*annotate a parameter .* as Final"):
        run(declared(("act", Any, abs)))


class Point:
    def __init__(self, x: int) -> None:
        self.x = x


POINT = Codec(Point, lambda one: one.x, Point)


def test_a_field_of_another_type_needs_a_codec() -> None:
    def process(self: Any, port: str, batch: pa.RecordBatch) -> None:
        self.at = Point(self.at.x + 1 if self.at else 1)

    fields = ("at", Point | None, None)
    with pytest.raises(OperatorError, match="name a Codec in codecs"):
        Windows(declared(fields, process=process)).run(1)
    windows = Windows(declared(fields, process=process, codecs=(POINT,)))
    windows.run(1)
    windows.run(1)
    assert windows.blobs["field/at"].endswith(b"\x02")


class HandWritten(Operator):
    count = 0

    def restore(self, version: int, blobs: Blobs) -> None:
        self.count = int(blobs["count"])

    def snapshot(self) -> Changes:
        return {"count": str(self.count).encode()}

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        self.count += batch.num_rows


def test_hand_written_state_goes_on_also_in_a_dataclass() -> None:
    windows = Windows(dataclass(type("Both", (HandWritten,), {"__annotations__": {"count": int}})))
    windows.run(1, 2)
    assert windows.run(3).changes["count"] == b"3"
    assert windows.run().lost_attributes == ()
    assert not [name for name in windows.blobs if name.startswith("field/")]


def test_state_of_a_hand_written_snapshot_is_read_by_its_restore_or_refused() -> None:
    @dataclass
    class Moved(Generator):
        def restore(self, version: int, blobs: Blobs) -> None:
            self.count = int(blobs["count"])

    windows = Windows(HandWritten)
    windows.run(1, 2)
    windows.make = Generator
    with pytest.raises(StateError, match="state count of an earlier Generator with a snapshot"):
        windows.run(3)
    windows.make = Moved
    assert counts(windows.run(3)) == [3]
    assert "count" not in windows.blobs
    windows.make = Generator
    assert counts(windows.run(4)) == [4]


def test_an_attribute_that_is_set_and_not_declared_is_reported_by_name() -> None:
    class Forgetting(Generator):
        total = 0
        scratch = 0
        transient: ClassVar[tuple[str, ...]] = ("scratch",)

        def process(self, port: str, batch: pa.RecordBatch) -> None:
            super().process(port, batch)
            self.total += batch.num_rows
            self.scratch += 1

    assert Windows(Forgetting).run(1).lost_attributes == ("total",)
    assert Windows(Generator).run(1).lost_attributes == ()


def test_a_class_that_inherits_fields_reports_no_field_of_its_parent() -> None:
    class Handling(TypedOperator):
        @handles(Total)
        def take(self, port: str, payload: Total, control: ControlTuple) -> bool:
            self.count = payload.count
            return False

    first = sent(control(type="Total", text='{"count":4}'))
    kept = run(declared(("count", int, 0), bases=(Handling,)), first)
    assert "field/count" in kept.changes
    assert kept.lost_attributes == ()
    assert run(Handling, first).lost_attributes == ("count",)
