"""One query, one run of it, each batch once."""

from __future__ import annotations

import pytest

from streambroker_core.publishing import (
    EARLIER,
    HISTORY,
    LEASE,
    Admitted,
    BatchDiffersError,
    FencedError,
    Occupied,
    Publisher,
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
) -> Admitted | Occupied:
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
    if rows and publisher.query not in (None, query) and now >= publisher.until:
        admit(publisher, query=query, run=run, batch=batch, now=now)
    fresh = publisher.publish(query=query, run=run, batch=batch, rows=rows, schema=schema, now=now)
    if fresh:
        publisher.published(batch=batch, rows=rows, schema=schema)
    return fresh


def test_the_first_query_opens_a_stream() -> None:
    assert admit(Publisher("e")) == Admitted(successor=True, why="first use")


def test_the_next_batch_goes_on_in_the_same_stream() -> None:
    publisher = Publisher("e")
    admit(publisher)
    publish(publisher, 0)
    assert admit(publisher, batch=1) == Admitted(successor=False)


def test_a_new_run_takes_over_at_once_and_fences_the_old_one() -> None:
    publisher = Publisher("e")
    admit(publisher, run="r1")
    assert admit(publisher, run="r2") == Admitted(successor=False)
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
    assert isinstance(verdict, Occupied)
    assert (verdict.holder, verdict.until) == ("q", 100 + LEASE)


def test_another_query_is_refused_once_the_holder_renews_meanwhile() -> None:
    publisher = Publisher("e")
    admit(publisher)
    first = admit(publisher, query="p", now=1)
    assert isinstance(first, Occupied)
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
    publisher.renounce("p", 20)
    assert publisher.until == LEASE


def test_another_query_takes_over_when_the_lease_has_ended_and_opens_a_successor() -> None:
    publisher = Publisher("e")
    admit(publisher)
    publish(publisher, 7)
    verdict = admit(publisher, query="p", now=LEASE)
    assert verdict == Admitted(successor=True, why="another query publishes")
    assert publish(publisher, 0, query="p", now=LEASE)


def test_a_query_that_renounced_is_followed_at_once() -> None:
    publisher = Publisher("e")
    admit(publisher)
    publisher.renounce("q", 1)
    assert isinstance(admit(publisher, query="p", now=1), Admitted)


def test_publish_of_another_query_is_refused_while_the_lease_runs() -> None:
    publisher = Publisher("e")
    publish(publisher, 0)
    with pytest.raises(PublisherInUseError):
        publish(publisher, 0, query="p", now=LEASE - 1)
    assert publish(publisher, 0, query="p", now=LEASE)


def test_a_batch_without_rows_takes_the_export_from_nobody() -> None:
    publisher = Publisher("e")
    publish(publisher, 0)
    assert not publish(publisher, 0, query="p", rows=0, schema=None, now=2 * LEASE)
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


def test_a_changed_schema_of_a_new_batch_opens_a_successor() -> None:
    publisher = Publisher("e")
    admit(publisher)
    publish(publisher, 0)
    verdict = admit(publisher, batch=1, schema="`n` int")
    assert isinstance(verdict, Admitted)
    assert verdict.successor
    assert "`n` int" in verdict.why
    assert admit(publisher, batch=1, schema="`n` int") == Admitted(successor=False)


def test_a_batch_without_rows_is_recorded_and_has_no_schema_to_differ() -> None:
    publisher = Publisher("e")
    admit(publisher)
    assert publish(publisher, 0, rows=0, schema=None)
    assert not publish(publisher, 0, rows=0, schema=None)
    with pytest.raises(BatchDiffersError):
        publish(publisher, 0, rows=1)


def test_a_batch_older_than_what_is_remembered_is_published_already() -> None:
    publisher = Publisher("e")
    for batch in range(HISTORY + 1):
        publish(publisher, batch)
    assert 0 not in publisher.history
    assert not publish(publisher, 0, rows=77)


def test_a_query_that_comes_back_after_another_does_not_publish_its_last_batch_again() -> None:
    publisher = Publisher("e")
    publish(publisher, 41)
    publish(publisher, 0, query="p", now=LEASE)
    assert isinstance(admit(publisher, run="r2", batch=41, now=2 * LEASE), Admitted)
    assert not publish(publisher, 41, run="r2", now=2 * LEASE)
    assert publish(publisher, 42, run="r2", now=2 * LEASE)
    with pytest.raises(BatchDiffersError):
        publish(publisher, 41, run="r2", rows=9, now=2 * LEASE)


def test_only_so_many_earlier_queries_are_remembered() -> None:
    publisher = Publisher("e")
    for number in range(EARLIER + 2):
        publish(publisher, 3, query=f"q{number}", now=number * LEASE)
    assert len(publisher.earlier) == EARLIER
    assert "q0" not in publisher.earlier
