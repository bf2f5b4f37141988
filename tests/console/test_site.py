"""The documentation site in a browser, as `make docs` has built it."""

from __future__ import annotations

import html
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from console.browser import WAIT_MS

ROOT = Path(__file__).parents[2]
SITE = ROOT / ".site/html"
_DIAGRAM = re.compile(r'<pre class="mermaid"><code>(.*?)</code></pre>', re.DOTALL)
_LOADED = re.compile(r"<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=\"?([^\s\">]+)")


def pages() -> dict[str, str]:
    """Return the text of each page, by its place."""
    found = sorted(SITE.rglob("index.html"))
    return {str(path.parent.relative_to(SITE)): path.read_text() for path in found}


class _Handler(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Keep the output of the tests short."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder; yield its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, directory=str(folder)))
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def site() -> Iterator[str]:
    """The address of the site."""
    with served(SITE) as address:
        yield address


@pytest.mark.parametrize("page", [place for place, text in pages().items() if 'mermaid"' in text])
def test_a_page_draws_its_diagrams_and_loads_nothing_from_elsewhere(
    browser: Any, site: str, page: str
) -> None:
    tab, elsewhere, problems = browser.new_page(), list[str](), list[str]()
    tab.on("request", lambda r: None if r.url.startswith(site) else elsewhere.append(r.url))
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.goto(f"{site}{page}/")
    diagrams = [html.unescape(text) for text in _DIAGRAM.findall(pages()[page])]
    assert diagrams
    for diagram in diagrams:
        tab.evaluate("async text => { await mermaid.parse(text) }", diagram)
    drawn = "count => document.querySelectorAll('div.mermaid').length === count"
    tab.wait_for_function(drawn, arg=len(diagrams), timeout=WAIT_MS)
    assert (elsewhere, problems) == ([], [])
    tab.close()


def test_no_page_names_a_script_style_or_picture_of_elsewhere() -> None:
    found = {place: _LOADED.findall(text) for place, text in pages().items()}
    assert len(found) > 100
    assert [(p, url) for p, urls in found.items() for url in urls if "//" in url] == []


def test_a_reader_changes_from_the_site_of_a_release_to_that_of_this_checkout(
    browser: Any, tmp_path: Path
) -> None:
    """The commit of this checkout stands for a release: older ones have no site."""
    git = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    (tmp_path / "releases").write_text(f"0.9.0 {subprocess.check_output(git, text=True)}")
    command = [str(ROOT / ".venv-docs/bin/python"), str(ROOT / "docs/versions.py")]
    options = ["--releases", str(tmp_path / "releases"), "--target", str(tmp_path / "all")]
    subprocess.run([*command, *options], check=True, capture_output=True)

    tab = browser.new_page()
    with served(tmp_path / "all") as address:
        tab.goto(address)
        tab.wait_for_url(f"{address}0.9.0/", timeout=WAIT_MS)
        tab.goto(f"{address}0.9.0/concepts/")
        tab.get_by_role("button", name="Select version").focus()
        tab.get_by_role("link", name="next", exact=True).click()
        tab.wait_for_url(re.compile(f"^{address}next/"), timeout=WAIT_MS)
        tab.close()
