"""A Spark job whose export lies at three agents, two of which are killed while rows flow."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pe_agent.agent.process import read_address
from pe_agent.transport.agent_client import AgentClient
from pe_agent.transport.flight_errors import AgentUnreachableError
from support.processes.waiting import until
from support.spark.feeds import Feed
from support.spark.session import SECONDS, Session, exporter_status

SCHEMA = "line bigint, price double, name string"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:agents= of pe_agent.start:DeprecationWarning")
def test_rows_from_three_agents_arrive_once_whichever_of_them_is_killed(
    jobs: Session, tmp_path: Path
) -> None:
    feed = Feed(tmp_path / "feed", rows_per_file=60)
    exporter, importer = jobs.pe("feed", agents=3), jobs.pe("alerts")

    def publish() -> None:
        frame, kind = jobs.files(feed).repartition(6), {"kind": "a"}
        jobs.queries.append(
            exporter.publish(frame, "out", properties=kind, checkpoint=tmp_path / "ck-feed")
        )

    publish()
    wanted = importer.subscribe(
        "in", 'kind == "a"', filter="price > 20", start="earliest", schema=SCHEMA
    )
    reading, sink = jobs.collect(wanted, "in")

    def expected() -> Counter[tuple[int, float, str]]:
        return Counter(r for k in range(feed.files) for r in feed.rows(k) if r[1] > 20)

    def arrived(count: int) -> bool:
        if not any(q.isActive for q in jobs.queries if q is not reading):
            with contextlib.suppress(AgentUnreachableError):
                publish()  # an agent took longer to start than a commit tries
        return sum(sink.rows.values()) >= count

    home = tmp_path / "home-feed"
    for victim in (home / "pe-1", home, home / "pe-2"):
        feed.release(2)
        behind = sum(expected().values()) - 60
        until(partial(arrived, behind), SECONDS, f"{behind} rows")
        os.kill((read_address(victim) or {})["pid"], signal.SIGKILL)
    feed.release(2)
    passed = sum(expected().values())
    until(partial(arrived, passed), SECONDS, f"{passed} rows")
    assert sink.rows == expected()

    def counted() -> list[int]:
        (reader,) = exporter_status(exporter, "out")["readers"].values()
        return [reader["delivered"], reader["filtered"], reader["counting"]]

    until(lambda: counted() == [passed, feed.files * 60 - passed, 0], SECONDS, "all rows counted")
    began = time.monotonic()
    until(
        lambda: all(
            f["seen"] is not None and f["seen"] < time.monotonic() - began
            for f in exporter.status()["fellows"].values()
        ),
        SECONDS,
        "all fellows there",
    )

    def kept(fellow: str) -> dict[str, Any] | None:
        at = read_address(home / fellow) or {}
        # gRPC waits before it tries an address again at which nobody was before.
        with contextlib.suppress(AgentUnreachableError):
            return dict(AgentClient(at["location"], at["token"]).call("status")["kept"])
        return None

    for fellow in ("pe-1", "pe-2"):
        found = until(partial(kept, fellow), SECONDS, f"{fellow} answers")
        (stream,) = found["default/feed/0/out"].values()
        assert stream["epochs"] > 0
