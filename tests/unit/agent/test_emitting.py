"""Control tuples from outside: an identity at once, an epoch at once, each once, over crashes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pe_agent.agent.exports import control_sender as emitting
from pe_agent.agent.exports.control_sender import (
    ControlSender,
    ExportFullError,
    NotEmittedError,
)
from pe_agent.agent.exports.epoch_writer import EpochWriter
from pe_agent.agent.exports.export_state import ExportState
from pe_agent.agent.exports.stream.block_reader import BlockReader, ReadRequest
from pe_agent.agent.exports.stream.export_stream import ExportStream
from pe_agent.agent.state.control_log import RequestDiffersError
from pe_agent.agent.state.store import Store
from pe_agent.log.errors import LogError
from pe_agent.log.log import StreamLog
from streambroker_core.control.runtime.control_rows import from_batch
from streambroker_core.control.tuples import ControlLimitError
from streambroker_core.errors import ManifestError
from support.agents.exports import Bench, bench, killed_in, rows

CONTROL = frozenset[str]()
KEPT = 10


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path) as one:
        one.route()
        yield one


def emit(made: Bench, request: str = "a", **what: Any) -> dict[str, Any]:
    return made.export.control.emit(request, {"type": "set", "payload": request, **what})


def all_given(made: Bench) -> list[tuple[int, str]]:
    """Return epoch and payload of all tuples that a reader gets that begins now, in order."""
    found: list[tuple[int, str]] = []
    positions: dict[str, int] | None = None
    for _ in range(50):
        answer = made.plan(positions, reader="all", control=CONTROL)
        taken = [p for p in answer.planned if p.from_ < p.next]
        if not taken:
            return found
        for plan in taken:
            pieces = tuple((n, 0, 1) for n in range(plan.from_, plan.next))
            read = ReadRequest(
                reader="all", stream=plan.stream, pieces=pieces, filter=None, columns=None
            )
            for batch, notified in BlockReader().read_control(made.export.plans, read):
                found += [(notified["epoch"], one.payload) for _, one in from_batch(batch)]
        positions = {**(positions or {}), **{p.stream: p.next for p in taken}}
    raise AssertionError("a plan that does not end")


def test_a_tuple_has_an_identity_and_an_epoch_at_once(made: Bench) -> None:
    made.publish(0, rows(0, 2))
    notified = made.notified
    first, second = emit(made, "a"), emit(made, "b", delivery="END_WINDOW")
    log = first["id"].rpartition("/")[0]
    assert [first["id"], second["id"]] == [f"{log}/0", f"{log}/1"]
    assert [first["epoch"], second["epoch"]] == [1, 2]
    assert made.notified > notified
    assert all_given(made) == [(1, "a"), (2, "b")]


def test_before_the_first_batch_tuples_wait_for_its_epoch(made: Bench) -> None:
    assert emit(made, "a")["epoch"] is None
    made.reopen()
    assert emit(made, "b")["epoch"] is None
    made.publish(0, rows(0, 2))
    assert all_given(made) == [(1, "a"), (1, "b")]
    assert made.export.control.emission_status(1)["epoch"] == 1


def test_a_repeated_request_emits_nothing_more(made: Bench) -> None:
    made.publish(0, rows(0, 2))
    first = emit(made, "a")
    made.reopen()
    assert emit(made, "a") == first
    assert made.export.state.heads() == {made.stream: 2}
    with pytest.raises(RequestDiffersError, match="request a has emitted another"):
        made.export.control.emit("a", {"type": "set", "payload": "other"})


def test_numbers_go_on_over_restarts_and_forgotten_tuples(
    made: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emitting, "REMEMBERED_TUPLES", KEPT)
    made.publish(0, rows(0, 2))
    made.limit(max_bytes=1)
    made.export.set_routes({})
    log = emit(made, "0")["id"].rpartition("/")[0]
    for seq in range(1, KEPT + 5):
        emit(made, str(seq))
    made.reopen()
    assert emit(made, "last")["id"] == f"{log}/{KEPT + 5}"
    with pytest.raises(NotEmittedError, match="number 3;"):
        made.export.control.emission_status(3)


@pytest.mark.parametrize(
    ("where", "name"),
    [
        (ControlSender, "emit_waiting"),
        (ExportStream, "append_epoch"),
        (StreamLog, "sync"),
        (EpochWriter, "append"),
        (EpochWriter, "add"),
        (ControlSender, "_record_epoch"),
        (ExportState, "sweep"),
    ],
)
def test_a_kill_at_any_step_emits_the_tuple_once(
    made: Bench, monkeypatch: pytest.MonkeyPatch, where: object, name: str
) -> None:
    made.publish(0, rows(0, 2))
    with killed_in(monkeypatch, where, name):
        emit(made, "a")
    made.reopen()
    assert all_given(made) == [(1, "a")]
    assert emit(made, "a")["epoch"] == 1
    emit(made, "b")
    made.reopen()
    assert all_given(made) == [(1, "a"), (2, "b")]


def test_a_kill_before_the_store_has_it_emits_nothing(
    made: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.publish(0, rows(0, 2))
    with killed_in(monkeypatch, Store, "transaction"):
        emit(made, "a")
    made.reopen()
    assert all_given(made) == []
    assert emit(made, "a")["seq"] == 0


def test_an_epoch_that_could_not_be_written_comes_with_the_next_try(
    made: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.publish(0, rows(0, 2))

    def full(*_: Any) -> None:
        raise LogError("full")

    with monkeypatch.context() as patched:
        patched.setattr(ExportStream, "append_epoch", full)
        with pytest.raises(LogError):
            emit(made, "a")
    made.publish(1, rows(2, 2))
    assert all_given(made) == [(2, "a")]


@pytest.mark.parametrize(
    ("part", "name"), [("epochs", "record_position"), ("control", "_record_epoch")]
)
def test_a_failing_state_file_after_the_manifest_does_not_emit_twice(
    made: Bench, monkeypatch: pytest.MonkeyPatch, part: str, name: str
) -> None:
    made.publish(0, rows(0, 2))

    def full(*_: Any) -> None:
        raise OSError("database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(getattr(made.export, part), name, full)
        with pytest.raises(OSError, match="disk is full"):
            emit(made, "a")
    assert emit(made, "a")["epoch"] == 1
    emit(made, "b")
    assert all_given(made) == [(1, "a"), (2, "b")]
    made.reopen()
    assert all_given(made) == [(1, "a"), (2, "b")]


def test_batches_and_tuples_take_turns_without_confusing_the_publisher(made: Bench) -> None:
    made.publish(0, rows(0, 2))
    emit(made, "a")
    made.reopen()
    assert made.publish(0, rows(0, 2))["published"] is False
    made.publish(1, rows(2, 2))
    emit(made, "b")
    made.publish(2, rows(4, 2))
    assert all_given(made) == [(1, "a"), (3, "b")]
    answer = made.plan()
    assert [(p.from_, p.next) for p in answer.planned] == [(0, 5)]
    assert answer.last == ("q", 2)
    assert made.export.epochs.published_rows == 6


def test_rows_alone_are_given_to_readers_without_control(made: Bench) -> None:
    made.publish(0, rows(0, 2))
    emit(made, "a")
    answer = made.plan()
    assert [(p.from_, p.next) for p in answer.planned] == [(0, 1)]
    assert answer.rowless_streams == ((made.stream, 2),)
    assert made.plan({made.stream: 1}).bytes == 0


def test_who_has_applied_a_tuple_is_informed(made: Bench) -> None:
    made.publish(0, rows(0, 2))
    made.plan(reader="rows")
    assert emit(made, "a")["applied"] is False
    made.plan(reader="one", control=CONTROL)
    made.plan(reader="two", control=CONTROL)
    notified = made.export.control.emission_status(0)
    assert [(r["reader"], r["applied"]) for r in notified["readers"]] == [
        ("one", False),
        ("two", False),
    ]
    made.plan({made.stream: 1}, reader="one", control=CONTROL)
    made.plan({made.stream: 1}, reader="two", control=CONTROL)
    assert not any(r["applied"] for r in made.export.control.emission_status(0)["readers"])
    made.plan({made.stream: 2}, reader="one", control=CONTROL)
    assert made.export.control.emission_status(0)["applied"] is False
    made.plan({made.stream: 2}, reader="two", control=CONTROL)
    assert made.export.control.emission_status(0)["applied"] is True
    made.reopen()
    assert made.export.control.emission_status(0)["applied"] is True


def test_a_reader_that_is_away_for_longer_than_grace_does_not_count(made: Bench) -> None:
    made.limit(grace=10)
    made.publish(0, rows(0, 2))
    made.plan(reader="one", control=CONTROL)
    made.plan(reader="gone", control=CONTROL)
    emit(made, "a")
    made.now += 20
    made.plan({made.stream: 2}, reader="one", control=CONTROL)
    notified = made.export.control.emission_status(0)
    assert ([r["reader"] for r in notified["readers"]], notified["applied"]) == (["one"], True)


def test_an_export_that_has_ended_has_ended_with_the_tuple(made: Bench) -> None:
    made.publish(0, rows(0, 2))
    made.export.publisher.finish(query="q", run="r")
    emit(made, "a")
    assert made.export.state.ended()
    made.reopen()
    assert made.export.state.ended()
    made.publish(1, rows(2, 2))
    assert not made.export.state.ended()


def test_a_kill_between_the_end_and_the_epoch_leaves_it_ended(
    made: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.publish(0, rows(0, 2))
    made.export.publisher.finish(query="q", run="r")
    with killed_in(monkeypatch, ExportStream, "append_epoch"):
        emit(made, "a")
    made.reopen()
    assert (made.export.state.ended(), all_given(made)) == (True, [(1, "a")])


def test_a_full_log_takes_no_tuples_until_its_readers_go_on(made: Bench) -> None:
    made.publish(0, rows(0, 20))
    made.plan(limit={})
    made.limit(max_bytes=1)
    with pytest.raises(ExportFullError, match="default/alerts/0/trades"):
        emit(made, "a")
    made.plan({made.stream: 1})
    assert emit(made, "a")["epoch"] == 1


def test_what_cannot_be_emitted_is_refused_and_changes_nothing(made: Bench) -> None:
    made.publish(0, rows(0, 2))
    with pytest.raises(ManifestError, match="delivery"):
        emit(made, "a", delivery="LATER")
    with pytest.raises(ControlLimitError, match="1048576"):
        emit(made, "a", payload="x" * (1 << 20))
    with pytest.raises(RequestDiffersError, match="1 to 128"):
        emit(made, "")
    assert made.export.state.heads() == {made.stream: 1}
    assert emit(made, "a")["seq"] == 0


def test_tuples_that_wait_are_limited_like_those_of_an_epoch(
    made: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streambroker_core.control.tuples.epoch_control.MAX_TUPLES", 2)
    emit(made, "a")
    emit(made, "b")
    with pytest.raises(ControlLimitError, match="3 new control tuples"):
        emit(made, "c")
    made.publish(0, rows(0, 1))
    assert all_given(made) == [(1, "a"), (1, "b")]
