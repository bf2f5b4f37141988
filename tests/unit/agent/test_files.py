"""Small files that are written whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from pe_agent.log.atomic_file import file_state, replace_file


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("durable", [False, True])
def test_a_file_is_replaced_and_not_written_over(
    tmp_path: Path, private: bool, durable: bool
) -> None:
    path = tmp_path / "told.json"
    path.write_text("before")
    path.chmod(0o644)
    (tmp_path / "told.new").write_text("left over by a process that was killed")
    with path.open() as reader:
        before = file_state(path)
        replace_file(path, "after", private=private, durable=durable)
        assert reader.read() == "before"

    assert path.read_text() == "after"
    assert file_state(path) != before
    assert bool(path.stat().st_mode & 0o077) != private
    assert [p.name for p in tmp_path.iterdir()] == ["told.json"]


def test_what_cannot_be_written_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "told.json"
    path.write_text("before")
    (tmp_path / "told.new").mkdir()
    with pytest.raises(OSError, match="told"):
        replace_file(path, "after")
    assert path.read_text() == "before"
