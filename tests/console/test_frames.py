"""How fast a large drawing moves."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import expect

from console.brokers import RunningBroker, export_of, import_of
from console.browser import WAIT_MS, Console

JOBS, CHAIN = 1_020, 25
"""Chains of jobs: with their routes 1,999 elements."""
FRAMES_PER_S = 30
LOADED = 0.75
"""Share of the frames at rest, which are fewer than 40 on a machine with other work."""
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


def chains() -> list[Any]:
    """Return jobs that each import from the one before, in chains."""
    following = [n for n in range(JOBS) if n % CHAIN]
    resources = [import_of(f"job-{n}", subscription=f"id == {n}") for n in following]
    return resources + [export_of(f"job-{n}", properties={"id": n + 1}) for n in range(JOBS)]


def test_a_drawing_of_2000_elements_moves_with_30_frames_a_second(
    browser: Any, broker: RunningBroker
) -> None:
    broker.apply(chains())
    console = Console(browser, broker.url)
    console.sign_in("ops")
    page = console.page
    console.page.get_by_role("searchbox").fill("job-")
    expect(page.get_by_text(f"{JOBS:,} jobs,")).to_be_visible(timeout=4 * WAIT_MS)
    box = page.get_by_test_id("canvas").bounding_box()
    middle = [box["x"] + box["width"] / 2, box["y"] + box["height"] / 2]
    still, moved = (
        max(page.evaluate(FRAMES, [*middle, moves]) for _ in range(3)) for moves in (False, True)
    )
    console.close()
    assert moved >= min(FRAMES_PER_S, LOADED * still), f"{still:.0f} at rest, {moved:.0f} moving"
