"""Errands between broker and agent: what is written is read again, all else is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from streambroker_core.errors import ManifestError
from streambroker_core.wire.broker.agent_commands import (
    APPEND,
    EMIT,
    MAX_COMMANDS,
    AgentCommand,
    CommandResult,
    decode_commands,
    decode_results,
    encode_commands,
    encode_results,
    make_command,
)

ID = "0123456789abcdef" * 2


def test_commands_and_answers_are_read_as_they_were_written() -> None:
    commands = [make_command(EMIT, {"export": "trades", "what": {"type": "set"}}, ID)]
    done = [
        CommandResult(id=ID, answer={"id": "a/0"}),
        CommandResult(id=ID[::-1], code="ExportFull", detail="it is full."),
    ]

    assert decode_commands(encode_commands(commands)) == commands
    assert decode_results(encode_results(done)) == done
    assert decode_results({}) == []
    assert decode_commands({"errands": None}) == []


def test_the_reason_of_an_agent_is_cut_to_what_is_read() -> None:
    (reported,) = decode_results(
        encode_results([CommandResult(id=ID, code="Failed", detail="é" * 10_000)])
    )

    assert reported.detail == "é" * 4_000


@pytest.mark.parametrize(
    ("done", "where"),
    [
        ("x", "done"),
        ([{"id": ID}], "done[0].code"),
        ([{"id": ID, "code": "no code", "detail": "x"}], "done[0].code"),
        ([{"id": ID, "code": "Failed"}], "done[0].detail"),
        ([{"id": "../..", "answer": {}}], "done[0].id"),
        ([{"id": ID, "answer": 1}], "done[0].answer"),
        ([{"id": ID, "answer": {}}] * (MAX_COMMANDS + 1), "done"),
    ],
)
def test_a_wrong_answer_is_refused_with_its_place(done: Any, where: str) -> None:
    with pytest.raises(ManifestError) as raised:
        decode_results({"done": done})

    assert raised.value.path == where


def test_a_command_is_the_same_if_it_asks_for_the_same() -> None:
    body = {"request": "a", "what": {"type": "set"}}
    same = make_command(EMIT, dict(reversed(body.items())))

    assert make_command(EMIT, body) == same
    assert same.body == body
    assert same.id != make_command(EMIT, {**body, "request": "b"}).id
    assert same.id != make_command(APPEND, body).id


def test_what_is_nested_without_end_is_refused_where_it_is_written_and_where_it_is_read() -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ManifestError):
        make_command(EMIT, {"what": deep})

    text = "[" * 100_000 + "]" * 100_000
    (read,) = decode_commands(encode_commands([AgentCommand(id=ID, action=EMIT, text=text)]))
    with pytest.raises(ManifestError):
        _ = read.body
