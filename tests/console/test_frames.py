"""How fast a large drawing moves."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import expect

from console.brokers import RunningBroker, export_of, import_of
from console.browser import WAIT_MS, Console

JOBS = 1_000
FRAMES_PER_S = 30
MEASURE = """async ([x, y]) => {
  const box = document.querySelector('[data-testid=canvas]');
  const canvas = box.querySelector('canvas[data-id="layer2-node"]') || box.querySelector('canvas');
  let frames = 0;
  const start = performance.now();
  while (performance.now() - start < 3000) {
    const deltaY = frames % 40 < 20 ? -12 : 12;
    const where = { clientX: x + frames % 7, clientY: y, deltaY, bubbles: true, cancelable: true };
    canvas.parentElement.dispatchEvent(new WheelEvent('wheel', where));
    await new Promise(requestAnimationFrame);
    frames += 1;
  }
  return frames / ((performance.now() - start) / 1000);
}"""


def test_a_drawing_of_2000_elements_moves_with_30_frames_a_second(
    browser: Any, broker: RunningBroker
) -> None:
    resources = [import_of(f"job-{n}", subscription=f"id == {n}") for n in range(1, JOBS)]
    resources += [export_of(f"job-{n}", properties={"id": n + 1}) for n in range(JOBS - 1)]
    broker.apply(resources)
    console = Console(browser, broker.url)
    console.sign_in("ops")
    page = console.page
    console.page.get_by_role("searchbox").fill("job-")
    expect(page.get_by_text(f"{JOBS:,} jobs")).to_be_visible(timeout=4 * WAIT_MS)
    box = page.get_by_test_id("canvas").bounding_box()
    middle = [box["x"] + box["width"] / 2, box["y"] + box["height"] / 2]
    frames = max(page.evaluate(MEASURE, middle) for _ in range(3))
    print(f"{frames:.0f} frames a second")
    console.close()
    assert frames >= FRAMES_PER_S
