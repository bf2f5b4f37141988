"""Rows that no rule has to see stay at their exporter, and what comes out is the same."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import streambroker as sb
from streambroker import PE
from streambroker.operators import AlignedError, ControlFile
from support.patterns.imports import BEGIN, DDL, Letters, Rules, rule
from support.patterns.spark import Given
from support.processes.waiting import until
from support.spark.session import SECONDS, Session, exporter_status


def delivered(exporter: PE, reader_of: Rules) -> int:
    """Return how many rows went to a job."""
    readers = exporter_status(exporter, "out")["readers"].values()
    (one,) = [r for r in readers if str(reader_of.pe.key) in r["import"]]
    return int(one["delivered"])


@pytest.mark.long
def test_rules_see_their_rows_from_their_window_on_and_time_passes_by_all(jobs: Session) -> None:
    exporter = jobs.pe("feed")
    letters = Letters(jobs, exporter)
    pushed = Rules(jobs, "pushed", push_down=True)
    pushed.start(rule("r", "AB"))
    letters.give(0, "AxB")
    until(lambda: len(pushed.found) == 1, SECONDS, "the first match")
    assert pushed.pinned() == {"next": 2, "filter": 'n == "A" || n == "B"', "why": ""}
    pushed.put(rule("r", "AC", 2))
    until(lambda: pushed.pinned()["next"] == 3, SECONDS, "the new rule")
    letters.give(500, "BACx")
    until(lambda: pushed.time() >= letters.last, SECONDS, "the time of rows that are not sent")
    letters.give(110, "AC")
    until(lambda: pushed.late == 2, SECONDS, f"two late rows, not {pushed.late}")
    assert [one[:4] for one in pushed.found] == [
        ["matches", "r", 1, "AB"],
        ["matches", "r", 2, "AC"],
    ]
    until(lambda: delivered(exporter, pushed) == 2 + 2 + 2, SECONDS, "six rows delivered")


@pytest.mark.long
def test_the_same_comes_out_while_rules_change_and_over_a_restart(jobs: Session) -> None:
    exporter = jobs.pe("feed")
    letters = Letters(jobs, exporter)
    whole, pushed = Rules(jobs, "whole"), Rules(jobs, "pushed", push_down=True)
    both = (whole, pushed)

    def passed(time: datetime, what: str) -> None:
        for one in both:
            until(lambda one=one: one.time() >= time, SECONDS, what)  # type: ignore[misc]

    for one in both:
        one.start(rule("r", "AB"))
    passed(letters.give(0, "AxBA"), "the first rows")
    assert pushed.made.rules.relevance.filter == 'n == "A" || n == "B"'
    assert pushed.pinned()["filter"] == 'n == "A" || n == "B"'
    assert whole.pinned() == {}

    for one in both:  # a rule that needs more rows, and a new version of the other
        one.put(rule("r", "AC", 2), rule("s", "CD"))
    until(lambda: pushed.pinned()["next"] == 3, SECONDS, "the new rules")
    passed(letters.give(100, "BACDC"), "rows of the new rules")

    letters.give(500, "xyz")  # time passes by rows that are not sent
    passed(BEGIN + timedelta(seconds=502), "the time of rows that no rule sees")
    letters.give(110, "AC")  # so these are late
    for one in both:
        until(lambda one=one: one.late >= 2, SECONDS, "late rows")  # type: ignore[misc]
        one.query.stop()
        until(lambda one=one: not one.made.rules.running, SECONDS, "end")  # type: ignore[misc]
    letters.give(510, "ACE")
    for one in both:
        one.start(rule("r", "AC", 2), rule("t", "EF", join="next"))
    passed(letters.give(600, "DEFCExF"), "rows behind the restart")
    assert pushed.made.rules.relevance.why.startswith("rule t, version 1, ")
    assert pushed.pinned()["filter"] is None
    passed(letters.give(900, "z"), "the end")

    assert sorted(pushed.found) == sorted(whole.found)
    words = {(tag, rule, word) for tag, rule, _, word, _ in whole.found}
    assert {("matches", "r", "AB"), ("matches", "r", "AC"), ("matches", "s", "CD")} <= words
    assert {("matches", "t", "EF"), ("timeouts", "t", "E")} <= words | {("timeouts", "t", "E")}
    assert (whole.late, pushed.late) == (2 + 50, 2)
    rows = delivered(exporter, whole)
    assert rows > 300
    assert delivered(exporter, pushed) < rows - 200


def test_what_is_pushed_down_is_reported_and_what_cannot_be_is_refused(
    jobs: Session, tmp_path: Path
) -> None:
    importer = jobs.pe("alerts")

    def relevance(*, timed: bool = True, **settings: Any) -> str:
        stream = importer.subscribe_stream("in", 'kind == "a"', schema=DDL)
        if timed:
            stream = stream.with_watermark("t", "0 seconds")
        made = stream.match_rules(
            Given([rule("r", "AB")]),
            control_file=tmp_path / f"{timed}-{len(settings)}",
            key="user",
            **settings,
        )
        made.rules.close()
        return made.rules.relevance.why

    assert relevance() == "push_down was not requested"
    assert "copied" in relevance(push_down=True, selectors=["n"])
    assert "end windows" in relevance(timed=False, push_down=True)
    frame = jobs.spark.readStream.schema(DDL).parquet(str(tmp_path))
    discoverer = Given([])
    with pytest.raises(AlignedError, match="the stream of one import"):
        sb.stream(frame).match_rules(discoverer, control_file=tmp_path / "rules", push_down=True)
    assert ControlFile(tmp_path / "rules").tuples() == []
