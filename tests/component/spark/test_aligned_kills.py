"""A driver that is killed in the middle of a window: the window runs again and comes out once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from support.driver.process import run_driver

Windows = dict[int, list[list[list[Any]]]]
"""Rows and applied control tuples by window."""


def applied(window: int, delivery: str) -> list[list[Any]]:
    """Return what is reported of the tuple of a window, which each bucket has let go on."""
    tuple_ = [f"S.0/{window + 1}/0", "SetFactor", delivery, True]
    return [["multiply", bucket, window, "in", *tuple_] for bucket in range(3)]


CALM: Windows = {
    0: [[[1, 1, 0], [2, 2, 0], [3, 3, 0]], []],
    1: [[[4, 4, 1], [5, 5, 1], [6, 6, 1]], applied(1, "END_WINDOW")],
    2: [[[7, 70, 2], [8, 80, 2]], []],
    3: [[[9, 180, 3]], applied(3, "BEGIN")],
}
"""What comes out without a kill: the first tuple sets the factor to 10, the second one to 20."""


def written(folder: Path, what: str = "out") -> Windows:
    """Return what the sink was given; ``again`` for what it was given once more."""
    query = json.loads((folder / "ck" / "metadata").read_text())["id"]
    found = {
        int(path.stem): json.loads(path.read_text().replace(query, "q"))
        for path in (folder / what).glob("*.json")
    }
    return dict(sorted(found.items()))


def killed(
    folder: Path, middle: Sequence[int], behind: Sequence[int] = (), **options: bool
) -> Windows:
    """Run to the end, killed once in each of some windows, and after each with more cores."""
    folder.mkdir()
    kills = {"middle": middle, "behind": behind, **options}
    (folder / "kills").write_text(json.dumps(kills))
    for turn, _ in enumerate([*middle, *behind]):
        run_driver("aligned", folder, 1 + turn, killed=True)
    run_driver("aligned", folder, 2)
    return written(folder)


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True])
def test_a_kill_in_the_middle_of_a_window_changes_nothing(tmp_path: Path, shared: bool) -> None:
    """A-22 and A-23: the window runs again, with the same identities, state and rows.

    Also in the second operator of a hop, when the first one has run.
    """
    assert killed(tmp_path / "wild", [1], shared=shared) == CALM


@pytest.mark.slow
@pytest.mark.parametrize(
    "windows",
    [[1], *(pytest.param(one, marks=pytest.mark.long) for one in ([0], [2], [3], [0, 1, 2, 3]))],
)
def test_a_kill_in_any_window_leaves_declared_state_as_it_was(
    tmp_path: Path, windows: list[int]
) -> None:
    """Each callback of each window has changed a dictionary and a list once, in each bucket."""
    found = killed(tmp_path / "wild", windows, declared=True)
    seen: dict[int, list[list[Any]]] = {}
    for window, (rows, _) in found.items():
        for bucket, text in rows:
            calls, order = json.loads(text)
            earlier = seen.get(bucket, [])
            assert order[: len(earlier)] == earlier
            new = [name for number, name in order[len(earlier) :] if number == window]
            assert len(earlier) + len(new) == len(order)
            assert [new[0], new[-1], new.count("begin")] == ["begin", "end", 1]
            assert calls == {name: [one for _, one in order].count(name) for name in calls}
            assert ("control" in new) == (window in (1, 3))
            seen[bucket] = order
    assert sorted(seen) == [0, 1, 2]
    assert list(found) == [0, 1, 2, 3]


@pytest.mark.long
@pytest.mark.parametrize("windows", [[0], [2], [3], [1, 2], [0, 1, 2, 3]])
def test_kills_in_any_windows_change_nothing(tmp_path: Path, windows: list[int]) -> None:
    """A-22 to A-24: with another number of cores, and so of tasks, after each kill."""
    assert killed(tmp_path / "wild", windows) == CALM


@pytest.mark.long
@pytest.mark.parametrize(("middle", "behind"), [([], [1]), ([], [3]), ([1, 3], [1, 2])])
def test_a_kill_behind_the_sink_hands_it_the_same_window_again(
    tmp_path: Path, middle: list[int], behind: list[int]
) -> None:
    """A-22: the window was delivered, and the checkpoint does not say so."""
    assert killed(tmp_path / "wild", middle, behind) == CALM
    again = {window: CALM[window] for window in behind}
    assert written(tmp_path / "wild", "again") == again


@pytest.mark.long
@pytest.mark.parametrize(("when", "name"), [("before", "f2"), ("behind", "f1")])
def test_a_kill_beside_the_moment_in_which_a_file_is_named_leaves_it_whole(
    tmp_path: Path, when: str, name: str
) -> None:
    """A-27: the sink renames a file again, or for the first time, when its window comes again."""
    run_driver("aligned_files", tmp_path, when, name, killed=True)
    assert (tmp_path / "out" / name).exists() == (when == "behind")
    run_driver("aligned_files", tmp_path, when, name)
    found = json.loads((tmp_path / "found").read_text())
    assert found == {"f1": ["A", "B", "C"], "f2": ["D"], "f3": ["E", "F"]}
    assert not list((tmp_path / "out").glob(".*"))
