"""A command starts fast: it does not load what only others need."""

from __future__ import annotations

import subprocess
import sys

import pytest

from streambroker_operator.cli import app

BROKER_ONLY = {"aiohttp", "lark", "kopf", "streambroker_core.board", "streambroker_core.matching"}
REQUEST_ONLY = {"asyncio", "http.client", "ssl", "subprocess", "urllib.request", "yaml"}


def modules_of(*words: str) -> set[str]:
    """Return the modules that a command has loaded when it has ended."""
    script = (
        "import sys\nfrom streambroker_operator.cli.app import main\n"
        f"main({[*words]!r})\nprint('modules', *sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(run.stdout.splitlines()[-1].split())


def test_the_command_line_loads_no_board_and_no_server() -> None:
    loaded = modules_of("--help")
    assert "streambroker_operator.cli.commands.up" in loaded
    assert not loaded & BROKER_ONLY


@pytest.mark.parametrize("words", [("version", "--client"), ("--version",), ("completion", "bash")])
def test_a_command_without_a_request_loads_no_client(words: tuple[str, ...]) -> None:
    loaded = modules_of(*words)
    assert "streambroker_operator.cli.app" in loaded
    assert not loaded & (BROKER_ONLY | REQUEST_ONLY)


@pytest.mark.parametrize(("module", "commands"), app.COMMANDS.items())
def test_a_module_adds_the_commands_of_the_table(module: str, commands: tuple[str, ...]) -> None:
    parser = app._parser(commands[0])
    [subparsers] = [one for one in parser._actions if one.dest == "commands" or one.choices]
    assert subparsers.choices is not None
    assert set(subparsers.choices) == {*commands, "help"}, module
