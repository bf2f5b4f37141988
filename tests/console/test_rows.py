"""The last rows of an export, from a real agent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from playwright.sync_api import expect

from console.brokers import TOKENS, RunningBroker, export_of
from console.browser import WAIT_MS, Console
from support.agents.agents import AgentProcess, Publishing, rows
from support.processes.waiting import until

expect.set_options(timeout=WAIT_MS)
ATTACK = '<img src=x onerror="window.hacked=1">'
START_S = 60.0


@pytest.fixture
def publisher(broker: RunningBroker, tmp_path: Path) -> Iterator[Publishing]:
    """The export feed/0/trades with rows 0 to 99, and one with markup as its name."""
    broker.apply([export_of("feed", port="trades", properties={"kind": "trade"})])
    token = {"STREAMBROKER_TOKEN": TOKENS["ops"]}
    agent = AgentProcess(tmp_path / "feed", "feed", broker=broker.url, environment=token)
    agent.start()
    try:
        until(lambda: agent.status()["exports"], START_S, "the export at its agent")
        publishing = Publishing(agent)
        publishing.publish(0, rows(0, 100))
        attack = pa.RecordBatch.from_pydict({"n": [100], "name": [ATTACK]}, rows(0, 1).schema)
        publishing.publish(1, attack)
        yield publishing
    finally:
        agent.kill()


@pytest.mark.usefixtures("publisher")
def test_the_last_rows_are_shown_with_a_filter_and_as_texts(console: Console) -> None:
    page = console.page
    console.go("rows?export=default/feed/0/trades")
    peek = page.get_by_role("button", name="Peek")
    peek.click()
    expect(page.get_by_text("50 rows, the newest at the end; there are more")).to_be_visible()
    table: Any = page.get_by_role("region", name="Rows")
    expect(table.locator("tbody tr").last).to_contain_text(ATTACK)
    assert page.evaluate("window.hacked") is None

    page.get_by_label("Filter", exact=True).fill("n < 3")
    expect(peek).to_be_enabled()
    peek.click()
    expect(page.get_by_text("3 rows, the newest at the end")).to_be_visible()
    assert table.locator("tbody tr").all_inner_texts() == ["0\trow 0", "1\trow 1", "2\trow 2"]


@pytest.mark.usefixtures("publisher")
def test_a_caller_without_the_right_sees_no_rows(browser: Any, broker: RunningBroker) -> None:
    console = Console(browser, broker.url)
    console.sign_in("reader")
    console.go("rows?export=default/feed/0/trades")
    console.page.get_by_role("button", name="Peek").click()
    expect(console.page.get_by_role("alert").first).to_contain_text("NotYours")
    assert "row 99" not in console.text()
    console.close()
    assert console.problems == []
