"""Whether a fellow can give its parts: what it reads for that, and what it remembers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pe_agent.agent.exports.stream.export_stream import ExportStream
from pe_agent.agent.exports.stream.manifests import shard_identity
from pe_agent.agent.shards.verify import CALL_BUDGET_SECONDS, ShardVerifier
from pe_agent.log.errors import AddressGone
from streambroker_core.wire.agent_rpc.stages import BrokenParts
from support.agents.exports import Bench, bench, rows


class Reads:
    """Blocks that are read, each of which takes some seconds of its clock."""

    def __init__(self, stream: ExportStream) -> None:
        self.now, self.seconds, self.done = 0.0, 0.0, 0
        self._read = stream.log.read
        stream.log.read = self  # type: ignore[method-assign]

    def __call__(self, address: Any) -> Any:
        self.now, self.done = self.now + self.seconds, self.done + 1
        return self._read(address)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path, segment_bytes=4096) as one:
        yield one


def wanted(stream: ExportStream) -> dict[str, Any]:
    reported = {str(n): shard_identity(part) for n, part in stream.manifests.items()}
    return {stream.id: reported}


def test_a_part_is_read_once_and_again_when_it_was_moved_or_is_in_doubt(made: Bench) -> None:
    for batch in range(6):
        made.publish(batch, rows(batch, 1, size=900), rows(batch, 1, size=900))
    stream = made.export.state.streams[made.stream]
    reads, parts = Reads(stream), ShardVerifier()
    for _ in range(2):
        reported = parts.verify({stream.id: stream}, wanted(stream))
        assert (reported, reads.done) == (BrokenParts(broken={}, done=True), 12)
    parts.mark_unverified(stream.id, 2)
    parts.verify({stream.id: stream}, wanted(stream))
    assert reads.done == 14
    before = dict(stream.manifests)
    stream.remove([1, 3, 4])
    moved = [n for n, part in stream.manifests.items() if part is not before[n]]
    assert 0 < len(moved) < 3
    reads.done = 0
    parts.verify({stream.id: stream}, wanted(stream))
    assert reads.done == 2 * len(moved)
    assert {s: sorted(good) for s, good in parts._verified.items()} == {stream.id: [0, 2, 5]}
    parts.verify({stream.id: None}, wanted(stream))
    assert parts._verified == {}, "what is removed is forgotten"


def test_what_takes_long_goes_on_with_the_next_call(made: Bench) -> None:
    for batch in range(4):
        made.publish(batch, rows(batch, 1))
    stream = made.export.state.streams[made.stream]
    reads = Reads(stream)
    reads.seconds = 0.6 * CALL_BUDGET_SECONDS
    parts = ShardVerifier(lambda: reads.now)
    reported = [parts.verify({stream.id: stream}, wanted(stream)).done for _ in range(3)]
    assert (reported, reads.done) == ([False, True, True], 4)


def test_a_part_that_moves_while_it_is_read_is_read_where_it_is_then(made: Bench) -> None:
    for batch in range(8):
        made.publish(batch, rows(batch, 1, size=700))
    stream = made.export.state.streams[made.stream]
    read, met = stream.log.read, list[bool]()

    def moving(address: Any) -> Any:
        stream.log.read = read  # type: ignore[method-assign]
        stream.remove([1, 2, 4, 5, 6])
        with contextlib.suppress(AddressGone):
            read(address)
            met.append(False)
        return read(address)

    asked = {stream.id: {"0": shard_identity(stream.manifests[0])}}
    stream.log.read = moving  # type: ignore[method-assign]
    assert ShardVerifier().verify({stream.id: stream}, asked) == BrokenParts(broken={}, done=True)
    assert met == [], "the part was moved, and its segment removed"


def test_what_is_not_there_is_reported_by_stream_and_epoch(made: Bench) -> None:
    made.publish(0, rows(0, 1))
    stream = made.export.state.streams[made.stream]
    good = shard_identity(stream.manifests[0])
    asked = {stream.id: {"0": {**good, "rows": [2]}, "7": good}, "none": {"0": good}}
    reported = ShardVerifier().verify({stream.id: stream, "none": None}, asked)
    found = {s: sorted(epochs) for s, epochs in reported.broken.items()}
    assert found == {stream.id: ["0", "7"], "none": ["0"]}
    assert "differs from the published" in reported.broken[stream.id]["0"]
