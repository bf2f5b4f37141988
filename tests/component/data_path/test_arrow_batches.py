"""An export's rows come in batches that are cut by rows; what a user says of batches stands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import DataType

from pe_agent.log.frames import Kind
from pe_agent.spark.batch_size import BATCH_ROWS, BYTES_SETTING, ROWS_SETTING, limit_batches_by_rows
from support.agents.logs import opened
from support.processes.waiting import until
from support.spark.feeds import Feed
from support.spark.session import SECONDS, Session, exporter_status

MOST = int(BATCH_ROWS)


def stored(home: Path) -> list[int]:
    """Return the rows of each batch in the logs of an agent that has ended."""
    found: list[int] = []
    for folder in {path.parent for path in (home / "log" / "out").glob("*/*.*")}:
        with opened(folder) as log:
            found += [
                json.loads(meta)["n"] for _, _, meta in log.recovered_frames({Kind.STAGE_DATA})
            ]
    return found


def test_a_published_batch_has_so_many_rows_and_the_session_is_as_it_was(
    jobs: Session, tmp_path: Path
) -> None:
    feed = Feed(tmp_path / "feed", rows_per_file=MOST + 7)
    feed.release()
    pe = jobs.pe("feed")
    query = jobs.publish(pe, feed, "out", properties={"kind": "a"})
    assert not {BYTES_SETTING, ROWS_SETTING} & set(jobs.spark.conf.getAll)
    until(lambda: exporter_status(pe, "out")["publisher"]["batch"] == 0, SECONDS, "batch 0")

    query.stop()
    pe.stop(end_agent=True)

    assert stored(jobs.folder / "home-feed") == [MOST, 7]


@pytest.mark.parametrize("key", [BYTES_SETTING, ROWS_SETTING])
def test_a_limit_that_the_user_set_stays_alone(session: SparkSession, key: str) -> None:
    session.conf.set(key, "9999")
    try:
        with limit_batches_by_rows(session, session.range(1).schema):
            assert {
                k: v for k, v in session.conf.getAll.items() if k in (BYTES_SETTING, ROWS_SETTING)
            } == {key: "9999"}
        assert session.conf.get(key) == "9999"
    finally:
        session.conf.unset(key)


@pytest.mark.parametrize(
    ("ddl", "counted"),
    [
        ("a bigint, b string, c struct<d: date, e: decimal(9,2)>", True),
        ("a bigint, b binary", False),
        ("a struct<b: array<int>>", False),
        ("a map<string, int>", False),
    ],
)
def test_types_of_large_values_keep_the_limit_in_bytes(
    session: SparkSession, ddl: str, counted: bool
) -> None:
    with limit_batches_by_rows(session, DataType.fromDDL(ddl)):
        assert (BYTES_SETTING in session.conf.getAll) is counted
