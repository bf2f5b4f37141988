"""Write ``docs/images/console-*.png``: ``python -m console.screenshots``."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from console.brokers import ROOT, RunningBroker
from console.browser import Console, launch
from console.scene import Agents, scene

IMAGES = ROOT / "docs/images"
ROUNDS = 8
"""Number of reports whose rates the plot of a port shows."""
PLACES = {
    "topology": "topology",
    "why": "why?import=default/alerts/0/trades&export=default/nyse/0/quotes",
    "port": "port?export=default/nyse/0/trades",
}


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
            for scheme in ("light", "dark"):
                write_views(browser, broker, agents, scheme)
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


if __name__ == "__main__":
    main()
