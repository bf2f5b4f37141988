"""The page of the command line has every command, every option and every exit code."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from streambroker_operator.cli import app as commands
from streambroker_operator.cli.commands.top import COLUMNS
from streambroker_operator.cli.io import errors
from streambroker_operator.cli.io.targets import KIND_ALIASES

PAGE = (Path(__file__).parents[2] / "docs/cli.md").read_text()
PROSE = re.sub(r"^```.*?^```$", "", PAGE, flags=re.MULTILINE | re.DOTALL)
DESCRIBED = set(re.findall(r"`([^`\n]+)`", PROSE))
HELP = {"--help", "-h"}


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each command, and the root's without a name."""
    root = commands._parser()
    found = {"": root}
    for action in root._actions:
        if isinstance(action, argparse._SubParsersAction):
            found.update(action.choices)
    return found


def words_of(text: str) -> set[str]:
    """Return the words in the code spans of a text."""
    return {word for code in re.findall(r"`([^`\n]+)`", text) for word in re.split(r"[ =|]", code)}


def flags_of(parser: argparse.ArgumentParser) -> list[set[str]]:
    """Return the options of a command, each with all its spellings."""
    found = [set(action.option_strings) for action in parser._actions]
    return [flags for flags in found if flags and not flags & HELP]


@pytest.mark.parametrize("command", sorted(parsers()))
def test_a_command_and_its_options_are_documented(command: str) -> None:
    known, shared = parsers(), flags_of(parsers()[""])
    row = next((x for x in PROSE.splitlines() if command and x.startswith(f"| `{command}")), "")
    own = [flags for flags in flags_of(known[command]) if flags not in shared]

    assert row or not command
    assert [flags for flags in own if not flags & words_of(row)] == []
    assert set().union(*own, *shared) <= words_of(PROSE)


def test_every_exit_code_is_documented() -> None:
    section = PAGE.partition("\n## Exit codes\n")[2].partition("\n## ")[0]
    reported = {int(found) for found in re.findall(r"^\| (\d+) \|", section, re.MULTILINE)}
    known = {errors.OK, errors.REFUSED, errors.USAGE, errors.WOULD_CUT}

    assert reported == known | {errors.UNREACHABLE, errors.INTERRUPTED}


def test_every_word_for_a_kind_is_documented() -> None:
    assert set(KIND_ALIASES) <= DESCRIBED


def test_the_columns_of_top_are_documented() -> None:
    assert {"ROWS/S", "LAG", "LAG BYTES", "CONGESTION", "DROPPED", "AGE"} <= DESCRIBED & set(
        COLUMNS
    )
