"""Drivers of two jobs, killed in the middle of a window: control comes once all the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.aligned_jobs import WINDOWS
from support.jobs import Broker
from support.killed import start


def run(role: str, folder: Path, broker: str, windows: list[int]) -> None:
    """Run a job to the end of what there is, killed once in each of the windows."""
    folder.mkdir()
    (folder / "windows").write_text(json.dumps(windows))
    for end in [-9] * len(windows) + [0]:
        found = start("support.aligned_jobs", folder, role, broker)
        assert found == end, (folder / "said").read_text()[-4000:]


@pytest.mark.parametrize(
    ("exporter", "importer"),
    [
        ([1], [0]),
        pytest.param([0, 3], [1, 2], marks=[pytest.mark.long, pytest.mark.timeout(400)]),
    ],
)
def test_kills_on_both_sides_change_no_window(
    tmp_path: Path, broker: Broker, exporter: list[int], importer: list[int]
) -> None:
    run("exporter", tmp_path / "exporter", broker.url, exporter)
    run("importer", tmp_path / "importer", broker.url, importer)
    files = (tmp_path / "importer" / "out").glob("*.json")
    found = [json.loads(path.read_text()) for path in sorted(files, key=lambda p: int(p.stem))]
    assert [values for values in found if values] == WINDOWS
