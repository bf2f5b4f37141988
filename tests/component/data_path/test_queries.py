"""What the agent and a program know of a query: what it reads, and why it failed."""

from __future__ import annotations

from pathlib import Path

import pytest

import streambroker as sb
from support.processes.waiting import until
from support.spark.feeds import DDL, Feed
from support.spark.session import SECONDS, Session

pytestmark = pytest.mark.both_kinds


def test_the_agent_knows_what_a_query_reads_and_where_it_publishes(
    jobs: Session, tmp_path: Path
) -> None:
    relay = jobs.pe("relay")
    frame = relay.subscribe("in", 'kind == "trade"', schema=DDL)
    other = jobs.files(Feed(tmp_path / "other"))
    for name, source in (("pure", frame), ("mixed", frame.union(other))):
        query = relay.publish(source, name, properties={}, checkpoint=tmp_path / name)
        jobs.queries.append(query)
        found = relay.status()["imports"]["queries"][str(query.id)]
        assert found["exports"] == [name]
        assert found["foreign"] is (name == "mixed")
        assert found["imports"] == 1


def test_the_error_of_a_failed_query_begins_with_its_cause(jobs: Session, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "feed")
    pe = jobs.pe("feed")
    frame = jobs.files(feed).selectExpr("CAST(raise_error('too cheap') AS bigint) AS line")
    query = pe.publish(frame, "out", properties={}, checkpoint=tmp_path / "ck")
    jobs.queries.append(query)
    feed.release()
    until(lambda: not query.isActive, SECONDS, "the query has failed")

    failure = sb.cause(query)

    assert failure is not None
    assert "too cheap" in failure.message
    assert str(query.exception()).startswith(str(failure))
