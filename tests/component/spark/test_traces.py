"""A trace goes on through queries of Spark, without code in their tasks."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.agents.collector import Span, collecting
from support.processes.waiting import until
from support.spark.feeds import DDL, Feed
from support.spark.session import SECONDS, Session


def test_one_trace_has_the_spans_of_three_jobs_on_spark(
    jobs: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = Feed(tmp_path / "feed")
    with collecting() as collector:
        for name, value in collector.environment().items():
            monkeypatch.setenv(name, value)
        source, middle, last = jobs.pe("feed"), jobs.pe("clean"), jobs.pe("alerts")
        jobs.publish(source, feed, "out", properties={"kind": "a"})
        taken = middle.subscribe("in", 'kind == "a"', start="earliest", schema=DDL)
        middle.publish(taken, "clean", properties={"kind": "b"}, checkpoint=tmp_path / "clean")
        _, sink = jobs.collect(
            last.subscribe("in", 'kind == "b"', start="earliest", schema=DDL), "in"
        )
        feed.release()
        sink.await_rows(1)
        feed.release()

        def chained() -> list[Span] | None:
            """Return the spans from the first to the last, once the last has ended."""
            known = {span.id: span for span in list(collector.spans)}
            for span in collector.named("deliver", service="alerts"):
                found = [span]
                while found[-1].parent in known:
                    found.append(known[found[-1].parent])
                if found[-1].service == "feed":
                    return found
            return None

        spans = until(chained, SECONDS, "a batch of the last job, back to the first")
    assert [(span.service, span.name) for span in spans] == [
        ("alerts", "deliver"),
        ("clean", "publish"),
        ("clean", "deliver"),
        ("feed", "publish"),
    ]
    assert len({span.trace for span in spans}) == 1
    read = {span.parent for span in collector.named("read")}
    assert {spans[0].id, spans[2].id} <= read
