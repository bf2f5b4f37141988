"""Completion: words that are always there, and names that a broker knows, if it answers at once."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from streambroker_operator.cli import completion, main
from support.brokers.brokers import EXPORT, IMPORT, running_broker

SHELLS = ("bash", "zsh", "fish")


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    """A broker with one Export and one Import."""
    async with running_broker(tmp_path / "broker.db") as (_, rest):
        await rest("PUT", "/job/feed/pe/0/export/trades", EXPORT)
        await rest("PUT", "/job/alerts/pe/0/import/trades", IMPORT)
        yield rest.url


def completed(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(["__complete", *words]) == 0
    return capsys.readouterr().out.split()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["ge"], ["get"]),
        (["set-"], ["set-filter", "set-properties", "set-subscription"]),
        (["get", "ex"], ["exports"]),
        (["get", "-o", ""], ["table", "wide", "json", "yaml", "name"]),
        (["apply", "--dry-run", "s"], ["server"]),
        (["whatif", "--max"], ["--max-removed"]),
        (["completion", ""], list(SHELLS)),
        (["-n", "lab", "desc"], ["describe"]),
        (["nonsense", ""], []),
        (["apply", "-f", ""], []),
        (["--t"], ["--tls-server-name", "--token-file"]),
    ],
)
def test_words_are_completed_without_a_broker(
    words: list[str], found: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert completed(capsys, *words) == found


def test_every_command_is_completed(capsys: pytest.CaptureFixture[str]) -> None:
    found = completed(capsys, "")

    assert {"up", "get", "describe", "apply", "delete", "explain", "lint", "whatif"} <= set(found)
    assert {"watch", "top", "completion", "version"} <= set(found)
    assert "__complete" not in found


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["get", "exports", ""], ["feed-0-trades"]),
        (["get", "export/f"], ["export/feed-0-trades"]),
        (["describe", "im", ""], ["alerts-0-trades"]),
        (["delete", "import", "a"], ["alerts-0-trades"]),
        (["get", "pe", ""], ["alerts/0", "feed/0"]),
        (["get", "routes", ""], ["alerts/0/trades", "feed/0/trades"]),
        (["set-filter", ""], ["alerts/0/trades"]),
        (["top", ""], ["feed/0/trades", "alerts/0/trades"]),
        (["emit", ""], ["feed/0/trades", "alerts/0", "feed/0"]),
        (["emit", "--timeout", "5", "t"], []),
        (["whatif", "--delete", "im"], ["import/alerts-0-trades"]),
        (["-n", ""], ["default"]),
        (["set-properties", ""], ["feed/0/trades"]),
        (["explain", "al"], ["alerts/0/trades"]),
        (["explain", "alerts/0/trades", "f"], ["feed/0/trades"]),
        (["explain", "export", ""], ["feed/0/trades"]),
        (["get", "-n", "lab", "exports", ""], []),
    ],
)
async def test_names_come_from_the_broker(
    url: str,
    words: list[str],
    found: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STREAMBROKER_URL", url)

    assert await asyncio.to_thread(completed, capsys, *words) == found


async def test_a_name_that_a_shell_would_run_is_refused_and_a_port_of_odd_letters_has_a_plain_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_broker(tmp_path / "broker.db") as (_, rest):
        for name in ("$(reboot)", "a\nb", "-rf"):
            body = {
                "apiVersion": "streambroker.io/v1alpha1",
                "kind": "Export",
                "metadata": {"name": name},
                "spec": {"job": "feed", "port": "p", "streamId": "s"},
            }
            answer = await rest("PUT", "/job/feed/pe/0/export/p", body)
            assert (answer.status, answer.body["code"]) == (422, "ManifestInvalid")
        await rest("PUT", "/job/feed/pe/0/export/_Odd-", {"streamId": "s"})
        monkeypatch.setenv("STREAMBROKER_URL", rest.url)
        found = await asyncio.to_thread(completed, capsys, "get", "exports", "")
        await asyncio.to_thread(main, ["get", "exports", "-o", "name"])

    assert found == ["feed-0--odd"]
    assert capsys.readouterr().out.split() == ["export/feed-0--odd"]


def test_a_broker_that_is_away_or_silent_completes_nothing_and_says_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("STREAMBROKER_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert completed(capsys, "get", "exports", "") == []
    monkeypatch.setenv("STREAMBROKER_URL", "http://127.0.0.1:1")
    assert completed(capsys, "get", "exports", "") == []
    monkeypatch.setenv("STREAMBROKER_TOKEN", "two words")
    assert completed(capsys, "get", "exports", "") == []


async def test_bash_completes_with_the_script_that_is_printed(url: str) -> None:
    script = """
        source <(streambroker completion bash)
        COMP_WORDS=(streambroker get export/f); COMP_CWORD=2; _streambroker; echo "${COMPREPLY[@]}"
        COMP_WORDS=(streambroker get ""); COMP_CWORD=2; _streambroker; echo "${COMPREPLY[@]}"
        COMP_WORDS=(streambroker descr); COMP_CWORD=1; _streambroker; echo "${COMPREPLY[@]}"
        complete -p streambroker
    """
    bash = shutil.which("bash")
    assert bash is not None
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    run = await asyncio.to_thread(
        subprocess.run,
        [bash, "--noprofile", "--norc", "-c", script],
        env={**os.environ, "PATH": path, "STREAMBROKER_URL": url},
        capture_output=True,
        text=True,
        check=True,
    )

    assert run.stderr == ""
    assert run.stdout.splitlines() == [
        "export/feed-0-trades",
        "exports imports pes routes all",
        "describe",
        "complete -o default -F _streambroker streambroker",
    ]


@pytest.mark.parametrize("shell", SHELLS)
def test_each_script_asks_the_command_itself(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out

    assert f"streambroker completion {shell}" in script
    assert "streambroker __complete" in script
