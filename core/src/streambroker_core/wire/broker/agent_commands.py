"""Commands from the broker to an agent, and their results.

The broker cannot call an agent. A hint, or the response to a poll, announces a command. The agent
sends results ``{"done": [...]}`` and receives commands ``{"errands": [...]}`` until there is none.
A command that is fetched twice runs twice, so every action has to be idempotent.

Functions raise `ManifestError` on a missing or wrong field, or a body that is not JSON.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from streambroker_core.errors import ManifestError
from streambroker_core.wire.encoding.canonical import JsonObject, JsonValue, canonical
from streambroker_core.wire.encoding.fields import Fields

EMIT: Final = "export.emit"
EMITTED: Final = "export.emitted"
APPEND: Final = "control.append"
ENTRY: Final = "control.entry"
PEEK: Final = "export.peek"
SNAPSHOT: Final = "agent.snapshot"
ACTIONS: Final = (EMIT, EMITTED, APPEND, ENTRY, PEEK, SNAPSHOT)
"""Actions a broker may request; the agent's own job requests the same."""
MAX_PEEK_ROWS: Final = 1_000
"""Maximum rows of one answer to `PEEK`."""
HEADER: Final = "Errands"
"""Response header of a poll: a command waits."""
MAX_COMMANDS: Final = 100
"""Maximum commands, or results, of one message."""
FAILED: Final = "InternalError"
"""Code of a command that failed for a reason in the agent's log."""

_ID = re.compile(r"[0-9a-f]{32}")
_CODE = re.compile(r"[A-Z][A-Za-z]{0,63}")
_MAX_DETAIL = 4_000
_MAX_TEXT = 2 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCommand:
    """A command to an agent.

    Attributes:
        id: 32 hexadecimal digits; repeated requests for one command have the same id.
        action: one of `ACTIONS`.
        text: the action's body as JSON, carried as text of any nesting depth.
    """

    id: str
    action: str
    text: str

    @property
    def body(self) -> dict[str, Any]:
        """The action's body, a new object on each access."""
        try:
            return dict(Fields(json.loads(self.text)).raw())
        except (ValueError, RecursionError) as error:
            raise ManifestError(path="body", reason=f"is not JSON: {error}") from error


def make_command(action: str, body: Mapping[str, Any], id_: str | None = None) -> AgentCommand:
    """Return a command; the default id is a hash of action and body."""
    try:
        text = canonical(body).decode()
    except (ValueError, RecursionError) as error:
        raise ManifestError(path="", reason=f"cannot be written as JSON: {error}") from error
    digest = hashlib.sha256(f"{action}\n{text}".encode()).hexdigest()[:32]
    return AgentCommand(id=digest if id_ is None else id_, action=action, text=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """Result of a command: ``answer``, or ``code`` and ``detail`` of the failure."""

    id: str
    answer: Mapping[str, Any] | None = None
    code: str = ""
    detail: str = ""


def encode_commands(commands: Sequence[AgentCommand]) -> JsonObject:
    """Return the message that carries commands."""
    return {
        "errands": [
            {"id": command.id, "action": command.action, "body": command.text}
            for command in commands
        ]
    }


def decode_commands(data: object) -> list[AgentCommand]:
    """Read a message that carries commands."""
    commands = []
    for entry in Fields(data).entries("errands", max_items=MAX_COMMANDS):
        text = entry.text("body", longest=_MAX_TEXT)
        commands.append(AgentCommand(id=_read_id(entry), action=entry.text("action"), text=text))
    return commands


def encode_results(results: Sequence[CommandResult]) -> dict[str, JsonValue]:
    """Return the message that carries results."""
    return {
        "done": [
            {"id": result.id, "code": result.code, "detail": result.detail[:_MAX_DETAIL]}
            if result.answer is None
            else {"id": result.id, "answer": dict(result.answer)}
            for result in results
        ]
    }


def decode_results(data: object) -> list[CommandResult]:
    """Read a message that carries results."""
    results = []
    for entry in Fields(data).entries("done", max_items=MAX_COMMANDS):
        if entry.has("answer"):
            answer = dict(entry.child("answer").raw())
            results.append(CommandResult(id=_read_id(entry), answer=answer))
            continue
        code = entry.text("code", check=lambda c: _CODE.fullmatch(c) is not None, expected="a code")
        detail = entry.text("detail", longest=4 * _MAX_DETAIL)
        results.append(CommandResult(id=_read_id(entry), code=code, detail=detail))
    return results


def _read_id(fields: Fields) -> str:
    return fields.text(
        "id", check=lambda t: _ID.fullmatch(t) is not None, expected="32 hexadecimal digits"
    )
