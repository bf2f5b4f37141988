"""The page in Debian's Chromium."""

from __future__ import annotations

import os
import shutil
from typing import Any

from console.brokers import TOKENS

WAIT_MS = 20_000
SIZE = {"width": 1360, "height": 820}


def launch(playwright: Any) -> Any:
    """Start Chromium without a window. Playwright's own browser is never downloaded."""
    path = shutil.which("chromium")
    assert path is not None, "install chromium: apt-get install --no-install-recommends chromium"
    options = ["--no-sandbox"] if os.getuid() == 0 else []
    return playwright.chromium.launch(executable_path=path, args=options)


class Console:
    """A tab with the page, what it complains of, and what it requests from elsewhere."""

    def __init__(self, browser: Any, url: str, scheme: str = "light") -> None:
        self.url = url
        self.problems: list[str] = []
        self.elsewhere: list[str] = []
        self._context = browser.new_context(viewport=SIZE, color_scheme=scheme, bypass_csp=False)
        self._context.set_default_timeout(WAIT_MS)
        self.page = self._context.new_page()
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", self._see)

    def _hear(self, message: Any) -> None:
        # The browser reports each refusal, and each request to a broker that is away.
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.problems.append(message.text)

    def _see(self, request: Any) -> None:
        if not request.url.startswith((self.url, "data:", "blob:")):
            self.elsewhere.append(request.url)

    def open(self, place: str = "topology") -> None:
        """Go to a place of the page, which is then loaded again."""
        self.page.goto(f"{self.url}/ui/#/{place}")
        self.page.reload()

    def go(self, place: str) -> None:
        """Go to a place without loading the page again."""
        self.page.evaluate("place => { location.hash = '#/' + place }", place)

    def sign_in(self, who: str) -> None:
        self.sign_in_with(TOKENS[who])

    def sign_in_with(self, token: str) -> None:
        self.page.goto(f"{self.url}/ui/")
        self.page.get_by_label("Token").fill(token)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.get_by_text("Live", exact=True).wait_for()

    def job(self, name: str) -> Any:
        """The entry of a job in the list."""
        return self.page.get_by_role("navigation", name="Jobs").get_by_role("button", name=name)

    def text(self) -> str:
        return str(self.page.locator("body").inner_text())

    def close(self) -> None:
        self._context.close()
