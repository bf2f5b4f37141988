"""The console in Chromium: opening a large board, a search, frames of a large drawing.

There is no peer: a drawing that rests is what the same browser can show at most.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cpu
from measure import Figures, Settings
from peer_jars import PeerMissingError

PURPOSE = "the console in Chromium: opening 10,000 jobs, a search, frames with 2,000 elements"
JOBS, QUICK_JOBS, CHAIN = 10_000, 500, 25
"""Chains of jobs, each of which imports from the one before."""
DRAWN_JOBS = 1_020
"""With their routes 1,999 elements."""
WAIT_MS = 30_000
# Looked at with each frame: what waits longer between two looks measures its own pauses.
SHOWS = "([at, text]) => [...document.querySelectorAll(at)].some(e => e.textContent.includes(text))"
FRAMES = """async ([x, y, moves]) => {
  const box = document.querySelector('[data-testid=canvas]');
  let frames = 0;
  const start = performance.now();
  while (performance.now() - start < 3000) {
    const deltaY = frames % 40 < 20 ? -12 : 12;
    const where = { clientX: x + frames % 7, clientY: y, deltaY, bubbles: true, cancelable: true };
    if (moves) box.firstElementChild.dispatchEvent(new WheelEvent('wheel', where));
    await new Promise(requestAnimationFrame);
    frames += 1;
  }
  return frames / ((performance.now() - start) / 1000);
}"""


@contextlib.contextmanager
def browsing() -> Iterator[Any]:
    """Start Chromium; yield the browser."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    try:
        from playwright.sync_api import sync_playwright

        from console.browser import launch
    except ImportError as error:
        raise PeerMissingError(f"{error}: make test-console installs what it needs") from error
    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


@contextlib.contextmanager
def board(place: Path, jobs: int) -> Iterator[Any]:
    """Run a broker with so many jobs."""
    from console.brokers import RunningBroker, export_of, import_of

    place.mkdir()
    broker = RunningBroker(place)
    following = [n for n in range(jobs) if n % CHAIN]
    broker.apply([export_of(f"job-{n}", properties={"id": n + 1}) for n in range(jobs)])
    broker.apply([import_of(f"job-{n}", subscription=f"id == {n}") for n in following])
    try:
        yield broker
    finally:
        broker.end()


def run(settings: Settings) -> Figures:
    """Measure; round 0 warms up and is left out."""
    figures = Figures()
    jobs = QUICK_JOBS if settings.quick else JOBS
    with browsing() as browser:
        settings.say(f"filling a broker with {jobs:,} jobs")
        with board(settings.place / "large", jobs) as large:
            _, graph = large.ask("GET", "/graph")
            figures.add("elements sent", len(graph["nodes"]) + len(graph["edges"]), "")
            for round_ in settings.turns:
                figures.yardstick()
                found = _open_and_search(browser, large, jobs)
                for name, seconds in found.items() if round_ or settings.quick else ():
                    figures.add(f"{jobs:,} jobs: {name}", seconds * 1e3, "ms")
        with board(settings.place / "drawn", DRAWN_JOBS) as drawn:
            for round_ in settings.turns:
                still, moved = _frames(browser, drawn)
                if round_ or settings.quick:
                    figures.add("2,000 elements at rest", still, "frames/s")
                    figures.add("2,000 elements moving", moved, "frames/s")
    figures.note(
        "Opening: from the token to the drawing. Chromium without a window and without a GPU shares"
        f" {os.cpu_count()} cores with the broker."
    )
    return figures


def _open_and_search(browser: Any, broker: Any, jobs: int) -> dict[str, float]:
    from console.browser import Console

    console = Console(browser, broker.url)
    before = cpu.seconds(broker._process.pid)
    began = time.perf_counter()
    console.sign_in("ops")
    console.page.wait_for_function(SHOWS, arg=[".chips", f"{jobs:,} jobs,"], timeout=WAIT_MS)
    opened = time.perf_counter() - began
    began = time.perf_counter()
    console.page.get_by_role("searchbox").fill("job-77")
    console.page.wait_for_function(SHOWS, arg=[".job-name", "job-77"], timeout=WAIT_MS)
    found = time.perf_counter() - began
    console.close()
    spent = cpu.seconds(broker._process.pid) - before
    return {"open": opened, "search": found, "processor of the broker": spent}


def _frames(browser: Any, broker: Any) -> tuple[float, float]:
    from playwright.sync_api import expect

    from console.browser import Console

    console = Console(browser, broker.url)
    console.sign_in("ops")
    page = console.page
    expect(page.get_by_text(f"{DRAWN_JOBS:,} jobs,")).to_be_visible(timeout=WAIT_MS)
    box = page.get_by_test_id("canvas").bounding_box()
    middle = [box["x"] + box["width"] / 2, box["y"] + box["height"] / 2]
    still, moved = (float(page.evaluate(FRAMES, [*middle, moves])) for moves in (False, True))
    console.close()
    return still, moved
