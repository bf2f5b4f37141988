"""Events tell each transition once; equal ones are counted, too many are dropped."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from streambroker_core.board import Status
from streambroker_core.wire.reports.storage_status import StorageStatus
from streambroker_operator.kubernetes.client.http_api import Answer, ApiUnreachableError, object_at
from streambroker_operator.kubernetes.status.conditions import (
    NOTHING_PUBLISHED,
    Condition,
    PublishedStatus,
    StatusBody,
    desired_status,
    read_published,
    status_to_write,
)
from streambroker_operator.kubernetes.status.events import (
    BURST,
    MAX_NOTE,
    OBJECT_BURST,
    REFRESH_S,
    SERIES_S,
    EventAggregator,
    EventNote,
    EventWriter,
    route_cut_note,
    steering_overwritten_note,
    transition_notes,
)
from streambroker_operator.kubernetes.status.writer import StatusWrite
from support.core.resources import export_of, import_of, port
from support.kubernetes.fake_server import Call, FakeApi
from support.virtual.loop import run

RUNS = Condition(type="Programmed", status="True", reason="Programmed")
REFUSED = Status(accepted=False, reason="PortTaken", message="held by another")
MATCHED = Status(matches=1, peers=(port("alerts/trades"),))
NOTE = route_cut_note(
    replace(export_of(), name="feed-trades"), port("alerts/trades"), "FilterInvalid"
)


def status_of(
    status: Status,
    shown: PublishedStatus = NOTHING_PUBLISHED,
    storage: StorageStatus | None = None,
) -> StatusBody:
    desired = desired_status(export_of(), status, programmed=RUNS, published=shown, storage=storage)
    found = status_to_write(desired, shown, 0.0)
    assert found is not None
    return found


def reported(before: Status | None, after: Status) -> list[tuple[str, str]]:
    shown = NOTHING_PUBLISHED if before is None else read_published(status_of(before))
    status = status_of(after, shown)
    write = StatusWrite(
        kind="Export", namespace="jobs", name="a", uid="u", status=status, before=shown.since
    )
    return [(note.event_type, note.reason) for note in transition_notes(write)]


@pytest.mark.parametrize(
    ("before", "after", "notes"),
    [
        (None, Status(), []),
        (None, MATCHED, [("Normal", "Matched")]),
        (None, REFUSED, [("Warning", "PortTaken")]),
        (Status(), MATCHED, [("Normal", "Matched")]),
        (MATCHED, Status(), [("Normal", "NoMatch")]),
        (MATCHED, REFUSED, [("Warning", "PortTaken")]),
        (REFUSED, Status(), [("Normal", "Accepted")]),
        (REFUSED, MATCHED, [("Normal", "Accepted"), ("Normal", "Matched")]),
        (MATCHED, replace(MATCHED, matches=2), []),
        (MATCHED, replace(MATCHED, ring="a waits for b"), [("Warning", "WaitsInRing")]),
        (replace(MATCHED, ring="a waits for b"), replace(MATCHED, ring="a waits for c"), []),
        (replace(MATCHED, ring="a waits for b"), MATCHED, []),
    ],
)
def test_each_transition_is_reported_and_nothing_else(
    before: Status | None, after: Status, notes: list[tuple[str, str]]
) -> None:
    assert reported(before, after) == notes


def test_uploads_that_fail_are_a_warning_and_their_success_is_reported_after_it_alone() -> None:
    failing, shown, notes = StorageStatus(error="it fails."), NOTHING_PUBLISHED, []
    for storage in (StorageStatus(), failing, StorageStatus(seconds=600), StorageStatus()):
        status = status_of(MATCHED, shown, storage)
        write = StatusWrite(
            kind="Export", namespace="jobs", name="a", uid="u", status=status, before=shown.since
        )
        notes += [(note.event_type, note.text) for note in transition_notes(write)][-1:]
        shown = read_published(status)

    connected, warning, again = notes
    assert connected[1].startswith("It is connected")
    assert (warning[0], warning[1][:9]) == ("Warning", "it fails.")
    assert again == ("Normal", "Its bucket has it again.")


@pytest.mark.parametrize(
    ("reason", "events"),
    [("DataLoss", ["LogDamaged", "DataLoss"]), ("LogDamaged", ["LogDamaged"])],
)
def test_a_problem_with_a_condition_of_its_own_is_one_event(reason: str, events: list[str]) -> None:
    healthy = Condition(type="Healthy", status="False", reason=reason, message="It failed.")
    desired = desired_status(
        export_of(), Status(), programmed=RUNS, damaged="epoch 3 is missing.", healthy=healthy
    )
    status = status_to_write(desired, NOTHING_PUBLISHED, 0.0)
    assert status is not None
    write = StatusWrite(kind="Export", namespace="jobs", name="a", uid="u", status=status)
    notes = transition_notes(write)
    assert [note.reason for note in notes] == events
    assert {note.event_type for note in notes} == {"Warning"}


def test_the_event_of_a_connection_names_the_other_ends() -> None:
    peers = tuple(port(f"alerts{n}/trades") for n in range(5))
    status = status_of(Status(matches=5, peers=peers))
    write = StatusWrite(kind="Export", namespace="jobs", name="a", uid="u", status=status)

    (note,) = transition_notes(write)

    assert note.text == (
        "It is connected to default/alerts0/0/trades, default/alerts1/0/trades,"
        " default/alerts2/0/trades and 2 more."
    )


def test_a_cut_route_names_its_other_end_and_the_reason() -> None:
    assert NOTE.text == "The route to default/alerts/0/trades is cut: FilterInvalid."
    other = route_cut_note(import_of(), port("feed/trades"), "ExportRemoved")
    assert other.text.startswith("The route from default/feed/0/trades")


def test_an_overwritten_field_is_a_warning_that_names_who_did_it() -> None:
    note = steering_overwritten_note(import_of(), "filter", "kubectl-client-side-apply")
    assert (note.event_type, note.reason) == ("Warning", "SteeringOverwritten")
    assert "kubectl-client-side-apply" in note.text


def test_the_same_again_is_counted_in_its_series() -> None:
    log = EventAggregator("broker-0")
    first = log.add(NOTE, 0.0, 1000.0)
    second = log.add(NOTE, 1.0, 1001.0)
    quiet = [log.add(NOTE, 2.0 + n, 1002.0 + n) for n in range(10)]
    later = log.add(NOTE, 40.0, 1040.0)

    assert first is not None
    assert first.new
    assert second is not None
    assert not second.new
    assert second.name == first.name
    assert object_at(second.body, "series")["count"] == 2
    assert quiet == [None] * 10
    assert later is not None
    assert object_at(later.body, "series")["count"] == 13


def test_the_same_much_later_is_another_event() -> None:
    log = EventAggregator("broker-0")
    first = log.add(NOTE, 0.0, 1000.0)
    again = log.add(NOTE, SERIES_S, 1000.0 + SERIES_S)

    assert first is not None
    assert again is not None
    assert again.new
    assert again.name != first.name


def different(number: int, uid: str = "u") -> EventNote:
    return replace(NOTE, uid=uid, text=f"number {number}", series=f"number {number}")


def test_one_restless_resource_does_not_use_up_what_all_may_write() -> None:
    log = EventAggregator("broker-0")
    posts = [log.add(different(n), 0.0, 0.0) for n in range(OBJECT_BURST + 20)]

    assert sum(post is not None for post in posts) == OBJECT_BURST
    assert log.dropped == 20
    assert log.add(different(0, "other"), 0.0, 0.0) is not None


def test_all_together_write_no_more_than_a_burst() -> None:
    log = EventAggregator("broker-0")
    posts = [log.add(different(0, str(n)), 0.0, 0.0) for n in range(2 * BURST)]

    assert sum(post is not None for post in posts) == BURST


def test_a_repetition_beyond_what_all_may_write_costs_its_resource_nothing() -> None:
    log, busy = EventAggregator("broker-0"), REFRESH_S
    log.add(NOTE, 0.0, 0.0)
    for n in range(BURST):
        log.add(different(0, str(n)), busy, busy)

    assert [log.add(NOTE, busy, busy) for _ in range(2 * OBJECT_BURST)] == [None] * 2 * OBJECT_BURST
    assert log.add(different(0, NOTE.uid), busy + 1, busy + 1) is not None


def test_of_too_many_at_once_one_event_says_how_many_there_were() -> None:
    log = EventAggregator("broker-0")
    connected = replace(NOTE, reason="Matched", text="It is connected to a.", series="")
    notes = [replace(connected, uid=str(n), name=f"x{n}") for n in range(BURST + 500)]
    posts = [log.add(note, 0.0, 0.0) for note in notes]
    other = log.add(replace(connected, namespace="other", uid="y"), 0.0, 0.0)

    gathered = log.flush_aggregates(0.0)

    assert [sum(post is not None for post in posts), other] == [BURST, None]
    assert [post.namespace for post in gathered] == [NOTE.namespace, "other"]
    assert object_at(gathered[0].body, "regarding")["name"] == f"x{BURST}"
    assert gathered[0].body["note"] == (
        "It is connected to a. The same happened to 499 more Exports of this namespace."
    )
    assert gathered[1].body["note"] == "It is connected to a."
    assert log.flush_aggregates(0.0) == []
    assert log.dropped == 0


def test_a_transition_that_comes_again_with_other_words_is_the_same_event() -> None:
    log = EventAggregator("broker-0")
    connected = replace(NOTE, reason="Matched", text="It is connected to a.", series="")
    first = log.add(connected, 0.0, 0.0)
    again = log.add(replace(connected, text="It is connected to b."), 1.0, 1.0)

    assert first is not None
    assert again is not None
    assert (again.new, again.name) == (False, first.name)


def test_a_long_note_is_cut_between_characters() -> None:
    post = EventAggregator("broker-0").add(replace(NOTE, text="ä" * 2000), 0.0, 0.0)

    assert post is not None
    assert len(str(post.body["note"]).encode()) <= MAX_NOTE


def test_the_name_of_an_event_can_be_one() -> None:
    post = EventAggregator("broker-0").add(replace(NOTE, name="a" * 199 + "-" + "b" * 50), 0.0, 0.0)

    assert post is not None
    assert "-." not in post.name
    assert len(post.name) <= 253


@pytest.mark.parametrize(
    ("failure", "counts"),
    [
        (Answer(status=403), (0, 1, 0)),
        (Answer(status=503), (0, 0, 1)),
        (ApiUnreachableError("away"), (0, 0, 1)),
    ],
)
def test_what_cannot_be_written_is_forgotten(
    failure: Answer | Exception, counts: tuple[int, int, int]
) -> None:
    def handle(call: Call) -> Answer:
        if isinstance(failure, Exception):
            raise failure
        return failure

    api = FakeApi(handle)
    writer = EventWriter(api, "broker-0")

    async def main() -> None:
        writer.record(NOTE, 0.0)
        await writer.flush()
        await asyncio.sleep(100)

    run(main(), writer.run())

    assert len(api.calls) == 1
    assert tuple(writer.writes[name] for name in ("done", "refused", "failed")) == counts


def test_events_that_wait_have_a_limit() -> None:
    writer = EventWriter(FakeApi(lambda call: Answer(status=201)), "broker-0")

    async def main() -> None:
        for n in range(5000):
            writer.record(different(n, str(n)), 0.0)
            await asyncio.sleep(0.1)

    run(main())

    assert writer.writes["failed"] == 4000
