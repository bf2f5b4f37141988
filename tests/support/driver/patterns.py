"""A query whose rules change.

``python -m support.driver patterns FOLDER WAY``: the first run changes rule ``r`` from A→C to A→B→C
and is killed on the way, the second one goes on to the end. Matches go to ``FOLDER/out``.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from pe_agent.cep.rules_log import RulesFile
from pe_agent.spark.local_session import SMALL, session
from streambroker.operators import OperatorOptions, Stream
from streambroker.patterns import PatternStream
from streambroker_core.cep.operator import PatternRules
from support.patterns.spark import Given, Play, letters

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
CALM, TORN, SENT, WINDOW = "calm", "torn", "sent", "window"
"""Killed never, with half of the change written, with all of it, in its first window."""
TURNS = ("A", "C", "ABC")


def rules(word: str, version: int) -> list[dict[str, Any]]:
    """Return the one rule; each row is shown to ``kills``."""
    stages: list[dict[str, Any]] = [
        {"name": one, "where": {"all": [f'n == "{one}"', {"function": "kills"}]}} for one in word
    ]
    for stage in stages[1:]:
        stage["join"] = "followed_by"
    return [{"id": "r", "version": version, "pattern": {"stages": stages}}]


def kills(folder: Path, driver: int, row: Any, run: Any) -> bool:
    """Kill the driver once, if the test wants it; in a task."""
    del row, run
    try:
        (folder / "kill").rename(folder / "killed")
    except FileNotFoundError:
        return True
    os.kill(driver, signal.SIGKILL)
    return True


def torn(self: RulesFile, rules: PatternRules) -> None:
    """Write half of a line, and die."""
    del rules
    with self._file.path.open("ab") as file:
        file.write(b'{"v":1,"type":"PatternRules","payl')
        file.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def turn(play: Play, number: int) -> None:
    """Feed the rows of a turn, if they were not fed before the kill."""
    at = BEGIN + timedelta(seconds=100 * number)
    given = [
        {"t": at + timedelta(seconds=place), "n": n, "user": "u", "item": ""}
        for place, n in enumerate(TURNS[number])
    ]
    last = {"t": at + timedelta(seconds=99), "n": "", "user": "end", "item": ""}
    play.rows([*given, last])


def main(folder: Path, way: str) -> None:
    spark = session("kills", cores=1, conf=SMALL)

    def make(stream: Stream, first: Sequence[Any]) -> PatternStream:
        return stream.with_watermark("t", "0 seconds").match_rules(
            Given(first),
            control_file=folder / "rules",
            key="user",
            functions={"kills": partial(kills, folder, os.getpid())},
            options=OperatorOptions(buckets=2),
        )

    play = Play(spark, folder, make)
    again = (folder / "changed").exists()
    play._files = len(list((folder / "in").glob("*.parquet")))
    play.start(rules("ABC", 2) if again else rules("AC", 1))
    if not again:
        turn(play, 0)
        (folder / "changed").touch()
        if way == TORN:
            RulesFile.send = torn  # type: ignore[method-assign]
        elif way == WINDOW:
            (folder / "kill").touch()
        play.rules.on_pattern_processors_updated(rules("ABC", 2))
        if way == SENT:
            os.kill(os.getpid(), signal.SIGKILL)
    while play._files < len(TURNS):
        turn(play, play._files)
    assert play.query is not None
    play.query.processAllAvailable()
    matches = [[row["rule"], row["version"], letters(row)] for row in play.output()]
    (folder / "out").write_text(json.dumps(matches))
    play.stop()
