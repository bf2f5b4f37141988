"""A browser, and brokers with the resources of examples/02-control-plane."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import sync_playwright

from console.brokers import RunningBroker
from console.browser import Console, launch


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    broker = RunningBroker(tmp_path)
    broker.apply_example()
    yield broker
    broker.end()


@pytest.fixture
def console(browser: Any, broker: RunningBroker) -> Iterator[Console]:
    """A tab that is signed in as admin. In the end, nothing that it should not do has happened."""
    console = Console(browser, broker.url)
    console.sign_in("ops")
    yield console
    console.close()
    assert console.problems == []
    assert console.elsewhere == []


os.environ.setdefault("PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD", "1")
