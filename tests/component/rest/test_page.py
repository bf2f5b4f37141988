"""The files of the page: only these, with their headers, and the same for all callers."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import NamedTuple

import aiohttp
import pytest
import yaml
from aiohttp import web
from yarl import URL

from streambroker_operator.broker import Broker
from streambroker_operator.cli.commands import up
from streambroker_operator.rest.console import page_files
from support.brokers.brokers import TOKENS

INDEX = '<!doctype html><script type="module" src="assets/app-1a2b.js"></script>'


page_files_in = page_files.find_files


class Got(NamedTuple):
    status: int
    headers: Mapping[str, str]
    text: str


async def get(url: str, **headers: str) -> Got:
    async with (
        aiohttp.ClientSession() as session,
        session.get(URL(url, encoded=True), allow_redirects=False, headers=headers) as answer,
    ):
        return Got(answer.status, answer.headers.copy(), await answer.text())


@pytest.fixture
async def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """A broker with tokens, and with a page that was built."""
    built = tmp_path / "dist"
    (built / "assets").mkdir(parents=True)
    (built / "index.html").write_text(INDEX)
    (built / "assets/app-1a2b.js").write_text("export {}")
    (built / "assets/style-3c.css").write_text("p {}")
    (built / "icon.svg").write_text("<svg/>")
    (tmp_path / "secret.txt").write_text("secret")
    tokens = tmp_path / "tokens.yaml"
    entry = {"name": "ops", "token": TOKENS["ops"], "role": "admin"}
    tokens.write_text(yaml.safe_dump({"tokens": [entry]}))
    tokens.chmod(0o600)
    files = page_files.find_files(built)
    monkeypatch.setattr(page_files, "find_files", lambda: files)
    broker = Broker(db=tmp_path / "broker.db", port=0, tokens=tokens)
    await broker.start()
    yield broker.url
    await broker.stop()


async def test_files_are_served_without_a_token_and_with_their_headers(url: str) -> None:
    index, script, icon = [
        await get(f"{url}/ui/{name}") for name in ("", "assets/app-1a2b.js", "icon.svg")
    ]

    assert (index.status, index.text, script.text, icon.text) == (200, INDEX, "export {}", "<svg/>")
    assert index.headers["Content-Type"] == "text/html; charset=utf-8"
    assert script.headers["Content-Type"] == "text/javascript; charset=utf-8"
    assert icon.headers["Content-Type"].startswith("image/svg+xml")
    assert index.headers["Cache-Control"] == icon.headers["Cache-Control"] == "no-cache"
    assert script.headers["Cache-Control"] == "public, max-age=31536000, immutable"
    missing, folder = await get(f"{url}/ui/nope.js"), await get(f"{url}/ui")
    for found in (index, script, icon, missing, folder):
        assert {name: found.headers[name] for name in page_files.HEADERS} == page_files.HEADERS
    assert "script-src" not in page_files.HEADERS["Content-Security-Policy"]
    assert (await get(f"{url}/api/subscriptions/exports")).status == 401


async def test_an_unchanged_file_is_not_sent_again(url: str) -> None:
    first = await get(f"{url}/ui/")
    again = await get(f"{url}/ui/", **{"If-None-Match": first.headers["ETag"]})

    assert (again.status, again.text) == (304, "")


@pytest.mark.parametrize(
    "path",
    [
        "/ui/../secret.txt",
        "/ui/..%2fsecret.txt",
        "/ui/%2e%2e/secret.txt",
        "/ui/assets/..%2f..%2fsecret.txt",
        "/ui//etc/passwd",
        "/ui/%00",
        "/ui/assets",
        "/ui/assets/",
        "/ui/" + "a" * 4000,
        "/ui/%3Cscript%3Ealert(1)%3C/script%3E",
    ],
)
async def test_nothing_beside_the_files_is_served(url: str, path: str) -> None:
    found = await get(url + path)

    assert found.status in (401, 404)
    assert found.headers["Content-Type"].startswith("application/problem+json")
    assert "secret" not in found.text.replace("secret.txt", "")


async def test_behind_a_path_prefix_the_page_is_found_by_relative_addresses(url: str) -> None:
    async def forward(request: web.Request) -> web.Response:
        found = await get(url + request.path.removeprefix("/brokers/one"))
        return web.Response(
            status=found.status,
            text=found.text,
            headers={"Location": found.headers.get("Location", "")},
        )

    proxy = web.Application()
    proxy.router.add_get("/brokers/one/{path:.*}", forward)
    runner = web.AppRunner(proxy)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    start = URL(f"http://127.0.0.1:{runner.addresses[0][1]}/brokers/one/ui")
    moved = await get(str(start))
    target = start.join(URL(moved.headers["Location"]))
    index = await get(str(target))
    await runner.cleanup()

    assert (moved.status, target.path) == (308, "/brokers/one/ui/")
    assert index.text == INDEX


async def test_a_broker_whose_page_was_not_built_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_files, "find_files", lambda: page_files_in(tmp_path / "nothing"))
    broker = Broker(db=tmp_path / "broker.db", port=0)
    await broker.start()
    found = await get(f"{broker.url}/ui/")
    await broker.stop()

    assert found.status == 404
    assert "make console" in found.text


async def test_a_page_that_is_switched_off_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "index.html").write_text(INDEX)
    monkeypatch.setattr(page_files, "find_files", lambda: page_files_in(tmp_path))
    broker = Broker(db=tmp_path / "broker.db", port=0, page=False)
    await broker.start()
    found = await get(f"{broker.url}/ui/")
    await broker.stop()

    assert (found.status, "There is nothing" in found.text) == (404, True)


@pytest.mark.parametrize(
    ("built", "no_ui", "lines"),
    [(True, False, ["page at http://b:1/ui/"]), (True, True, []), (False, False, [])],
)
def test_up_prints_the_address_of_a_page_that_is_served(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    built: bool,
    no_ui: bool,
    lines: list[str],
) -> None:
    if built:
        (tmp_path / "index.html").write_text(INDEX)
    monkeypatch.setattr(page_files, "find_files", lambda: page_files_in(tmp_path))
    options = argparse.Namespace(no_ui=no_ui, tls_self_signed=None, db=tmp_path / "b.db")

    assert up._greeting("http://b:1", options).splitlines() == [
        "streambroker listening on http://b:1",
        f"database {tmp_path}/b.db",
        *lines,
    ]
