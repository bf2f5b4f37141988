"""Control tuples of an export's epochs: in manifests, with their places, to those who ask."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pe_agent.agent.exports.stream.block_reader import BlockReader, NotPlannedError, ReadRequest
from pe_agent.agent.exports.stream.manifests import Manifest
from pe_agent.log.errors import LogCorrupt
from streambroker_core.control.runtime.control_rows import from_batch
from streambroker_core.control.tuples import ControlError, ControlTuple, Delivery, make_logged_tuple
from streambroker_core.control.tuples.epoch_control import IndexedControl
from streambroker_core.ledger.publisher import LEASE_SECONDS, BatchDiffersError, PublisherInUseError
from support.agents.exports import DDL, SCHEMA, Bench, bench, killed_in, rows

CONTROL = frozenset[str]()
END = Delivery.END_WINDOW


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path) as one:
        one.route()
        yield one


def tuple_(seq: int = 0, delivery: Delivery = Delivery.IMMEDIATE, text: str = "1") -> ControlTuple:
    return make_logged_tuple("q.op.0", seq, type_="mark", text=text, delivery=delivery)


def publish(
    made: Bench, batch: int, control: list[IndexedControl], *, count: int = 4, **more: Any
) -> dict[str, Any]:
    """Publish a batch of rows with control tuples; without rows where there are none."""
    who = {"query": "q", "run": "r", **more}
    assert made.admit(batch, **more) == {"admitted": True}
    stages = [made.stage(batch, rows(10 * batch, count), **more)] if count else []
    return made.export.publisher.publish(
        batch=batch, stages=stages, ddl=DDL, control=control, schema=SCHEMA, **who
    )


def given(made: Bench, *epochs: int, filter_: str | None = None) -> list[list[tuple[int, str]]]:
    """Return places and ids of the tuples of planned epochs, as a reader is sent them."""
    pieces = tuple((n, 0, 1) for n in epochs)
    read = ReadRequest(
        reader="reader", stream=made.stream, pieces=pieces, filter=filter_, columns=None
    )
    found = [from_batch(batch) for batch, _ in BlockReader().read_control(made.export.plans, read)]
    return [[(at, one.id) for at, one in epoch] for epoch in found]


def test_tuples_come_with_their_places_whatever_the_filter(made: Bench) -> None:
    publish(made, 0, [(2, tuple_(0)), (4, tuple_(1, END)), (3, tuple_(0))])
    publish(made, 1, [])
    made.plan(control=CONTROL, filter_="n > 1000")
    assert given(made, 0, filter_="n > 1000") == [[(2, "q.op.0/0"), (4, "q.op.0/1")]]
    read = ReadRequest(
        reader="reader", stream=made.stream, pieces=((0, 0, 1),), filter="n > 1000", columns=None
    )
    ((batch, _),) = BlockReader().read_batches(made.export.plans, read)
    assert (batch.num_rows, batch.schema) == (0, SCHEMA)


def test_a_plan_of_a_reader_of_control_ends_with_the_end_of_a_window(made: Bench) -> None:
    publish(made, 0, [])
    publish(made, 1, [(0, tuple_(0, END))])
    publish(made, 2, [])
    planned = made.plan(control=CONTROL).planned
    assert [(p.from_, p.next) for p in planned] == [(0, 2)]
    again = made.replan({made.stream: (0, 2)}, control=CONTROL)
    assert (again.control, again.order) == ({made.stream: [1]}, (made.stream,))
    assert [(p.from_, p.next) for p in made.plan(reader="rows").planned] == [(0, 3)]


def test_epochs_that_are_not_planned_give_no_control(made: Bench) -> None:
    publish(made, 0, [(0, tuple_(0, END))])
    publish(made, 1, [(0, tuple_(1))])
    made.plan(control=CONTROL)
    with pytest.raises(NotPlannedError, match="epoch 1"):
        given(made, 1)
    with pytest.raises(NotPlannedError, match="planned under another filter"):
        given(made, 0, filter_="n > 1")


def test_control_survives_the_agent_and_the_move_out_of_its_segment(tmp_path: Path) -> None:
    with bench(tmp_path, segment_bytes=3000) as made:
        made.route()
        publish(made, 0, [(1, tuple_(0, text=json.dumps("x" * 900)))])
        for batch in range(1, 5):
            publish(made, batch, [], count=40)
        made.plan(control=CONTROL)
        stream = made.export.state.streams[made.stream]
        before = stream._index.addresses[0]
        stream.compactor._rewrite_segment(before.segment)
        stream.compactor.run()
        assert before.segment not in [s.number for s in stream.log.segments()]
        assert given(made, 0) == [[(1, "q.op.0/0")]]
        made.reopen()
        assert given(made, 0) == [[(1, "q.op.0/0")]]


def test_damaged_control_is_reported_and_not_left_out(made: Bench) -> None:
    publish(made, 0, [(1, tuple_())], count=1)
    made.plan(control=CONTROL)
    address = made.export.state.streams[made.stream]._index.addresses[0]
    (segment,) = (made.directory / "log" / made.stream).glob("*.segment")
    with segment.open("r+b") as file:
        file.seek(address.offset + address.length - 3)
        file.write(b"?")
    with pytest.raises(LogCorrupt):
        given(made, 0)


@pytest.mark.compatibility(
    "manifest of an epoch",
    "without control tuples it is version 1, which older releases read",
)
def test_manifests_without_control_are_those_of_an_older_release(made: Bench) -> None:
    made.publish(0, rows(0, 2))
    manifest = made.export.state.streams[made.stream].manifests[0]
    body = json.loads(manifest.encode())
    assert (body["v"], body["control"]) == (1, [])
    assert Manifest.decode(json.dumps(body).encode()) == manifest


@pytest.mark.compatibility(
    "publishers in `state.sqlite`",
    "batches without control tuples are stored as older releases store them",
)
def test_what_is_kept_of_batches_without_control_is_as_an_older_release_has_it(
    made: Bench,
) -> None:
    def kept() -> Any:
        ((state,),) = made.store.query("SELECT state FROM publishers")
        return json.loads(state)["last"]

    made.publish(0, rows(0, 2))
    assert kept() == {"batch": 0, "rows": 2, "schema": DDL}
    publish(made, 1, [(0, tuple_())])
    assert kept() == {"batch": 1, "rows": 4, "schema": DDL, "control": 1}


@pytest.mark.compatibility(
    "manifest of an epoch",
    "with control tuples it is version 3, which releases without them refuse",
)
def test_a_manifest_with_control_is_of_a_version_that_an_older_release_refuses(
    made: Bench,
) -> None:
    publish(made, 0, [(0, tuple_(0, END)), (1, tuple_(1, Delivery.BEGIN))])
    manifest = made.export.state.streams[made.stream].manifests[0]
    body = json.loads(manifest.encode())
    assert body["v"] == 3
    assert body["control"]["end"] == body["control"]["begin"] == ["mark"]
    assert (body["control"]["tuples"], body["control"]["bytes"]) == (2, 2)
    assert Manifest.decode(json.dumps(body).encode()) == manifest


def test_a_batch_with_control_alone_is_an_epoch_and_opens_the_stream(made: Bench) -> None:
    answer = publish(made, 0, [(0, tuple_(0, END))], count=0)
    assert (answer["epoch"], answer["stream"]) == (0, made.stream)
    assert publish(made, 1, [], count=0)["epoch"] is None
    planned = made.plan(control=CONTROL)
    assert [(p.from_, p.next) for p in planned.planned] == [(0, 1)]
    assert given(made, 0) == [[(0, "q.op.0/0")]]
    made.reopen()
    assert publish(made, 2, [], count=3)["epoch"] == 1
    assert list(made.export.state.streams) == [answer["stream"]]


def test_batches_that_are_missing_are_reported_once_before_an_epoch_of_control_alone(
    made: Bench,
) -> None:
    publish(made, 0, [])
    publish(made, 3, [(0, tuple_(0))], count=0)
    publish(made, 4, [])
    first, second = made.export.state.streams.values()
    assert list(first.manifests) == [0]
    assert [m.gap for m in second.manifests.values()] == [2, 0]


def test_a_batch_that_comes_again_has_as_many_tuples(made: Bench) -> None:
    control = [(0, tuple_(0, END))]
    publish(made, 0, control)
    for _ in range(2):
        assert publish(made, 0, control)["published"] is False
        with pytest.raises(BatchDiffersError, match="1 control tuples and arrives now with 0"):
            publish(made, 0, [])
        made.reopen()


def test_a_batch_with_control_alone_is_fenced_like_any_other(made: Bench) -> None:
    publish(made, 0, [(0, tuple_(0, END))])
    body: dict[str, Any] = {"run": "r2", "batch": 0, "stages": [], "ddl": DDL, "schema": SCHEMA}
    with pytest.raises(PublisherInUseError):
        made.export.publisher.publish(query="other", control=[(0, tuple_(1))], **body)
    made.now += LEASE_SECONDS
    assert publish(made, 0, [(0, tuple_(1))], count=0, query="other")["epoch"] == 0
    assert len(made.export.state.streams) == 2


def test_tuples_that_cannot_be_in_the_epoch_leave_it_unpublished(made: Bench) -> None:
    with pytest.raises(ControlError, match="batch 0 of default/feed/0/trades, which has 4"):
        publish(made, 0, [(5, tuple_())])
    assert made.export.state.heads() == {made.stream: 0}
    assert publish(made, 0, [(4, tuple_())])["epoch"] == 0


def test_control_is_in_the_epoch_or_not_at_all(
    made: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.admit(0)
    stage = made.stage(0, rows(0, 4))
    body: dict[str, Any] = {"query": "q", "run": "r", "batch": 0, "stages": [stage], "ddl": DDL}
    control = [(2, tuple_())]
    with killed_in(monkeypatch, type(made.export.state.ledger), "publish"):
        made.export.publisher.publish(control=control, **body)
    made.reopen()
    assert made.export.publisher.publish(control=control, **body)["published"] is False
    made.plan(control=CONTROL)
    assert given(made, 0) == [[(2, "q.op.0/0")]]


def test_what_is_gone_is_left_out_with_its_tuples_alike_in_each_replay(made: Bench) -> None:
    for batch in range(3):
        publish(made, batch, [(1, tuple_(batch))])
    made.plan(control=CONTROL)
    made.limit(grace=1, max_bytes=1 << 20)
    made.now += 100
    made.export.state.ledger.streams[made.stream].remove(0)
    made.export.state.streams[made.stream].remove([0])
    ranges = {made.stream: (0, 3)}
    for _ in range(2):
        again = made.replan(ranges, control=CONTROL, skip_lost=True)
        assert again.control == {made.stream: [1, 2]}
        assert list(again.blocks[made.stream]) == [1, 2]
        made.reopen()


def test_under_drop_tuples_go_with_their_epochs_and_those_that_stay_keep_their_places(
    tmp_path: Path,
) -> None:
    with bench(tmp_path, segment_bytes=64) as made:
        made.limit(max_bytes=1)
        made.route("drop")
        publish(made, 0, [(1, tuple_(0))])
        made.plan(control=CONTROL)
        publish(made, 1, [(0, tuple_(1)), (4, tuple_(2, END))])
        publish(made, 2, [], count=3)
        publish(made, 3, [(2, tuple_(3)), (4, tuple_(4, END))])
        (planned,) = made.plan({made.stream: 1}, control=CONTROL).planned
        assert (planned.from_, planned.next, planned.dropped) == (3, 4, (2, 4 + 3))
        assert given(made, 3) == [[(2, "q.op.0/3"), (4, "q.op.0/4")]]
        with pytest.raises(NotPlannedError, match="epoch 1"):
            given(made, 1)


def test_rows_that_pass_a_filter_can_be_sent_with_their_numbers(made: Bench) -> None:
    publish(made, 0, [])
    publish(made, 1, [])
    for filter_, expected in (("n % 10 > 1", [2, 3]), (None, None)):
        made.plan(control=CONTROL, filter_=filter_, columns=["n"])
        read = ReadRequest(
            reader="reader",
            stream=made.stream,
            pieces=((0, 0, 1), (1, 0, 1)),
            filter=filter_,
            columns=("n",),
            numbered=True,
        )
        reader = BlockReader()
        rows = reader.schema_for(made.export.state.streams[made.stream], read)
        schema = reader.sent_schema(rows, read, made.export.state.streams[made.stream])
        for _ in range(2):
            for batch, _ in reader.read_batches(made.export.plans, read):
                assert batch.schema == schema
                found = batch.column("_seq").to_pylist() if expected else None
                assert found == expected
        plain = replace(read, numbered=False)
        names = [b.schema.names for b, _ in reader.read_batches(made.export.plans, plain)]
        assert names == [["n"], ["n"]]
