"""``patterns``: rules of a job, as a person meets them."""

from __future__ import annotations

import json

import pytest

from support.brokers.commands import Cli

RULES = """\
id: dear
version: 1
pattern: {stages: [{name: a, where: price > 10}]}
---
apiVersion: streambroker.io/v1alpha1
kind: PatternProcessor
metadata: {name: cheap}
spec:
  job: alerts
  version: 2
  pattern: {stages: [{name: a, where: price < 1}]}
"""


@pytest.fixture
async def put(cli: Cli) -> Cli:
    file = cli.file.with_name("rules.yaml")
    file.write_text(RULES)
    code, said, _ = await cli("patterns", "put", "alerts", "-f", str(file))
    assert (code, said) == (
        0,
        "pattern alerts/dear created\npattern alerts/cheap created\n"
        "The job accepts or refuses it: `streambroker patterns list alerts`.\n",
    )
    return cli


async def test_rules_are_put_and_listed(put: Cli) -> None:
    code, said, _ = await put("patterns", "list", "alerts")
    lines = [line.split() for line in said.splitlines()]

    assert code == 0
    assert lines[0][:3] == ["ID", "VERSION", "ACTIVE"]
    assert [line[:3] for line in lines[1:]] == [["cheap", "2", "Unknown"], ["dear", "1", "Unknown"]]


async def test_a_list_can_be_put_again_and_changes_nothing(put: Cli) -> None:
    _, said, _ = await put("patterns", "list", "alerts", "-o", "yaml")
    again = put.file.with_name("again.yaml")
    again.write_text(said)

    code, reported, _ = await put("patterns", "put", "alerts", "-f", str(again))

    assert (code, reported) == (
        0,
        "pattern alerts/cheap unchanged\npattern alerts/dear unchanged\n",
    )


async def test_a_rule_is_shown_enabled_and_deleted(put: Cli) -> None:
    enabled = await put("patterns", "enable", "alerts/dear")
    shown = await put("patterns", "get", "alerts/dear", "-o", "json")
    gone = await put("patterns", "delete", "alerts/dear", "alerts/cheap")
    left = await put("patterns", "list", "alerts")

    assert enabled[:2] == (0, "pattern alerts/dear enabled\n")
    assert json.loads(shown[1])["spec"]["enable"] == 1
    assert gone[:2] == (0, "pattern alerts/dear deleted\npattern alerts/cheap deleted\n")
    assert left[:2] == (0, "no rules for job alerts\n")


async def test_a_rule_that_cannot_be_run_is_reported_with_its_place(cli: Cli) -> None:
    file = cli.file.with_name("bad.yaml")
    file.write_text("{id: dear, version: 1, pattern: {stages: [{name: a, where: price >}]}}")

    code, _, error = await cli("patterns", "put", "alerts", "-f", str(file))

    assert code == 1
    assert "ConditionInvalid" in error
    assert "pattern.stages[0].where, line 1, column 8" in error


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("lst", "alerts"), "Did you mean"),
        (("list",), "Name one job"),
        (("list", "alerts/dear"), "Name one job"),
        (("get", "alerts"), "JOB/ID"),
        (("enable",), "JOB/ID"),
        (("put", "alerts"), "takes files"),
        (("list", "alerts", "-f", "x"), "takes files"),
    ],
)
async def test_a_command_that_means_nothing_is_refused(
    cli: Cli, words: tuple[str, ...], said: str
) -> None:
    code, _, error = await cli("patterns", *words)

    assert code == 2
    assert said in error


async def test_what_is_not_there_is_said(cli: Cli) -> None:
    code, _, error = await cli("patterns", "enable", "alerts/nobody")

    assert code == 1
    assert "UnknownRule" in error


@pytest.mark.parametrize(
    "words",
    [
        ("get", "patterns"),
        ("get", "patterns", "alerts"),
        ("get", "PatternProcessor/dear"),
        ("describe", "rule/alerts/dear"),
        ("delete", "pattern", "alerts/dear"),
    ],
)
async def test_a_command_for_ports_names_the_command_for_rules(
    cli: Cli, words: tuple[str, ...]
) -> None:
    code, _, error = await cli(*words)

    assert code in (1, 2)
    assert "a command of their own, `streambroker patterns`: `list JOB`" in error


@pytest.mark.parametrize("command", ["apply", "whatif", "delete"])
async def test_a_rule_in_a_file_of_ports_is_refused_with_its_command(
    cli: Cli, command: str
) -> None:
    file = cli.file.with_name("rules.yaml")
    file.write_text(RULES)

    code, _, error = await cli(command, "-f", str(file))

    assert code == 1
    for number in (1, 2):
        assert f"document {number} is a pattern rule, not an Export or Import" in error
    assert "`streambroker patterns put JOB -f FILE` takes it" in error
