"""The sink of the example of ends of files: what has a name is whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from file_ends import BUCKETS, Renaming
from pyspark.sql import Row


class Frame:
    """Rows, as a DataFrame gives them."""

    def __init__(self, *rows: Row) -> None:
        self._rows = list(rows)

    def collect(self) -> list[Row]:
        return self._rows


def window(ends: dict[str, int]) -> dict[str, Any]:
    """Return the frames of a window with two lines of each of two files.

    Args:
        ends: how many buckets have passed the end of a file.
    """
    lines = [Row(name=name, line=f"{name}{n}") for name in ("f1", "f2") for n in (2, 1)]
    reported = [Row(name=name, bucket=bucket) for name, n in ends.items() for bucket in range(n)]
    return {"lines": Frame(*lines), "ends": Frame(*reported, *reported[:1])}


def named(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.glob("[!.]*")}


def test_a_file_gets_its_name_when_every_bucket_has_passed_its_end(tmp_path: Path) -> None:
    Renaming(tmp_path)(window({"f1": BUCKETS, "f2": BUCKETS - 1}), 0)
    assert named(tmp_path) == {"f1": "f11\nf12\n"}
    Renaming(tmp_path)(window({"f1": BUCKETS, "f2": BUCKETS}), 0)
    assert named(tmp_path) == {"f1": "f11\nf12\n", "f2": "f21\nf22\n"}


@pytest.mark.parametrize("behind", [False, True])
def test_a_window_that_comes_again_after_a_crash_leaves_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, behind: bool
) -> None:
    rename = Path.rename

    def crash(path: Path, to: Path) -> Path:
        if path.name == ".f2":
            if behind:
                rename(path, to)
            raise KeyboardInterrupt
        return rename(path, to)

    frames = window({"f1": BUCKETS, "f2": BUCKETS})
    monkeypatch.setattr(Path, "rename", crash)
    with pytest.raises(KeyboardInterrupt):
        Renaming(tmp_path)(frames, 0)
    whole = {"f1": "f11\nf12\n", "f2": "f21\nf22\n"}
    assert named(tmp_path) == (whole if behind else {"f1": whole["f1"]})
    monkeypatch.undo()
    Renaming(tmp_path)(frames, 0)
    assert named(tmp_path) == whole
    assert not list(tmp_path.glob(".*"))
