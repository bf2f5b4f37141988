"""What a source reports for the progress of its query."""

from __future__ import annotations

from pathlib import Path

import pytest

from pe_agent.datasource import options
from support.agents.agents import Publishing, pair, rows
from support.agents.sources import Run
from support.processes.waiting import until

SECONDS = 30.0


def test_the_latest_offset_is_at_the_heads_and_counts_what_follows_the_batch(
    tmp_path: Path,
) -> None:
    """A batch has one epoch of four; nothing is planned for the query before its first batch."""
    for agents in pair(tmp_path):
        for batch in range(4):
            Publishing(agents.exporter).publish(batch, rows(10 * batch, 10))
        run = Run(agents.importer, max_bytes=1)
        assert run.source.reportLatestOffset() is None

        def behind(run: Run = run) -> int:
            run.plan()  # again, until the agent has heard of the exporter's heads
            return int((run.source.reportLatestOffset() or {})["behind"]["epochs"])

        until(lambda: behind() == 3, SECONDS, "three epochs follow the first one")
        found = []
        while (end := run.plan()) != run.at:
            latest = run.source.reportLatestOffset()
            assert latest is not None
            found.append(tuple(latest["behind"].values()))
            assert [at["next"] for at in latest["streams"].values()] == [4]
            assert latest["reader"] == end["reader"]
            run.read(end)
        assert found == [(3, 30), (2, 20), (1, 10), (0, 0)]
        run.stop()


def test_a_wait_for_the_columns_of_a_first_match_is_logged_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(options, "SCHEMA_WAIT_SECONDS", 0.1)
    for agents in pair(tmp_path, connected=False):
        with pytest.raises(options.SchemaUnknownError, match=r"trades has no match .* schema="):
            options.fetch_schema(agents.importer.client, "trades")
        (record,) = caplog.records
        assert "import trades has no match yet" in record.getMessage()
