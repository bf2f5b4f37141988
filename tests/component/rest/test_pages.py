"""The pages whose examples are sent to a broker: explain, use REST, routes without Spark."""

from __future__ import annotations

import argparse
import asyncio
import re
import shlex
from pathlib import Path

import aiohttp
import pytest

from support.brokers.brokers import Rest
from support.brokers.commands import Cli

ROOT = Path(__file__).parents[3]
TOUR = ROOT / "examples/02-control-plane"
EXPLAIN, BY_HAND = (ROOT / f"docs/{name}.md" for name in ("explain", "how-to/use-rest"))
BASE = "http://127.0.0.1:8470/api/subscriptions"


@pytest.fixture
async def cli(
    rest: Rest, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Cli:
    """The command line in the directory of the example."""
    monkeypatch.chdir(TOUR)
    return Cli(rest, capsys, tmp_path)


def commands(page: Path, program: str) -> list[tuple[str, str]]:
    """Return the command lines of a page, each with what it answers there."""
    blocks = re.findall(r"^```console\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    found = [re.split(r"^\$ ", block, flags=re.MULTILINE)[1:] for block in blocks]
    lines = [one.partition("\n") for block in found for one in block]
    return [(line, reported) for line, _, reported in lines if program in line.split()[0]]


def is_like(text: str, reported: str) -> bool:
    """Say whether a text is what a page says, where \u2026 stands for anything."""
    pattern = ".*?".join(re.escape(part) for part in reported.rstrip("\n").split("\u2026"))
    return re.fullmatch(pattern, text.rstrip("\n"), re.DOTALL) is not None


# ---- explain.md --------------------------------------------------------------------------------


@pytest.mark.parametrize(("mark", "file"), [("example", "streams"), ("changed", "changed")])
def test_the_files_of_the_example_are_those_of_the_page(mark: str, file: str) -> None:
    found = re.search(
        rf"^```yaml {mark}\n(.*?)^```$", EXPLAIN.read_text(), re.MULTILINE | re.DOTALL
    )
    assert found is not None
    assert (TOUR / f"{file}.yaml").read_text() == found[1]


async def test_the_answers_on_the_page_are_those_of_a_broker(cli: Cli) -> None:
    assert (await cli("apply", "-f", "streams.yaml"))[0] == 0
    asked = commands(EXPLAIN, "streambroker")
    assert len(asked) == 5

    for line, reported in asked:
        _, out, _ = await cli(*shlex.split(line)[1:])
        assert out == reported, line


async def test_the_tour_ends_as_it_says(cli: Cli) -> None:
    lines = [shlex.split(line)[1:] for line, _ in commands(TOUR / "README.md", "streambroker")]
    codes = {
        " ".join(words): (await cli(*words))[0]
        for words in lines
        if words[0] not in ("up", "watch")
    }

    assert len(codes) == 10
    assert codes.pop("whatif -f changed.yaml") == 3
    assert set(codes.values()) == {0}


# ---- how-to/use-rest.md ------------------------------------------------------------------------


def curl() -> argparse.ArgumentParser:
    """Return a reader of what the page gives to curl."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("-X", dest="method")
    parser.add_argument("-H", dest="headers", action="append", default=[])
    parser.add_argument("-d", dest="data")
    parser.add_argument("--json")
    parser.add_argument("-N", dest="endless", action="store_true")
    parser.add_argument("url")
    return parser


async def asked(session: aiohttp.ClientSession, line: str, rest: Rest, tag: str) -> str:
    """Do what curl does, and return what it would print; of what never ends, two events."""
    base = rest.url + "/api/subscriptions"
    words = [word.replace("$B", base).replace("$TAG", tag) for word in shlex.split(line)[1:]]
    given = curl().parse_args(words)
    headers = dict(header.split(": ", 1) for header in given.headers)
    if given.json is not None:
        headers["Content-Type"] = "application/json"
    data = given.data if given.json is None else given.json
    method = given.method or ("GET" if data is None else "POST")
    async with session.request(method, given.url, data=data, headers=headers) as answer:
        if not given.endless:
            return await answer.text()
        greeting = await answer.content.readuntil(b"\n\n")
        path = "/job/alerts/pe/0/import/trades/filter"
        assert (await rest("PUT", path, {"filter": "price > 30.0"})).status == 200
        return (greeting + await answer.content.readuntil(b"\n\n")).decode()


async def test_what_is_asked_by_hand_is_answered_as_the_page_says(rest: Rest, cli: Cli) -> None:
    assert (await cli("apply", "-f", "streams.yaml"))[0] == 0
    assert f"$ B={BASE}\n" in BY_HAND.read_text()
    lines, tag = commands(BY_HAND, "curl"), ""
    assert len([line for line, _ in lines if not line.startswith("TAG=")]) >= 9

    for line, reported in lines:
        if line.startswith("TAG="):
            read = await rest("HEAD", "/job/alerts/pe/0/import/trades")
            tag = read.headers["ETag"]
            continue
        said = await asyncio.wait_for(asked(rest.session, line, rest, tag), 20.0)
        assert is_like(said, reported), (line, said)
