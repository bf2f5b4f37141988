"""A drawing of many jobs."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import expect

from console.brokers import RunningBroker, export_of, import_of
from console.browser import SIZE, WAIT_MS, Console

JOBS, CHAIN = 1_020, 25
"""Chains of jobs: with their routes 1,999 elements."""


def test_a_drawing_of_2000_elements_fits_the_window(browser: Any, broker: RunningBroker) -> None:
    following = [n for n in range(JOBS) if n % CHAIN]
    broker.apply([export_of(f"job-{n}", properties={"id": n + 1}) for n in range(JOBS)])
    broker.apply([import_of(f"job-{n}", subscription=f"id == {n}") for n in following])
    console = Console(browser, broker.url)
    console.sign_in("ops")
    console.page.get_by_role("searchbox").fill("job-")
    expect(console.page.get_by_text(f"{JOBS:,} jobs,")).to_be_visible(timeout=4 * WAIT_MS)
    box = console.page.get_by_test_id("canvas").bounding_box()
    console.close()
    assert 0 < box["height"] <= SIZE["height"]
    assert console.problems == []
