"""One query, one run of it, each batch once."""

from __future__ import annotations

import pytest

from streambroker_core.ledger.publisher import (
    LEASE_SECONDS,
    MAX_EARLIER,
    MAX_HISTORY,
    MAX_RUNS,
    BatchDiffersError,
    FencedError,
    Publisher,
    PublisherBusy,
    PublisherInUseError,
)

DDL = "`n` bigint"


def admit(
    publisher: Publisher,
    *,
    query: str = "q",
    run: str = "r1",
    batch: int = 0,
    schema: str = DDL,
    now: float = 0.0,
    renewed: int | None = None,
) -> PublisherBusy | None:
    return publisher.admit(
        query=query, run=run, batch=batch, schema=schema, now=now, renewed=renewed
    )


def publish(
    publisher: Publisher,
    batch: int,
    *,
    query: str = "q",
    run: str = "r1",
    rows: int = 5,
    schema: str | None = DDL,
    now: float = 0.0,
) -> bool:
    """Publish as the agent does: admit where it can be, decide, then record what is durable."""
    if rows and publisher.query not in (None, query) and now >= publisher.lease_expires:
        admit(publisher, query=query, run=run, batch=batch, now=now)
    fresh = publisher.publish(query=query, run=run, batch=batch, rows=rows, schema=schema, now=now)
    if fresh:
        publisher.record_published(batch=batch, rows=rows, schema=schema)
    return fresh


def test_the_first_query_is_admitted() -> None:
    publisher = Publisher("e")
    assert admit(publisher) is None
    assert (publisher.query, publisher.schema) == ("q", DDL)


def test_the_next_batch_goes_on_in_the_same_stream() -> None:
    publisher = Publisher("e")
    admit(publisher)
    publish(publisher, 0)
    assert admit(publisher, batch=1) is None


def test_a_new_run_takes_over_at_once_and_fences_the_old_one() -> None:
    publisher = Publisher("e")
    admit(publisher, run="r1")
    assert admit(publisher, run="r2") is None
    with pytest.raises(FencedError, match="run r1"):
        admit(publisher, run="r1")
    with pytest.raises(FencedError):
        publish(publisher, 0, run="r1")
    assert publisher.last is None
    assert publish(publisher, 0, run="r2")


def test_a_publish_alone_fences_earlier_runs() -> None:
    publisher = Publisher("e")
    publish(publisher, 0, run="r1")
    publish(publisher, 1, run="r2")
    with pytest.raises(FencedError):
        publish(publisher, 2, run="r1")


def test_another_query_waits_while_the_lease_runs() -> None:
    publisher = Publisher("e")
    admit(publisher, now=100)
    verdict = admit(publisher, query="p", now=110)
    assert isinstance(verdict, PublisherBusy)
    assert (verdict.holder, verdict.lease_expires) == ("q", 100 + LEASE_SECONDS)


def test_another_query_is_refused_once_the_holder_renews_meanwhile() -> None:
    publisher = Publisher("e")
    admit(publisher)
    first = admit(publisher, query="p", now=1)
    assert isinstance(first, PublisherBusy)
    again = admit(publisher, query="p", now=2, renewed=first.renewed)
    assert again == first
    publisher.renew("q", 3)
    with pytest.raises(PublisherInUseError, match="in use by query q"):
        admit(publisher, query="p", now=4, renewed=first.renewed)
    assert publisher.query == "q"


def test_signs_of_life_of_other_queries_do_not_renew() -> None:
    publisher = Publisher("e")
    admit(publisher)
    publisher.renew("p", 20)
    publisher.end_lease("p", 20)
    assert publisher.lease_expires == LEASE_SECONDS


def test_another_query_takes_over_when_the_lease_has_ended() -> None:
    publisher = Publisher("e")
    admit(publisher)
    publish(publisher, 7)
    assert admit(publisher, query="p", now=LEASE_SECONDS) is None
    assert publisher.query == "p"
    assert publish(publisher, 0, query="p", now=LEASE_SECONDS)


def test_a_query_that_renounced_is_followed_at_once() -> None:
    publisher = Publisher("e")
    admit(publisher)
    publisher.end_lease("q", 1)
    assert admit(publisher, query="p", now=1) is None


def test_publish_of_another_query_is_refused_while_the_lease_runs() -> None:
    publisher = Publisher("e")
    publish(publisher, 0)
    with pytest.raises(PublisherInUseError):
        publish(publisher, 0, query="p", now=LEASE_SECONDS - 1)
    assert publish(publisher, 0, query="p", now=LEASE_SECONDS)


def test_a_batch_without_rows_takes_the_export_from_nobody() -> None:
    publisher = Publisher("e")
    publish(publisher, 0)
    assert not publish(publisher, 0, query="p", rows=0, schema=None, now=2 * LEASE_SECONDS)
    assert publisher.query == "q"
    assert publish(publisher, 1)


def test_a_batch_published_twice_is_published_already() -> None:
    publisher = Publisher("e")
    assert publish(publisher, 0)
    assert publish(publisher, 1)
    assert not publish(publisher, 1)
    assert not publish(publisher, 0)
    assert publish(publisher, 2)


def test_a_gap_in_batch_ids_is_published() -> None:
    publisher = Publisher("e")
    publish(publisher, 0)
    assert publish(publisher, 5)


def test_a_batch_that_comes_again_with_other_rows_differs() -> None:
    publisher = Publisher("e")
    publish(publisher, 0, rows=5)
    with pytest.raises(BatchDiffersError, match="5 rows") as caught:
        publish(publisher, 0, rows=6)
    assert caught.value.batch == 0


def test_a_batch_that_comes_again_with_another_schema_differs() -> None:
    publisher = Publisher("e")
    admit(publisher)
    publish(publisher, 0)
    with pytest.raises(BatchDiffersError, match="schema"):
        admit(publisher, run="r2", batch=0, schema="`n` int")
    with pytest.raises(BatchDiffersError):
        publish(publisher, 0, run="r2", schema="`n` int")


def test_an_earlier_batch_under_a_schema_changed_since_differs() -> None:
    publisher = Publisher("e")
    admit(publisher)
    publish(publisher, 0)
    admit(publisher, batch=1, schema="`n` int")
    publish(publisher, 1, schema="`n` int")
    with pytest.raises(BatchDiffersError):
        publish(publisher, 0, schema="`n` int")


def test_a_new_batch_may_have_another_schema() -> None:
    publisher = Publisher("e")
    admit(publisher)
    publish(publisher, 0)
    assert admit(publisher, batch=1, schema="`n` int") is None
    assert publisher.schema == "`n` int"


def test_a_batch_without_rows_is_recorded_and_has_no_schema_to_differ() -> None:
    publisher = Publisher("e")
    admit(publisher)
    assert publish(publisher, 0, rows=0, schema=None)
    assert not publish(publisher, 0, rows=0, schema=None)
    with pytest.raises(BatchDiffersError):
        publish(publisher, 0, rows=1)


def test_a_batch_older_than_what_is_remembered_is_published_already() -> None:
    publisher = Publisher("e")
    for batch in range(MAX_HISTORY + 1):
        publish(publisher, batch)
    assert 0 not in publisher.history
    assert not publish(publisher, 0, rows=77)


def test_a_query_that_comes_back_after_another_does_not_publish_its_last_batch_again() -> None:
    publisher = Publisher("e")
    publish(publisher, 41)
    publish(publisher, 0, query="p", now=LEASE_SECONDS)
    assert admit(publisher, run="r2", batch=41, now=2 * LEASE_SECONDS) is None
    assert not publish(publisher, 41, run="r2", now=2 * LEASE_SECONDS)
    assert publish(publisher, 42, run="r2", now=2 * LEASE_SECONDS)
    with pytest.raises(BatchDiffersError):
        publish(publisher, 41, run="r2", rows=9, now=2 * LEASE_SECONDS)


def test_only_so_many_earlier_queries_are_remembered() -> None:
    publisher = Publisher("e")
    for number in range(MAX_EARLIER + 2):
        publish(publisher, 3, query=f"q{number}", now=number * LEASE_SECONDS)
    assert len(publisher.earlier) == MAX_EARLIER
    assert "q0" not in publisher.earlier


def test_a_run_is_fenced_however_many_came_after_it_and_few_are_remembered() -> None:
    publisher = Publisher("e")
    for number in range(MAX_RUNS + 5):
        admit(publisher, run=f"r{number}")
    assert len(publisher.runs) == MAX_RUNS
    for number in (5, MAX_RUNS + 3):
        with pytest.raises(FencedError):
            admit(publisher, run=f"r{number}")
    assert admit(publisher, run=f"r{MAX_RUNS + 4}") is None
