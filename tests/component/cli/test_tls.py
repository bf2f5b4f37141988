"""The command line and a broker that speaks TLS."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.brokers.brokers import running_broker
from support.brokers.commands import Cli
from support.processes.certificates import Authority, also_by_tls


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "tls", "first")


@pytest.fixture
async def plain(
    tmp_path: Path, authority: Authority, capsys: pytest.CaptureFixture[str]
) -> AsyncIterator[tuple[Cli, int]]:
    """A broker, and its port where it speaks TLS."""
    async with (
        running_broker(tmp_path / "broker.db") as (broker, rest),
        also_by_tls(broker, authority.context()) as port,
    ):
        yield Cli(rest, capsys, tmp_path), port


@pytest.mark.parametrize("way", ["option", "environment"])
async def test_commands_go_by_tls_where_the_ca_is_given(
    plain: tuple[Cli, int], authority: Authority, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli, port = plain
    given = ["--ca", str(authority.ca)] if way == "option" else []
    if way == "environment":
        monkeypatch.setenv("STREAMBROKER_CA", str(authority.ca))
    url = f"https://127.0.0.1:{port}"
    applied = await cli(*given, "apply", "-f", str(cli.file), url=url)
    code, out, _ = await cli("get", "exports", *given, "-o", "name", url=url)

    assert applied[0] == 0, applied
    assert (code, out) == (0, "export/feed-trades\n")


async def test_without_the_ca_the_remedy_is_reported(plain: tuple[Cli, int]) -> None:
    cli, port = plain
    code, _, err = await cli("get", url=f"https://127.0.0.1:{port}")

    assert code == 4
    assert "give the CA's file with --ca or STREAMBROKER_CA." in err


async def test_a_certificate_for_another_name_is_refused(
    plain: tuple[Cli, int], authority: Authority
) -> None:
    cli, port = plain
    code, _, err = await cli("get", "--ca", str(authority.ca), url=f"https://localhost:{port}")

    assert (code, "Its certificate is for another name" in err) == (4, True)


async def test_the_name_of_the_certificate_can_be_given(
    plain: tuple[Cli, int], authority: Authority
) -> None:
    cli, port = plain
    name = ["--ca", str(authority.ca), "--tls-server-name"]
    url = f"https://localhost:{port}"
    right = await cli("get", *name, "127.0.0.1", url=url)
    wrong = await cli("get", *name, "localhost", url=url.replace("localhost", "127.0.0.1"))

    assert right[0] == 0, right
    assert (wrong[0], "Its certificate is for another name" in wrong[2]) == (4, True)


async def test_https_where_the_broker_speaks_no_tls_says_to_use_http(
    plain: tuple[Cli, int],
) -> None:
    cli, _ = plain
    code, _, err = await cli("get", url=cli.rest.url.replace("http:", "https:"))

    assert (code, f"If it does not use TLS, use {cli.rest.url}." in err) == (4, True)


@pytest.mark.parametrize("command", ["get", "apply"])
async def test_http_where_the_broker_speaks_tls_says_to_use_https(
    plain: tuple[Cli, int], command: str
) -> None:
    cli, port = plain
    words = [command] if command == "get" else [command, "-f", str(cli.file)]
    code, _, err = await cli(*words, url=f"http://127.0.0.1:{port}")

    assert (code, f"If it uses TLS, use https://127.0.0.1:{port}." in err) == (4, True)


@pytest.mark.parametrize("text", [None, "no certificate"])
async def test_a_ca_that_cannot_be_used_is_a_wrong_command_line(
    plain: tuple[Cli, int], tmp_path: Path, text: str | None
) -> None:
    cli, port = plain
    file = tmp_path / "ca.crt"
    if text is not None:
        file.write_text(text)
    code, _, err = await cli("get", "--ca", str(file), url=f"https://127.0.0.1:{port}")

    assert (code, f"Usage: The file {file}" in err, "Correct --ca" in err) == (2, True, True)
