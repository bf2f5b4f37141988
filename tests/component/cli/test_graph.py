"""``graph``: the streams between jobs as a picture."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.brokers.brokers import EXPORT, IMPORT, TOKENS, running_broker
from support.brokers.commands import Cli

LONELY = {"subscription": 'kind == "quote"'}


@pytest.fixture
async def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> AsyncIterator[Cli]:
    """A broker with two routes from one job to two, and an import without a route."""
    async with running_broker(tmp_path / "broker.db") as (_, rest):
        await rest("PUT", "/job/feed/pe/0/export/trades", EXPORT)
        for job in ("alerts", "archive"):
            await rest("PUT", f"/job/{job}/pe/0/import/in", IMPORT)
        await rest("PUT", "/job/audit/pe/0/import/quotes", LONELY)
        yield Cli(rest, capsys, tmp_path)


async def test_all_jobs_are_drawn_with_their_routes(cli: Cli) -> None:
    code, out, err = await cli("graph")

    assert (code, err) == (0, "")
    assert out.startswith("flowchart LR\n")
    for job in ("feed", "alerts", "archive", "audit"):
        assert f'["default/{job}' in out
    assert "application" not in out
    assert out.count("trades → in: wait, unknown<br/>filter price #62; 10.0") == 2


async def test_only_a_job_and_its_neighbours_are_drawn(cli: Cli) -> None:
    one = json.loads((await cli("graph", "alerts", "-o", "json"))[1])
    two = json.loads((await cli("graph", "alerts", "--hops", "2", "-o", "json"))[1])
    both = json.loads((await cli("graph", "alerts", "default/audit", "-o", "json"))[1])

    assert [node["job"] for node in one["nodes"]] == ["alerts", "feed"]
    assert [node["job"] for node in two["nodes"]] == ["alerts", "archive", "feed"]
    assert [node["job"] for node in both["nodes"]] == ["alerts", "audit", "feed"]


async def test_a_search_draws_what_it_finds(cli: Cli) -> None:
    found = json.loads((await cli("graph", "--match", "audit", "-o", "json"))[1])

    assert [node["job"] for node in found["nodes"]] == ["audit"]


@pytest.mark.parametrize(
    ("output", "dashed"),
    [("mermaid", "-.->"), ("dot", "style=dashed"), ("html", "stroke-dasharray")],
)
async def test_refused_pairs_are_added_with_the_reason(cli: Cli, output: str, dashed: str) -> None:
    plain = (await cli("graph", "-o", output))[1]
    code, out, _ = await cli("graph", "-o", output, "--why")
    answer = json.loads((await cli("graph", "-o", "json", "--near", "1"))[1])

    assert (code, dashed in plain, dashed in out) == (0, False, True)
    assert re.search(r"kind.{1,20}trade", out)
    (pair,) = answer["refused"]
    assert (pair["export"], pair["import"]) == (
        "default/feed/0/trades",
        "default/audit/0/quotes",
    )


async def test_a_drawing_is_bounded_and_names_its_limit(cli: Cli) -> None:
    _, out, _ = await cli("graph", "--limit", "3")

    assert "%% 4 jobs and 2 routes, at most 3 nodes and edges drawn." in out
    assert "Folded" in out
    assert 'n1[["market.Feed<br/>default, 1 job"]]' in out
    assert '"2 routes, unknown"' in out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nope"], 1, "There is no job default/nope."),
        (["--limit", "0"], 2, "not a number from 1 to 2000"),
        (["--near", "21"], 2, "not a number from 1 to 20"),
        (["-o", "svg"], 2, "none of mermaid, dot, html, json"),
        (["a", "b", "--limit", "1"], 2, "do not fit"),
        (["--match", "kind =="], 1, "Invalid subscription"),
    ],
)
async def test_what_cannot_be_drawn_is_refused(
    cli: Cli, arguments: list[str], code: int, message: str
) -> None:
    found, _, err = await cli("graph", *arguments)

    assert (found, message in err) == (code, True), err


async def test_a_drawing_holds_no_token(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMBROKER_TOKEN", TOKENS["ops"])
    for output in ("mermaid", "dot", "html", "json"):
        code, out, err = await cli("graph", "-o", output)
        assert code == 0
        assert TOKENS["ops"] not in out + err


async def test_the_drawing_in_the_readme_is_what_the_command_draws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (Path(__file__).parents[3] / "README.md").read_text()
    (block,) = re.findall(r"```mermaid\n(flowchart LR.*?)```", text, re.DOTALL)
    async with running_broker(tmp_path / "readme.db") as (_, rest):
        properties = {"properties": {"kind": "trade", "level": 2}}
        await rest("PUT", "/job/ticker/pe/0/export/trades", properties)
        wanted = {"subscription": 'kind == "trade"', "filter": "price > 50"}
        await rest("PUT", "/job/screen/pe/0/import/trades", wanted)
        reader = {"import": "default/screen/0/trades", "reader": "r", "alive": True, "lagEpochs": 1}
        report = {"exports": {"trades": {"readers": [reader]}}, "imports": {}}
        await rest("PUT", "/job/ticker/pe/0/report", report)
        _, out, _ = await Cli(rest, capsys, tmp_path)("graph")

    assert out == block
