"""Write ``docs/images/console-*.png``: ``python -m console.screenshots``."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from console.brokers import ROOT, TOKENS, RunningBroker, export_of
from console.browser import Console, launch
from console.scene import TRADES_DDL, Agents, scene, trades
from support.agents.agents import AgentProcess, Publishing
from support.processes.waiting import until

IMAGES = ROOT / "docs/images"
ROUNDS = 8
"""Number of reports whose rates the plot of a port shows."""
PLACES = {
    "topology": "topology",
    "why": "why?import=default/alerts/0/trades&export=default/nyse/0/quotes",
    "port": "port?export=default/nyse/0/trades",
    "rows": "rows?export=default/lse/0/trades",
}
SCHEMES = ("light", "dark")
START_S = 60.0


def main() -> None:
    """Run a broker with a board, and write each view in light and dark."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = launch(playwright)
        broker = RunningBroker(Path(folder))
        try:
            broker.apply_example()
            broker.apply(scene())
            for level in (3, 4):
                change = {"level": level}
                broker.change("PATCH", "/job/nyse/pe/0/export/trades/properties", change)
            agents = Agents(broker)
            for scheme in SCHEMES:
                write_views(browser, broker, agents, scheme)
            with running_stream(broker, Path(folder)) as publishing:
                for scheme in SCHEMES:
                    write_rows(browser, broker, publishing, scheme)
        finally:
            broker.end()
            browser.close()


def write_views(browser: Any, broker: RunningBroker, agents: Agents, scheme: str) -> None:
    """Write all views in one colour scheme."""
    console = Console(browser, broker.url, scheme)
    console.sign_in("ops")
    page = console.page
    console.go(PLACES["port"])
    for _ in range(ROUNDS):
        agents.report()
        with page.expect_response("**/top?*"):
            pass
    page.locator(".rates canvas").wait_for()
    page.screenshot(path=IMAGES / f"console-port-{scheme}.png")
    console.go(PLACES["topology"])
    console.job("enrich").wait_for()
    agents.report()
    with page.expect_response("**/graph?*"):
        pass
    page.evaluate(
        "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
    )
    page.screenshot(path=IMAGES / f"console-topology-{scheme}.png")
    console.go(PLACES["why"])
    page.get_by_label("Subscription", exact=True).fill('kind == "enriched"')
    page.get_by_text("This would change routes").wait_for()
    page.screenshot(path=IMAGES / f"console-why-{scheme}.png")
    console.close()


@contextmanager
def running_stream(broker: RunningBroker, folder: Path) -> Iterator[Publishing]:
    """Run the agent of the job lse, whose export has 1,000 trades."""
    broker.apply([export_of("lse", "trades", properties={"kind": "trade", "exchange": "LSE"})])
    token = {"STREAMBROKER_TOKEN": TOKENS["ops"]}
    agent = AgentProcess(folder / "lse", "lse", broker=broker.url, environment=token)
    agent.start()
    try:
        until(lambda: agent.status()["exports"], START_S, "the export at its agent")
        publishing = Publishing(agent, ddl=TRADES_DDL)
        publishing.publish(0, trades(0, 1_000))
        yield publishing
    finally:
        agent.kill()


def write_rows(browser: Any, broker: RunningBroker, publishing: Publishing, scheme: str) -> None:
    """Write the view of the last rows, which go on between one picture and the next."""
    batch = 1 + SCHEMES.index(scheme)
    publishing.publish(batch, trades(1_000 * batch, 1_000))
    console = Console(browser, broker.url, scheme)
    console.sign_in("ops")
    console.go(PLACES["rows"])
    peek = console.page.get_by_role("button", name="Peek")
    console.page.get_by_label("Filter", exact=True).fill('size >= 500 && symbol != "VOD"')
    console.page.get_by_text("✓ valid").wait_for()
    peek.click()
    console.page.get_by_text("the newest at the end").wait_for()
    console.page.screenshot(path=IMAGES / f"console-rows-{scheme}.png")
    console.close()


if __name__ == "__main__":
    main()
