"""An export that waits for its readers, and the waits that would never end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pe_agent.agent.exports.backpressure import SELF_WAIT_SECONDS, SelfWaitError
from pe_agent.agent.exports.stream.block_reader import ReadRequest
from pe_agent.transport.rows import stage_writer
from pe_agent.transport.rows.stage_writer import describe_wait
from streambroker_core.ledger.plan import PlanRequest
from streambroker_core.ledger.wait_chains import RING_SECONDS
from streambroker_core.wire.agent_rpc.publisher import Admitted, PublisherAdmit, Waiting
from support.agents.exports import Bench, bench, plan_one, rows

OWN = "default/feed/0/back"
OTHER = "default/alerts/0/trades"


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Bench]:
    """An export that is full as soon as somebody has an epoch to read."""
    with bench(tmp_path) as one:
        one.limit(max_bytes=10)
        one.export.set_routes({OWN: "wait", OTHER: "wait"})
        yield one


def plan(made: Bench, reader: str, import_: str, next_: int | None = None) -> None:
    """Acknowledge all below ``next_`` and plan what follows."""
    ask = PlanRequest(
        reader=reader,
        import_=import_,
        policy="wait",
        start="earliest",
        positions={} if next_ is None else {made.stream: next_},
        has_opened=next_ is not None,
        lease=1000,
    )
    plan_one(made.export, ask, filter_=None, columns=None)


def read(made: Bench, reader: str, query: str, epoch: int = 0) -> None:
    """Read an epoch as a task of a query."""
    read = ReadRequest(
        reader=reader, stream=made.stream, pieces=(), filter=None, columns=None, query=query
    )
    found = made.export.plans.find_readable(read, epoch)
    assert found is not None


def test_a_wait_is_described_by_the_limit_and_the_readers(made: Bench) -> None:
    plan(made, "other", OTHER)
    made.publish(0, rows(0, 9))
    waiting = made.admit(1)["waiting"]
    text = describe_wait("out", waiting)
    assert text.startswith(f"export out waits: it keeps {waiting['held']:,} bytes for its readers")
    assert "(buffer.maxBytes) is 10. Not read yet by default/alerts/0/trades (" in text
    assert "{" not in text


def test_who_reads_what_it_publishes_is_refused_at_once_and_by_name(made: Bench) -> None:
    plan(made, "other", OTHER)
    plan(made, "own", OWN)
    made.publish(0, rows(0, 9))
    plan(made, "own", OWN, 0)
    plan(made, "other", OTHER, 0)
    assert "waiting" in made.admit(1)
    read(made, "other", "q2")
    assert "waiting" in made.admit(1)
    read(made, "own", "q")
    with pytest.raises(SelfWaitError, match=OWN):
        made.admit(1)


def test_which_query_reads_is_known_after_a_restart(made: Bench) -> None:
    plan(made, "own", OWN)
    made.publish(0, rows(0, 9))
    plan(made, "own", OWN, 0)
    read(made, "own", "q")
    plan(made, "own", OWN, 0)
    made.reopen()
    made.limit(max_bytes=10)
    with pytest.raises(SelfWaitError):
        made.admit(1)


def test_readers_of_the_own_job_that_stand_still_end_the_wait(made: Bench) -> None:
    plan(made, "own", OWN)
    made.publish(0, rows(0, 9))
    made.now += 2 * SELF_WAIT_SECONDS  # nobody waits yet
    for _ in range(int(SELF_WAIT_SECONDS)):
        assert "waiting" in made.admit(1)
        made.now += 1
    assert "waiting" in made.admit(1)
    made.now += 0.5
    with pytest.raises(SelfWaitError, match=f"{OWN} of the same job"):
        made.admit(1)


def test_a_reader_of_the_own_job_that_moves_is_waited_for(made: Bench) -> None:
    plan(made, "own", OWN)
    made.publish(0, rows(0, 9))
    made.admit(1)
    made.limit(max_bytes=10_000)
    made.publish(1, rows(9, 9))
    made.limit(max_bytes=10)
    made.admit(2)
    for _ in range(50):
        made.now += 1
        made.admit(2)
    plan(made, "own", OWN, 1)
    for _ in range(int(SELF_WAIT_SECONDS)):
        assert "waiting" in made.admit(2)
        made.now += 1
    made.now += 1
    with pytest.raises(SelfWaitError):
        made.admit(2)


def test_a_reader_of_another_job_is_waited_for_without_end(made: Bench) -> None:
    plan(made, "own", OWN)
    plan(made, "other", OTHER)
    made.publish(0, rows(0, 9))
    for _ in range(3 * int(SELF_WAIT_SECONDS)):
        assert "waiting" in made.admit(1)
        made.now += 1


def test_a_wait_that_nobody_asks_about_any_more_is_over(made: Bench) -> None:
    plan(made, "own", OWN)
    made.publish(0, rows(0, 9))
    began = made.now
    assert made.admit(1)["waiting"]["since"] == began
    made.now += 1.5
    assert [h.reader for h in made.export.backpressure.blocking_readers()] == ["own"]
    made.now += 1.5
    assert made.admit(1)["waiting"]["since"] == began
    made.now += SELF_WAIT_SECONDS
    assert made.admit(1)["waiting"]["since"] == made.now
    plan(made, "own", OWN, 1)
    assert made.admit(1) == {"admitted": True}
    assert made.export.backpressure.blocking_readers() == []


def test_an_export_waits_for_as_long_as_its_limit_says_and_then_the_slowest_drop(
    made: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    made.limit(max_bytes=10_000)
    plan(made, "other", OTHER)
    for batch in range(2):
        made.publish(batch, rows(9 * batch, 9))
    made.limit(max_bytes=10, wait_limit=30)
    for _ in range(30):
        assert "waiting" in made.admit(2)
        made.now += 1
    assert "waiting" not in made.admit(2)
    assert OTHER in caplog.text
    assert made.export.backpressure.blocking_readers() == []
    made.commit(2, made.stage(2, rows(18, 9)))
    figures = made.export.status()["readers"]["other"]
    assert (figures["policy"], figures["turned"], figures["turns"]) == ("wait", True, 1)
    made.reopen()
    made.limit(max_bytes=10, wait_limit=30)
    assert made.export.state.ledger.readers["other"].demoted
    assert made.admit(3) == {"admitted": True}


def test_a_wait_that_ends_in_time_turns_nobody(made: Bench) -> None:
    made.limit(max_bytes=10, wait_limit=30)
    plan(made, "other", OTHER)
    for batch in range(4):
        made.publish(batch, rows(9 * batch, 9))
        for _ in range(29):
            assert "waiting" in made.admit(batch + 1)
            made.now += 1
        plan(made, "other", OTHER, batch + 1)
    assert made.export.status()["readers"]["other"]["turns"] == 0


def test_a_limit_holds_for_a_query_that_waits_at_its_gate_as_well(made: Bench) -> None:
    made.limit(max_bytes=10, wait_limit=30)
    plan(made, "other", OTHER)
    made.publish(0, rows(0, 9))
    for _ in range(30):
        assert [h.import_ for h in made.export.backpressure.blocking_readers()] == [OTHER]
        made.now += 1
    assert made.export.backpressure.blocking_readers() == []
    assert made.admit(1) == {"admitted": True}


# ---- rings over several jobs -------------------------------------------------------------------

BACK = "default/alerts/0/back"


def ask_for(made: Bench, seconds: int, chain: list[str]) -> None:
    """Ask for admission for a while, as the importer's agent reports for what its query waits."""
    for _ in range(seconds):
        made.export.backpressure.note_wait_chains(OTHER, {"other": chain})
        assert "waiting" in made.admit(1)
        made.now += 1


def test_a_wait_that_leads_back_over_another_job_is_refused_and_names_the_way(made: Bench) -> None:
    plan(made, "other", OTHER)
    made.publish(0, rows(0, 9))
    ask_for(made, 30, [BACK])
    ask_for(made, int(RING_SECONDS), [BACK, made.export.key])
    with pytest.raises(SelfWaitError, match=f"{OTHER} has not .* waits for {BACK}, which waits"):
        made.admit(1)
    made.export.backpressure.note_wait_chains(OTHER, {"other": []})
    assert "waiting" in made.admit(1)


def test_of_a_reader_only_the_agent_of_its_import_reports(made: Bench) -> None:
    plan(made, "other", OTHER)
    made.publish(0, rows(0, 9))
    for _ in range(int(2 * RING_SECONDS)):
        made.export.backpressure.note_wait_chains(
            OWN, {"other": [made.export.key], "nobody": [made.export.key]}
        )
        assert "waiting" in made.admit(1)
        made.now += 1


def test_an_export_that_gives_up_after_a_time_is_in_no_chain(made: Bench) -> None:
    plan(made, "other", OTHER)
    made.publish(0, rows(0, 9))
    assert made.export.backpressure.wait_chain("q", gated=False) == [], "nobody has asked yet"
    made.admit(1)
    assert made.export.backpressure.wait_chain("q", gated=False) == [made.export.key]
    assert made.export.backpressure.wait_chain("another", gated=False) == []
    assert made.export.backpressure.wait_chain("another", gated=True) == [made.export.key]
    made.export.backpressure.note_wait_chains(OTHER, {"other": [BACK]})
    assert made.export.backpressure.wait_chain("q", gated=False) == [made.export.key, BACK]
    made.now += 2 * RING_SECONDS
    assert made.export.backpressure.wait_chain("q", gated=False) == []
    made.limit(max_bytes=10, wait_limit=60.0)
    assert made.export.backpressure.wait_chain("q", gated=True) == []


def test_a_wait_is_logged_once_and_its_end_too(
    made: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plan(made, "other", OTHER)
    made.publish(0, rows(0, 9))
    waits = Waiting(waiting=made.admit(1)["waiting"])
    answers = iter([waits, waits, Admitted(admitted=True)])
    monkeypatch.setattr(stage_writer, "send", lambda *_: next(answers))
    request = PublisherAdmit(export="out", query="q", run="r", batch=1, ddl="", renewed=None)

    stage_writer.StageWriter(lambda: None, request, 1.0).admit()  # type: ignore[arg-type, return-value]

    assert [one.split(":")[0] for one in caplog.messages] == [
        "export out waits",
        "export out waited 0 s",
    ]
