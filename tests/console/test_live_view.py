"""The widget of `pe.live_view` in a browser, with the statuses of real agents."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from console.browser import WAIT_MS
from pe_agent.job.notebook.live_view import LiveView
from pe_agent.job.statuses import PeStatus
from support.agents.agents import Publishing, Reading, rows
from support.agents.connected import Connected
from support.processes.waiting import until

expect.set_options(timeout=WAIT_MS)
START_S = 60.0
ATTACK = '<img src=x onerror="window.hacked=1">'
SHOW = """async source => {
  const listeners = new Map();
  const values = {};
  window.model = {
    get: name => values[name],
    set: (name, value) => {
      values[name] = value;
      for (const one of listeners.get(`change:${name}`) ?? []) one();
    },
    on: (name, listener) => listeners.set(name, [...(listeners.get(name) ?? []), listener]),
    off: (name, listener) =>
      listeners.set(name, (listeners.get(name) ?? []).filter(one => one !== listener)),
    save_changes: () => undefined,
  };
  const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  const { default: widget } = await import(url);
  window.end = widget.render({ model: window.model, el: document.body });
}"""
"""Loads the module as a notebook does; the model speaks anywidget's protocol."""


class Cell:
    """A cell of a notebook that shows a view."""

    def __init__(self, page: Any, view: LiveView) -> None:
        self.page, self._view = page, view
        page.evaluate(SHOW, str(view._esm))
        self.sync()

    def sync(self) -> None:
        """Give the browser the state as it is now."""
        self.set(json.loads(json.dumps(self._view.state)))

    def set(self, state: Any) -> None:
        self.page.evaluate("state => model.set('state', state)", state)

    def await_text(self, text: str) -> None:
        """Sync until the cell shows a text."""

        def shown() -> bool:
            self.sync()
            return text in self.page.locator("body").inner_text()

        until(shown, START_S, f"{text!r} in the cell", pause_s=0.05)


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Connected]:
    """Two agents; the export feed/0/trades has ten rows, and nothing imports it."""
    agents = Connected(tmp_path)
    try:
        agents.start()
        Connected.declare(agents.exporter, "export", properties={"kind": "trade"})
        until(lambda: agents.exporter.status()["exports"], START_S, "the export at its agent")
        Publishing(agents.exporter).publish(0, rows(0, 10))
        yield agents
    finally:
        agents.end()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """An empty page. In the end it has reported no error."""
    context = browser.new_context()
    page, problems = context.new_page(), []
    page.on("console", lambda one: problems.append(one.text) if one.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    yield page
    context.close()
    assert problems == []


def test_a_cell_follows_its_job_until_it_is_removed(page: Any, agents: Connected) -> None:
    def status() -> PeStatus:
        return PeStatus.from_json(agents.exporter.status())

    view = LiveView(status, 0.05, threading.Event())
    cell = Cell(page, view)
    expect(page.get_by_text("default/feed/0")).to_be_visible()
    expect(page.get_by_text("rows/s, 10 published")).to_be_visible()
    assert page.locator("td").count() == 0

    Connected.declare(agents.importer, "import", subscription='kind == "trade"', start="earliest")
    until(agents.at, START_S, "the route at the importer")
    Reading(agents.importer).open()
    cell.await_text("default/alerts/0/trades")
    expect(page.get_by_role("row")).to_have_count(2)
    expect(page.get_by_role("cell", name="reads")).to_be_visible()

    agents.exporter.kill()
    cell.await_text("The agent does not answer")
    expect(page.get_by_text("default/alerts/0/trades")).to_be_visible()

    view.close()
    page.evaluate("end()")
    cell.set({"pe": "drawn after the end"})
    assert "drawn after the end" not in page.locator("body").inner_text()


def test_a_cell_shows_texts_as_texts(page: Any) -> None:
    page.evaluate(SHOW, str(LiveView._esm))
    reader = {"import": ATTACK, "alive": True, "dropped": 0, "lost": 0, "refused": ATTACK}
    state = {"pe": ATTACK, "imports": [reader], "away": {ATTACK: ATTACK}, "error": ATTACK}
    page.evaluate("state => model.set('state', state)", state)

    expect(page.get_by_role("cell", name=ATTACK)).to_have_count(2)
    assert page.locator("img").count() == 0
    assert page.evaluate("window.hacked") is None
