"""What side inputs mean, row by row and without Arrow: the oracle of the property tests.

Entries come one at a time. Every pair that waits is looked at after each of them. Nothing here
knows of windows of a runtime, batches, buckets or state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from support.sides.cases import MAIN, PLACE, Case, Rows

Pair = tuple[dict[str, Any], "int | None"]
EVER = None
_MICRO = 1e-6


def starts_of(windows: dict[str, Any] | None, t: int) -> list[int | None]:
    """Return the starts of all windows that contain a time, in seconds."""
    if windows is None:
        return [EVER]
    size, slide = _size(windows)
    return [start for start in range(t - size + 1, t + 1) if start % slide == 0]


def last_of(windows: dict[str, Any] | None, start: int | None) -> float:
    """Return the time from which a window has passed."""
    return float("inf") if windows is None or start is None else start + _size(windows)[0]


def _size(windows: dict[str, Any]) -> tuple[int, int]:
    if "fixed" in windows:
        return windows["fixed"], windows["fixed"]
    size, slide = windows["sliding"]
    return size, slide


@dataclass
class Side:
    """A side input: per window what is there, what is staged, and what is known of it."""

    name: str
    settings: dict[str, Any]
    by_time: bool
    there: dict[int | None, Rows] = field(default_factory=dict)
    staged: dict[int | None, Rows] = field(default_factory=dict)
    complete: set[Any] = field(default_factory=set)
    everything: bool = False
    refused: Rows = field(default_factory=list)
    late: int = 0

    @property
    def keyed(self) -> bool:
        return bool(self.settings.get("keyed"))

    @property
    def ready(self) -> str:
        return str(self.settings.get("ready", "first data"))

    @property
    def many(self) -> bool:
        return self.settings["kind"] in ("list", "multimap")

    @property
    def windows(self) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self.settings.get("windows")
        return found

    def key_of(self, row: dict[str, Any]) -> Any:
        return row["k"] if self.settings.get("key") else 0

    def apply(self, start: int | None, row: dict[str, Any]) -> None:
        """Take one row; what is gone is kept as such."""
        rows = self.there.setdefault(start, [])
        mine = [one for one in rows if self.key_of(one) == self.key_of(row)]
        alive = [one for one in mine if not one.get("gone")]
        update = self.settings.get("update")
        if self.many:
            if row.get("gone"):
                rows[:] = [one for one in rows if self.key_of(one) != self.key_of(row)]
            rows.append(row)
            return
        if update == "refuse" and alive and not row.get("gone"):
            self.refused.append(row)
            return
        if (update == "latest" or self.by_time) and any(one["t"] > row["t"] for one in mine):
            return
        rows[:] = [one for one in rows if self.key_of(one) != self.key_of(row)]
        rows.append(row)

    def publish(self, start: int | None) -> None:
        rows = self.staged.pop(start, None)
        if rows is None:
            return
        if self.many and self.settings.get("update") == "replace":
            keys = {self.key_of(row) for row in rows}
            old = self.there.get(start, [])
            self.there[start] = [one for one in old if self.key_of(one) not in keys]
        for row in rows:
            self.apply(start, row)

    def values(self, start: int | None, key: Any = ...) -> Any:
        rows = [one for one in self.there.get(start, []) if not one.get("gone")]
        if key is not ...:
            rows = [one for one in rows if one["k"] == key]
        return [one["v"] for one in rows]

    def view(self, start: int | None, by: Any) -> Any:
        """Return what the function of the cases tells of this view."""
        kind = self.settings["kind"]
        if self.settings.get("key"):
            if by is not ...:
                found = self.values(start, by)
                return found if self.many else (found[-1] if found else None)
            rows = [one for one in self.there.get(start, []) if not one.get("gone")]
            keys = sorted({one["k"] for one in rows})
            return {
                key: self.values(start, key) if self.many else self.values(start, key)[-1]
                for key in keys
            }
        found = self.values(start)
        return found if kind == "list" else (found[-1] if found else self.settings.get("default"))


class Model:
    """An operator, one entry at a time."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.by_time = case.get("order") == "event time"
        self.sides = [
            Side(name, settings, self.by_time) for name, settings in case["sides"].items()
        ]
        self.lateness: int = case["main"].get("lateness", 0)
        self.grouped = bool(case["main"].get("grouped"))
        self.windows: dict[str, Any] | None = case["main"].get("windows")
        self.out: Rows = []
        self.late: Rows = []
        self.passed: float = float("-inf")
        self.watermark: float = float("-inf")
        self.waiting: list[Pair] = []
        self.turns: list[tuple[int, int, int, str, dict[str, Any]]] = []

    def run(self) -> Model:
        for place, (port, what) in enumerate(self.case["feed"]):
            if port == "watermark":
                self._advance(what)
            elif self.by_time:
                self._in_turn(place, port, dict(what, **{PLACE: place}))
            else:
                self._take(port, dict(what, **{PLACE: place}))
        return self

    def _in_turn(self, place: int, port: str, what: dict[str, Any]) -> None:
        if port == "complete":
            t, rank = what["at"] // 1_000_000, len(self.sides)
        else:
            names = [side.name for side in self.sides]
            t, rank = what["t"], len(names) + 1 if port == MAIN else names.index(port)
        if t > self.watermark:
            self.turns.append((t, rank, place, port, what))
        else:
            self._take(port, what)

    def _advance(self, watermark: int) -> None:
        due = sorted((t for t in self.turns if t[0] <= watermark), key=lambda turn: turn[:3])
        self.turns = [turn for turn in self.turns if turn[0] > watermark]
        for t, _, _, port, what in due:
            self._pass_to(t)
            self._take(port, what, in_turn=True)
        self._pass_to(watermark)
        self.watermark = watermark

    def _pass_to(self, limit: float) -> None:
        """Let windows end in order; those that end at the limit have passed."""
        while True:
            ends = [
                last_of(side.windows, start)
                for number, side in enumerate(self.sides)
                for start in (*side.staged, *(self._sides_of(p)[number] for p in self.waiting))
            ]
            if self.grouped:
                ends += [last_of(self.windows, start) for _, start in self.waiting]
            ends = [end for end in ends if self.passed < end <= limit]
            if not ends:
                break
            self.passed = min(ends)
            for side in self.sides:
                for start in sorted(side.staged, key=repr):
                    if last_of(side.windows, start) <= self.passed:
                        side.publish(start)
            self._release()
        self.passed = max(self.passed, limit)

    def _take(self, port: str, what: dict[str, Any], *, in_turn: bool = False) -> None:
        over = float("-inf") if in_turn else self.watermark
        if port == "complete":
            self._complete(what)
        elif port == MAIN:
            self._take_main(what, over)
        else:
            side = next(one for one in self.sides if one.name == port)
            for start in starts_of(side.windows, what.get("t", 0)):
                self._take_side(side, start, what, over)
        self._release()

    def _take_side(self, side: Side, start: int | None, row: dict[str, Any], over: float) -> None:
        last = last_of(side.windows, start)
        if last + self.lateness <= over:
            side.late += 1
        elif side.ready == "complete" and last > self.passed:
            side.staged.setdefault(start, []).append(row)
        else:
            side.apply(start, row)

    def _take_main(self, row: dict[str, Any], over: float) -> None:
        starts = starts_of(self.windows, row.get("t", 0))
        pairs: list[Pair] = [(row, start) for start in starts]
        alive = [pair for pair in pairs if not self._is_over(pair, over)]
        if not alive:
            self.late.append(row)
        self.waiting += alive

    def _is_over(self, pair: Pair, over: float) -> bool:
        if self.windows is not None:
            return last_of(self.windows, pair[1]) + self.lateness <= over
        if self.by_time and pair[0]["t"] + self.lateness <= over:
            return True
        return any(
            last_of(side.windows, start) + self.lateness <= over
            for side, start in zip(self.sides, self._sides_of(pair), strict=True)
        )

    def _sides_of(self, pair: Pair) -> list[int | None]:
        """Return the side window of each side input: the earliest that has the pair's end."""
        row, start = pair
        found: list[int | None] = []
        for side in self.sides:
            if side.windows is None:
                found.append(EVER)
                continue
            size, slide = _size(side.windows)
            last = row["t"] if self.windows is None else last_of(self.windows, start) - _MICRO
            low = last - size
            first = int(low // slide + 1) * slide
            found.append(first)
        return found

    def _complete(self, said: dict[str, Any]) -> None:
        side = next(one for one in self.sides if one.name == said["input"])
        window = said.get("window")
        start = None if window is None else window // 1_000_000
        if window is None:
            side.everything = True
        else:
            side.complete.add(start)
        for each in list(side.staged) if window is None else [start]:
            side.publish(each)

    def _release(self) -> None:
        left: list[Pair] = []
        for pair in self.waiting:
            open_ = self.grouped and last_of(self.windows, pair[1]) > self.passed
            both = zip(self.sides, self._sides_of(pair), strict=True)
            if not open_ and all(self._lets_pass(side, start, pair) for side, start in both):
                self._emit(pair)
            else:
                left.append(pair)
        self.waiting = left

    def _lets_pass(self, side: Side, start: int | None, pair: Pair) -> bool:
        row = pair[0]
        passed = last_of(side.windows, start) <= self.passed
        ready = side.ready == "not required" or side.everything or start in side.complete or passed
        rows = side.there.get(start, [])
        if not ready and side.ready == "first data":
            ready = bool(rows) if not side.keyed else any(one["k"] == row["k"] for one in rows)
        waits = [e for e in self.case.get("enrich", ()) if e["input"] == side.name]
        if ready and waits and waits[0]["missing"] == "wait" and not passed:
            return bool(side.values(start, row["k"]))
        return ready

    def _emit(self, pair: Pair) -> None:
        row, start = pair
        by = self.case.get("see") or {}
        sees = {
            side.name: side.view(sw, row[by[side.name][0]] if side.name in by else ...)
            for side, sw in zip(self.sides, self._sides_of(pair), strict=True)
        }
        added = {}
        for enrich in self.case.get("enrich", ()):
            number = [side.name for side in self.sides].index(enrich["input"])
            found = self.sides[number].view(self._sides_of(pair)[number], row["k"])
            added[dict(enrich["names"])["v"]] = found
        self.out.append({"id": row["id"], "window": start, "sees": sees, **added})
