"""What an export keeps in memory is bounded, however small its epochs and large its log may be."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

import pytest

from pe_agent.agent.exports.epoch_writer import BLOCK_MEMORY, EPOCH_MEMORY
from pe_agent.log import index
from pe_agent.transport.rows.stage_writer import describe_wait
from streambroker_core.ledger.retention import MEMORY_BYTES
from support.agents.exports import IMPORT, Bench, bench, rows

TEN_GIBIBYTES = 10 << 30
EPOCHS = 300


@contextmanager
def large(directory: Path) -> Iterator[Bench]:
    with bench(directory) as one:
        one.limit(max_bytes=TEN_GIBIBYTES)
        one.route("wait")
        yield one


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Bench]:
    with large(tmp_path) as one:
        yield one


def fresh(text: str) -> str:
    """Return an equal text that is an object of its own, as each call over the network has it."""
    return "".join(list(text))


def fill(made: Bench, blocks: int) -> None:
    for batch in range(EPOCHS):
        how = {"query": fresh("q" * 36), "run": fresh("r" * 36), "ddl": fresh(WIDE)}
        made.publish(batch, *[rows(batch, 1)] * blocks, **how)


WIDE = "`n` bigint, `name` string" + " " * 2000
"""As long as the schema of a hundred columns."""


def taken_and_counted(directory: Path, blocks: int, restarted: bool) -> tuple[int, int]:
    """Fill an export; return the bytes that its epochs take and those that are counted."""
    index.RUN_FRAMES = 16  # what is not yet in the index takes memory, too
    with large(directory) as made:
        if restarted:
            fill(made, blocks)
            made.close()
        gc.collect()
        tracemalloc.start()
        if restarted:
            made.open()
        else:
            fill(made, blocks)
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        streams = made.export.state.ledger.streams.values()
        assert sum(len(stream.epochs) for stream in streams) == EPOCHS
        return taken, sum(stream.memory for stream in streams)


@pytest.mark.parametrize("blocks", [1, 10])
@pytest.mark.parametrize("restarted", [False, True])
def test_an_epoch_takes_no_more_memory_than_is_counted(
    tmp_path: Path, blocks: int, restarted: bool
) -> None:
    """In a process of its own: threads that other tests leave behind allocate memory, too."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        taken, counted = process.submit(taken_and_counted, tmp_path, blocks, restarted).result()

    assert taken <= counted
    assert counted <= 3 * taken


def test_an_export_of_tiny_epochs_waits_and_says_what_it_waits_for(made: Bench) -> None:
    made.publish(0, rows(0, 1))
    made.export.state.ledger.retention.max_memory = (
        20 * made.export.state.ledger.streams[made.stream].memory
    )
    made.plan({made.stream: 0}, budget=1)
    for batch in range(1, 20):
        made.publish(batch, rows(batch, 1))
    waiting = made.admit(20)["waiting"]

    assert "memory for the list of epochs" in describe_wait("out", waiting)
    assert waiting["held"] < waiting["limit"] // 1000
    assert (
        waiting["memory"]
        == waiting["memory_limit"]
        == made.export.state.ledger.retention.max_memory
    )
    assert [h["import"] for h in waiting["holders"]] == [IMPORT]
    assert made.export.status()["readers"]["reader"]["congestion"] == 100


def test_under_drop_the_oldest_tiny_epochs_go_also_after_a_restart(made: Bench) -> None:
    made.publish(0, rows(0, 1))
    one = made.export.state.ledger.streams[made.stream].memory
    made.route("drop")
    for batch in range(1, 20):
        made.publish(batch, rows(batch, 1))
    made.reopen()
    made.route("drop")
    assert len(made.export.state.ledger.streams[made.stream].epochs) == 20
    made.export.state.ledger.retention.max_memory = 5 * one
    made.export.tick()
    assert list(made.export.state.ledger.streams[made.stream].epochs) == [15, 16, 17, 18, 19]
    assert list(made.export.state.streams[made.stream].manifests) == [15, 16, 17, 18, 19]


@pytest.mark.parametrize(("blocks", "epochs"), [(1, 90_000), (100, 5_000)])
def test_so_many_epochs_fit_into_memory_as_the_limits_say(blocks: int, epochs: int) -> None:
    fit = MEMORY_BYTES // (EPOCH_MEMORY + blocks * BLOCK_MEMORY)
    assert epochs <= fit < 1.1 * epochs
