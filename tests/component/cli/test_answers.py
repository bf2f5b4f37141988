"""Answers that are lost, late, or not a broker's: what a command says, and what was changed."""

from __future__ import annotations

import re
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from streambroker_operator.cli import main
from support.brokers.commands import Cli
from support.brokers.lossy_proxy import Cutter


@pytest.fixture
def cutter(applied: Cli) -> Iterator[Cutter]:
    """A way to the broker on which answers are lost."""
    found = Cutter(applied.rest.url)
    yield found
    found.close()


# ---- lost answers ------------------------------------------------------------------------------


async def generation(cli: Cli) -> Any:
    body = (await cli.rest("GET", "/job/alerts/pe/0/import/trades")).body
    return body["metadata"]["generation"]


async def test_a_change_whose_answer_is_lost_is_asked_for_again_and_made_once(
    applied: Cli, cutter: Cutter
) -> None:
    before = await generation(applied)
    cutter.cuts = 1
    code, out, err = await applied("set-filter", "alerts/0/trades", "price > 7.0", url=cutter.url)
    ids = [re.findall(rb"(?i)request-id: ([0-9a-f]{32})", asked) for asked in cutter.requests]

    assert (code, err, len(ids)) == (0, "", 2)
    assert "filter set" in out
    assert ids[0] == ids[1] != []
    assert await generation(applied) == before + 1


async def test_of_a_set_whose_answer_is_lost_it_is_said_that_it_was_made(
    applied: Cli, cutter: Cutter
) -> None:
    head = "---\napiVersion: streambroker.io/v1alpha1\nkind: Export\n"
    specs = [f"spec: {{job: many, port: p{n}, properties: {{n: {n}}}}}\n" for n in range(100)]
    applied.file.write_text("".join(head + spec for spec in specs))
    cutter.cuts = 1
    code, out, err = await applied("apply", "-f", str(applied.file), url=cutter.url)

    assert (code, err, cutter.lost, len(cutter.requests)) == (0, "", 1, 2)
    assert out.startswith("done; the effect on routes ")
    assert len((await applied.rest("GET", "/exports")).body["items"]) == 101


async def test_if_no_answer_comes_it_is_said_that_the_change_may_have_been_made(
    applied: Cli, cutter: Cutter
) -> None:
    cutter.cuts = 9
    code, out, err = await applied("set-filter", "alerts/0/trades", "price > 7.0", url=cutter.url)

    assert (code, out, cutter.lost) == (4, "", 2)
    assert "It is not known whether the change was made; check with `streambroker get`" in err
    assert err.count("\n") == 1


async def test_a_broker_that_was_not_reached_changed_nothing(applied: Cli) -> None:
    code, _, err = await applied("delete", "export/feed/0/trades", url="http://127.0.0.1:1")

    assert (code, "not known" in err) == (4, False)


def test_a_silent_broker_is_not_taken_for_one_that_was_not_started(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        code = main(["--url", url, "get", "exports", "--request-timeout", "0.05"])
    err = capsys.readouterr().err

    assert code == 4
    assert "--request-timeout waits longer" in err
    assert "streambroker up" not in err


def test_an_empty_address_in_the_environment_is_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMBROKER_URL", "")
    monkeypatch.setattr("streambroker_operator.cli.io.options.DEFAULT_URL", "http://127.0.0.1:1")

    assert main(["get"]) == 4
    assert "http://127.0.0.1:1" in capsys.readouterr().err


# ---- answers of others --------------------------------------------------------------------------


@contextmanager
def answering(raw: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """Answer every request with the same bytes; yield the address and what was asked."""
    asked: list[bytes] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while (line := self.rfile.readline()).strip():
                asked.append(line)
            self.wfile.write(raw)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", asked
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("raw", "code", "said"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>", 1, "is not a broker"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 6\r\n\r\n<html>", 1, "Http404: The server"),
        (b'HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"items": []', 4, "was cut off"),
        (b"nonsense\r\n\r\n", 4, "No broker answers"),
        (b"", 4, "No broker answers"),
    ],
)
def test_what_is_no_broker_or_breaks_off_is_said_in_one_line(
    raw: bytes, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(raw) as (url, _):
        found = main(["--url", url, "get", "exports"])
    out, err = capsys.readouterr()

    assert (found, out) == (code, "")
    assert said in err
    assert err.count("\n") == 1


def test_a_token_is_not_carried_to_where_an_answer_points(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STREAMBROKER_TOKEN", "correct-horse-battery")
    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}") as (elsewhere, stolen):
        moved = f"HTTP/1.1 302 Found\r\nLocation: {elsewhere}/\r\nContent-Length: 0\r\n\r\n"
        with answering(moved.encode()) as (url, asked):
            code = main(["--url", url, "get", "exports"])

    assert code == 1
    assert any(b"correct-horse-battery" in line for line in asked)
    assert stolen == []
