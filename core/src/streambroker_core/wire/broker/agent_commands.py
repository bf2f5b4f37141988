"""What a broker asks of an agent, and what the agent answers: errands.

A broker has no way to call an agent. It tells the agent by a hint, or with a poll, that an errand
waits; the agent fetches it, does it, and brings the answer: ``{"done": [...]}`` there,
``{"errands": [...]}`` back, until there is none. An errand that is fetched twice is done twice:
whatever is asked here has to be such that this changes nothing more.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from streambroker_core.errors import ManifestError
from streambroker_core.wire.encoding.canonical import canonical
from streambroker_core.wire.encoding.fields import Fields

EMIT: Final = "export.emit"
EMITTED: Final = "export.emitted"
APPEND: Final = "control.append"
ENTRY: Final = "control.entry"
ACTIONS: Final = (EMIT, EMITTED, APPEND, ENTRY)
"""What a broker may ask for, as the agent's own job does."""
HEADER: Final = "Errands"
"""Of the answer to a poll: something waits."""
MAX_COMMANDS: Final = 100
"""Errands, and answers, of one message."""
FAILED: Final = "InternalError"
"""Code of an answer of an agent that could not do it, for a reason that its log tells."""

_ID = re.compile(r"[0-9a-f]{32}")
_CODE = re.compile(r"[A-Z][A-Za-z]{0,63}")
_MAX_DETAIL = 4_000
_MAX_TEXT = 2 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCommand:
    """What is asked.

    Attributes:
        id: 32 hexadecimal digits; of what is to be done once, the same whenever that is asked.
        action: one of `ACTIONS`.
        text: what the action takes, as JSON: it is carried as text, however deep it is nested.
    """

    id: str
    action: str
    text: str

    @property
    def body(self) -> dict[str, Any]:
        """What the action takes; a new one each time.

        Raises:
            ManifestError: it is no JSON object.
        """
        try:
            return dict(Fields(json.loads(self.text)).raw())
        except (ValueError, RecursionError) as error:
            raise ManifestError(path="body", reason=f"is no JSON: {error}") from error


def make_command(action: str, body: Mapping[str, Any], id_: str | None = None) -> AgentCommand:
    """Return an errand; without an id, the one that is the same for the same action and body.

    Raises:
        ManifestError: its body cannot be written as JSON.
    """
    try:
        text = canonical(body).decode()
    except (ValueError, RecursionError) as error:
        raise ManifestError(path="", reason=f"cannot be written as JSON: {error}") from error
    same = hashlib.sha256(f"{action}\n{text}".encode()).hexdigest()[:32]
    return AgentCommand(id=same if id_ is None else id_, action=action, text=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """What an agent answers: ``answer``, or else ``code`` and ``detail`` of why not."""

    id: str
    answer: Mapping[str, Any] | None = None
    code: str = ""
    detail: str = ""


def encode_commands(commands: Sequence[AgentCommand]) -> dict[str, Any]:
    """Return the message to the agent."""
    return {"errands": [{"id": e.id, "action": e.action, "body": e.text} for e in commands]}


def decode_commands(data: object) -> list[AgentCommand]:
    """Read the message to the agent.

    Raises:
        ManifestError: a field is missing or wrong.
    """
    fields = Fields(data)
    found = []
    for number, item in enumerate(fields.items("errands", max_items=MAX_COMMANDS)):
        one = fields.entry("errands", number, item)
        text = one.text("body", longest=_MAX_TEXT)
        found.append(AgentCommand(id=_read_id(one), action=one.text("action"), text=text))
    return found


def encode_results(results: Sequence[CommandResult]) -> dict[str, Any]:
    """Return the message of the agent."""
    return {
        "done": [
            {"id": d.id, "code": d.code, "detail": d.detail[:_MAX_DETAIL]}
            if d.answer is None
            else {"id": d.id, "answer": dict(d.answer)}
            for d in results
        ]
    }


def decode_results(data: object) -> list[CommandResult]:
    """Read the message of the agent.

    Raises:
        ManifestError: a field is missing or wrong.
    """
    fields = Fields(data)
    found = []
    for number, item in enumerate(fields.items("done", max_items=MAX_COMMANDS)):
        one = fields.entry("done", number, item)
        if one.has("answer"):
            found.append(CommandResult(id=_read_id(one), answer=dict(one.child("answer").raw())))
            continue
        code = one.text("code", check=lambda c: _CODE.fullmatch(c) is not None, expected="a code")
        detail = one.text("detail", longest=4 * _MAX_DETAIL)
        found.append(CommandResult(id=_read_id(one), code=code, detail=detail))
    return found


def _read_id(fields: Fields) -> str:
    return fields.text(
        "id", check=lambda t: _ID.fullmatch(t) is not None, expected="32 hexadecimal digits"
    )
