"""Rules on the rows of an import, which come packed, with control tuples of the exporter among."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame

from streambroker.operators import OperatorOptions
from support.patterns.spark import Given
from support.processes.waiting import until
from support.spark.feeds import DDL, Feed
from support.spark.session import SECONDS, Session


def rule(name: str, version: int, *lines: int) -> dict[str, Any]:
    """Return the rule of lines that follow each other, counted anew after each 33."""
    stages: list[dict[str, Any]] = [
        {"name": f"a{line}", "where": f"line % 33 == {line}", "join": "followed_by"}
        for line in lines
    ]
    del stages[0]["join"]
    return {"id": name, "version": version, "pattern": {"stages": stages}}


@pytest.mark.slow
@pytest.mark.parametrize(
    "selectors",
    [
        pytest.param([], id="packed as read"),
        pytest.param([["price"]], id="copied", marks=pytest.mark.long),
    ],
)
def test_rules_see_the_rows_of_an_import(jobs: Session, selectors: list[list[str]]) -> None:
    exporter, importer = jobs.pe("feed"), jobs.pe("alerts")
    feed = Feed(jobs.folder / "in", rows_per_file=11)
    jobs.publish(exporter, feed, "out", properties={"kind": "a"})
    stream = importer.subscribe_stream(
        "in", 'kind == "a"', start="earliest", schema=DDL, filter="line != 5"
    )
    made = stream.match_rules(
        Given([rule("r", 1, 0, 11), rule("none", 1, 5)]),
        key="name",
        selectors=selectors,
        options=OperatorOptions(buckets=3),
    )
    found: list[tuple[str, int, list[int]]] = []

    def take(frames: dict[str, DataFrame], window: int) -> None:
        for row in frames["matches"].collect():
            lines = sorted(event["line"] for taken in row.events.values() for event in taken)
            found.append((row.rule, row.version, lines))

    query = made.foreach_batch(take, checkpoint=jobs.folder / "ck")
    jobs.queries.append(query)
    assert (importer.data_dir / "rules-patterns").exists()
    feed.release(2)
    until(lambda: found == [("r", 1, [0, 11])], SECONDS, f"the first match, not {found}")

    def figures() -> dict[tuple[str, int], int]:
        reported = importer.status()["ruleFigures"]
        return {(one["rule"], one["version"]): one["matches"] for one in reported}

    until(lambda: figures() == {("r", 1): 1, ("none", 1): 0}, SECONDS, f"figures: {figures()}")
    made.rules.manager.on_pattern_processors_updated([rule("r", 2, 22, 0)])
    feed.release(2)
    until(lambda: found[1:] == [("r", 2, [22, 33])], SECONDS, f"the second match, not {found}")
    query.stop()
    until(lambda: not made.rules.running, SECONDS, "the rules are closed with the query")
    until(lambda: figures() == {}, SECONDS, "no figures of a query that has ended")
