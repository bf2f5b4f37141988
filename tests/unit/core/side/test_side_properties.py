"""What comes out depends on the rows, not on batches, buckets or how inputs overtake each other."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.sides.cases import Case, Run, run
from support.sides.model import Model

SHORT = settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
LONG = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
KEYS = ["a", "b", "c"]
WINDOWS: list[dict[str, Any] | None] = [None, {"fixed": 10}, {"sliding": [6, 2]}]
UPDATES = {
    "singleton": ["replace", "refuse", "latest"],
    "list": ["append", "replace"],
    "map": ["replace", "refuse", "latest"],
    "multimap": ["append", "replace"],
}


@st.composite
def sides(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a side input that could work."""
    kind = draw(st.sampled_from(sorted(UPDATES)))
    update = draw(st.sampled_from(UPDATES[kind]))
    windows = draw(st.sampled_from(WINDOWS))
    ready = ["first data", "complete", "not required"] + (["watermark"] if windows else [])
    keyed = draw(st.booleans())
    reported: dict[str, Any] = {
        "kind": kind,
        "columns": {"t": "time", "k": "string", "gone": "boolean", "v": "long"},
        "value": "v",
        "event_time": "t",
        "deleted": "gone",
        "update": update,
        "ready": draw(st.sampled_from(ready)),
        "keyed": keyed,
        "on_refused": "output",
    }
    if kind in ("list", "multimap") and update == "replace":
        reported["ready"] = "complete"
    if windows is not None:
        reported["windows"] = windows
    if keyed or kind in ("map", "multimap"):
        reported["key"] = ["k"]
    if kind == "singleton" and not keyed:
        reported["default"] = -1
    return reported


@st.composite
def cases(draw: st.DrawFn, order: str = "arrival") -> Case:
    """Draw an operator with one or two side inputs, and what comes."""
    reported = {name: draw(sides()) for name in draw(st.sampled_from([["x"], ["x", "y"]]))}
    main: dict[str, Any] = {
        "columns": {"id": "string", "k": "string", "t": "time"},
        "event_time": "t",
        "key": ["k"],
        "lateness": draw(st.sampled_from([0, 3])),
    }
    if (windows := draw(st.sampled_from(WINDOWS))) is not None:
        main["windows"] = windows
    case: Case = {"main": main, "sides": reported, "order": order, "see": {}}
    for name, side in reported.items():
        if side.get("key"):
            if side["keyed"] or draw(st.booleans()):
                case["see"][name] = ["k"]
            if draw(st.booleans()) and side["kind"] in ("map", "singleton"):
                missing = draw(st.sampled_from(["null", "wait"]))
                enrich = {"input": name, "on": ["k"], "missing": missing}
                case.setdefault("enrich", []).append({**enrich, "names": [["v", f"v_{name}"]]})
    waits = any(one["missing"] == "wait" for one in case.get("enrich", ()))
    if windows is not None and not main["lateness"] and not waits:
        main["grouped"] = draw(st.booleans())
    case["feed"] = draw(feeds(reported, timed=order != "arrival"))
    return case


@st.composite
def feeds(draw: st.DrawFn, reported: dict[str, Any], *, timed: bool) -> list[list[Any]]:
    """Draw rows, loads that are complete, and a watermark that rises."""
    feed: list[list[Any]] = []
    watermark = 0
    names = sorted(reported)
    for number in range(draw(st.integers(1, 24))):
        what = draw(st.sampled_from(["side"] * 5 + ["main"] * 5 + ["complete", "watermark"]))
        t = draw(st.integers(0, 24))
        key = draw(st.sampled_from(KEYS))
        if what == "watermark":
            watermark += draw(st.integers(0, 8))
            feed.append(["watermark", watermark])
        elif what == "main":
            feed.append(["main", {"id": f"m{number}", "k": key, "t": t}])
        elif what == "side":
            gone = draw(st.integers(0, 6)) == 0
            row = {"k": key, "t": t, "gone": gone, "v": number}
            feed.append([draw(st.sampled_from(names)), row])
        else:
            name = draw(st.sampled_from(names))
            windows = reported[name].get("windows") or {}
            starts = {"fixed": [0, 10_000_000], "sliding": [0, 4_000_000]}
            known = [start for word in windows for start in starts[word]]
            said = {"input": name, "window": draw(st.sampled_from([None, *known]))}
            feed.append(["complete", {**said, "at": t * 1_000_000} if timed else said])
    return [*feed, ["watermark", 100]]


def shown(found: Run) -> list[Any]:
    """Return what came out of ``out``, by key and main window in its order."""
    rows = [
        (row["k"], row["window"], row["id"], row["sees"], row.get("v_x"), row.get("v_y"))
        for row in found.out["out"]
    ]
    return sorted(rows, key=lambda row: (row[0], str(row[1])))


def compare(case: Case) -> None:
    """Run a case in several ways; all have to give what the model gives."""
    model = Model(case).run()
    expected = sorted(
        repr((row["id"], row["window"], row["sees"], row.get("v_x"), row.get("v_y")))
        for row in model.out
    )
    first: list[Any] | None = None
    cut = any("windows" in side for side in case["sides"].values())
    ordered = "windows" in case["main"] or not cut
    for pieces, buckets in ((1, 1), (None, 1), (2, 4), (None, 3)):
        found = run(case, pieces=pieces, buckets=buckets, twice=False)
        assert as_model(found) == expected, (pieces, buckets)
        assert sorted(r["id"] for r in found.out["late"]) == sorted(r["id"] for r in model.late)
        first = first or shown(found)
        assert shown(found) == first or not ordered
        waiting = sum(one.metrics()["waiting_rows"] for one in found.ended)
        assert waiting == len(model.waiting)


def as_model(found: Run) -> list[str]:
    """Return rows as the model writes them."""
    return sorted(
        repr(
            (
                row["id"],
                None if row["window"] is None else round(row["window"]),
                json.loads(row["sees"]),
                row.get("v_x"),
                row.get("v_y"),
            )
        )
        for row in found.out["out"]
    )


@SHORT
@given(case=cases())
def test_cuts_and_buckets_do_not_matter_by_arrival(case: Case) -> None:
    compare(case)


@SHORT
@given(case=cases("event time"))
def test_cuts_and_buckets_do_not_matter_by_event_time(case: Case) -> None:
    compare(case)


@pytest.mark.long
@pytest.mark.parametrize("piece", range(6))
@LONG
@given(case=st.one_of(cases(), cases("event time")))
def test_cuts_and_buckets_do_not_matter_at_length(case: Case, piece: int) -> None:
    """In pieces, so that each can be run alone."""
    compare(case)


@st.composite
def overtaking(draw: st.DrawFn) -> tuple[Case, Case]:
    """Draw a case whose policies promise that inputs may overtake each other, in two orders."""
    case = draw(cases(draw(st.sampled_from(["arrival", "event time"]))))
    for side in case["sides"].values():
        if case["order"] == "arrival":
            side["ready"], side["windows"] = "watermark", side.get("windows", {"fixed": 10})
        elif side["ready"] == "complete":
            side["ready"] = "first data"
        if side["kind"] in ("list", "multimap"):
            side["update"] = "append"
    feed = [entry for entry in case["feed"] if entry[0] in ("main", *case["sides"])]
    by_port = [[entry for entry in feed if entry[0] == name] for name in ("main", *case["sides"])]
    mixed: list[list[Any]] = []
    while any(by_port):
        mixed.append(draw(st.sampled_from([one for one in by_port if one])).pop(0))
    end = [["watermark", 100]]
    return {**case, "feed": feed + end}, {**case, "feed": mixed + end}


@SHORT
@given(both=overtaking())
def test_what_comes_first_does_not_matter_where_the_policy_says_so(both: tuple[Case, Case]) -> None:
    first, second = (run(case, pieces=None, twice=False) for case in both)
    assert as_model(first) == as_model(second)


VERSIONS = st.dictionaries(st.sampled_from(KEYS), st.integers(0, 9), max_size=3)


@st.composite
def tables(draw: st.DrawFn) -> Case:
    """Draw versions of a table, and rows that come between their announcements."""
    versions = draw(st.lists(VERSIONS, min_size=1, max_size=4))
    feed: list[list[Any]] = []
    for number in range(draw(st.integers(1, 16))):
        if draw(st.integers(0, 3)):
            key = draw(st.sampled_from([*KEYS, None]))
            feed.append(["main", {"id": f"m{number}", "k": key}])
        else:
            version = draw(st.integers(0, len(versions) - 1))
            feed.append(["version", {"input": "x", "version": f"v{version}"}])
    reported = {"kind": "map", "columns": {"k": "string", "v": "long"}, "value": "v", "key": ["k"]}
    missing = draw(st.sampled_from(["null", "wait"]))
    return {
        "main": {"columns": {"id": "string", "k": "string"}, "key": ["k"]},
        "sides": {"x": {**reported, "static": True}},
        "function": None,
        "enrich": [{"input": "x", "on": ["k"], "missing": missing, "version": "of"}],
        "tables": {
            "x": {
                f"v{number}": [{"k": key, "v": value} for key, value in rows.items()]
                for number, rows in enumerate(versions)
            }
        },
        "feed": feed,
    }


def by_hand(case: Case) -> tuple[list[Any], int]:
    """Return each row with its value and version, and how many wait, one entry at a time."""
    rows = {
        version: {row["k"]: row["v"] for row in of} for version, of in case["tables"]["x"].items()
    }
    waits = case["enrich"][0]["missing"] == "wait"
    version: str | None = None
    waiting: list[dict[str, Any]] = []
    found: list[Any] = []
    for port, what in case["feed"]:
        if port == "version":
            version = what["version"]
        else:
            waiting.append(what)
        left = []
        for row in waiting:
            if version is None or (
                waits and row["k"] is not None and row["k"] not in rows[version]
            ):
                left.append(row)
            else:
                found.append((row["id"], rows[version].get(row["k"]), version))
        waiting = left
    return sorted(found), len(waiting)


@settings(SHORT, max_examples=25)
@given(case=tables())
def test_a_version_of_a_table_holds_from_its_place_on_however_rows_are_cut(case: Case) -> None:
    """In all buckets, and for rows that waited for it."""
    expected, waiting = by_hand(case)
    for pieces, buckets in ((1, 1), (None, 1), (2, 3), (None, 4)):
        found = run(case, pieces=pieces, buckets=buckets, twice=buckets == 1)
        rows = sorted((row["id"], row["v"], row["of"]) for row in found.out["out"])
        assert rows == expected, (pieces, buckets)
        assert sum(one.metrics()["waiting_rows"] for one in found.ended) == waiting
