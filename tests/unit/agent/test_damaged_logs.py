"""Files of a log that are deleted or cut off while no agent runs: the next start reports it."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from streambroker_core.ledger.losses import DataLossError
from support.agents.exports import Bench, rows

EPOCHS = 12


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Bench]:
    """An export whose log has a segment for each two epochs or so."""
    made = Bench(tmp_path / "agent", segment_bytes=4096)
    made.open()
    made.route()
    for batch in range(EPOCHS):
        made.publish(batch, rows(10 * batch, 10, size=150))
    yield made
    made.close()


def segments(made: Bench, stream: str) -> list[Path]:
    return sorted((made.directory / "log" / stream).glob("*.segment"))


def missing(made: Bench) -> list[tuple[int, int]]:
    return [one for stream in made.export.state.ledger.streams.values() for one in stream.missing]


def reopen(made: Bench) -> None:
    made.open()
    made.route()


def lost(made: Bench) -> int:
    """Read all there is as a new lossy reader from the earliest on; return the epochs lost."""
    positions: dict[str, int] = {}
    epochs = 0
    while True:
        answer = made.plan(positions, skip_lost=True) if positions else made.plan(skip_lost=True)
        epochs += sum(p.lost[0] for p in answer.planned)
        after = {p.stream: p.next for p in answer.planned}
        if not answer.planned or after.items() <= positions.items():
            return epochs
        assert sum(p.dropped[0] for p in answer.planned) == 0
        positions.update(after)


@pytest.mark.parametrize("which", [0, 1, -2, -1])
def test_a_deleted_segment_is_reported_with_the_epochs_that_were_in_it(
    made: Bench, which: int, caplog: pytest.LogCaptureFixture
) -> None:
    stream = made.stream
    made.close()
    files = segments(made, stream)
    assert len(files) >= 5
    files[which].unlink()
    with caplog.at_level(logging.ERROR, "pe_agent"):
        reopen(made)
    ((first, next_),) = missing(made)
    text = f"epochs {first} to {next_ - 1} of stream {stream}"
    assert made.export.state.ledger.streams[stream].next == EPOCHS
    assert any(text in record.getMessage() for record in caplog.records)
    status = made.export.status()
    assert status["missing"] == next_ - first
    assert status["damaged"] == [f"{text} ({10 * (next_ - first)} rows) are missing"]
    positions = None if first == 0 else {stream: first}
    with pytest.raises(DataLossError, match=f"epochs {first} to {next_ - 1}"):
        made.plan(positions, reader="strict")
    assert lost(made) == next_ - first
    assert made.publish(EPOCHS, rows(1000, 1))["epoch"] == EPOCHS


@pytest.mark.parametrize("size", [0, 100, 4096, 5000])
@pytest.mark.parametrize("which", [0, 2, -1])
def test_a_segment_that_was_cut_off_is_reported_and_the_rest_is_read(
    made: Bench, which: int, size: int
) -> None:
    stream = made.stream
    made.close()
    file = segments(made, stream)[which]
    with file.open("r+b") as opened:
        opened.truncate(size)
    reopen(made)
    ((first, next_),) = missing(made)
    assert 1 <= next_ - first <= 3
    assert lost(made) == next_ - first
    made.reopen()
    made.route()
    assert missing(made) == [(first, next_)]


@pytest.mark.parametrize("how", ["directory", "segments"])
def test_for_a_log_that_was_moved_away_a_successor_is_opened(made: Bench, how: str) -> None:
    old = made.stream
    made.close()
    if how == "directory":
        shutil.rmtree(made.directory / "log" / old)
    else:
        for file in segments(made, old):
            file.unlink()
    for _ in range(2):
        reopen(made)
        assert missing(made) == [(0, EPOCHS)]
        assert made.export.status()["streams"][old]["sealed"]
        made.close()
    reopen(made)
    made.publish(EPOCHS, rows(1000, 10, size=150))
    assert made.stream != old
    assert [m.batch for m in made.export.state.streams[made.stream].manifests.values()] == [EPOCHS]
    with pytest.raises(DataLossError, match=f"epochs 0 to {EPOCHS - 1} of stream {old}"):
        made.plan(reader="strict")
    answer = made.plan({old: EPOCHS}, reader="through")
    assert [(p.stream, p.next) for p in answer.planned] == [(made.stream, 1)]
    assert lost(made) == EPOCHS


def test_what_size_has_removed_is_not_missing(made: Bench) -> None:
    stream = made.stream
    made.limit(max_bytes=6000)
    kept = list(made.export.state.ledger.streams[stream].epochs)
    assert 0 < len(kept) < EPOCHS / 2
    for _ in range(2):
        made.reopen()
        made.route()
        assert missing(made) == []
    made.close()
    shutil.rmtree(made.directory / "log" / stream)
    reopen(made)
    assert missing(made) == [(kept[0], EPOCHS)]
    assert made.export.state.ledger.streams[stream].count_missing(0, EPOCHS) == (
        len(kept),
        10 * len(kept),
    )


def test_a_log_whose_epochs_were_all_removed_is_not_damaged_by_its_loss(made: Bench) -> None:
    made.limit(max_bytes=6000, max_age=5.0)
    made.now += 100
    made.export.tick()
    stream = made.stream
    assert not made.export.state.ledger.streams[stream].epochs
    made.close()
    shutil.rmtree(made.directory / "log" / stream)
    reopen(made)
    assert missing(made) == []
    made.publish(EPOCHS, rows(1000, 1))
    assert made.stream != stream


def test_a_hole_is_forgotten_once_size_takes_what_is_behind_it(made: Bench) -> None:
    stream = made.stream
    made.close()
    segments(made, stream)[0].unlink()
    reopen(made)
    assert missing(made)
    made.limit(max_bytes=6000)
    assert missing(made) == []
    assert made.export.status()["damaged"] == []
    made.reopen()
    assert missing(made) == []
