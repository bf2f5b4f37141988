"""Grants and passes: credentials that the agent of an export gives to a reader.

A grant lists the epochs planned for one reader, with filter and columns. It is signed with the
agent's token, which only processes of the job know. The agent also checks its plan. Text form:
``base64url(json)`` dot ``hex(mac)``.

A pass authenticates the reading agent: with it, the agent renews a reader's lease and registers its
plan again without a valid capability. A reader's id alone is no credential: it is in checkpoints
and logs.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from streambroker_core.errors import StreambrokerError
from streambroker_core.ledger.offset import column_names
from streambroker_core.wire.encoding.canonical import canonical

if TYPE_CHECKING:
    from pe_agent.agent.exports.stream.block_reader import ReadRequest

MAX_PASSES = 16_384
"""Passes that a process remembers: each plan of a reader needs its own."""


class GrantError(StreambrokerError):
    """The agent of the export has not granted this read; nothing was sent."""

    code = "GrantInvalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A reader's permission at an agent: epochs ``[first, next)`` by stream, filter and columns."""

    export: str
    reader: str
    ranges: Mapping[str, tuple[int, int]]
    filter: str | None
    columns: tuple[str, ...] | None

    def covers(self, read: ReadRequest, epoch: int) -> bool:
        """Return whether the grant covers this read of an epoch."""
        first, next_ = self.ranges.get(read.stream, (0, 0))
        requested = (read.reader, read.filter, column_names(read.columns))
        return first <= epoch < next_ and requested == (self.reader, self.filter, self.columns)


def sign(token: str, grant: Grant) -> str:
    """Return the signed text of a grant of the agent with this token; deterministic."""
    body = canonical({"v": 1, **asdict(grant)})
    return f"{base64.urlsafe_b64encode(body).decode()}.{_mac(token, body)}"


def check(token: str, ticket: Mapping[str, Any], read: ReadRequest) -> None:
    """Check the grant of a ticket against its read.

    Raises:
        GrantError: not signed by the agent with this token, or for another read.
    """
    grant, export = verify(token, ticket.get("grant")), str(ticket["export"])
    for epoch, _, _ in read.pieces:
        if grant.export != export or not grant.covers(read, epoch):
            raise GrantError(
                f"the grant is not for epoch {epoch} of stream {read.stream} of {export} with this"
                " reader, filter and columns."
            )


@lru_cache(maxsize=MAX_PASSES)
def pass_for(token: str, export: str, import_: str, reader: str) -> str:
    """Return the pass of a reader of an export; stable while the agent keeps its token."""
    text = canonical({"export": export, "import": import_, "reader": reader})
    return hmac.new(token.encode(), b"pass\0" + text, hashlib.sha256).hexdigest()


def verify(token: str, text: object) -> Grant:
    """Verify a signed text and return its grant.

    Raises:
        GrantError: the text is no grant, or not signed for the agent with this token.
    """
    encoded, _, mac = str(text or "").partition(".")
    try:
        body = base64.b64decode(encoded, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        body = b""
    if not body or not hmac.compare_digest(mac.encode(), _mac(token, body).encode()):
        raise GrantError(
            "the read has no grant of its export's agent; the next batch brings a"
            " new one (was the agent's data directory replaced?)."
        )
    fields: dict[str, Any] = json.loads(body)
    return Grant(
        export=fields["export"],
        reader=fields["reader"],
        ranges={s: (int(r[0]), int(r[1])) for s, r in fields["ranges"].items()},
        filter=fields["filter"],
        columns=column_names(fields["columns"]),
    )


def _mac(token: str, body: bytes) -> str:
    return hmac.new(token.encode(), b"grant\0" + body, hashlib.sha256).hexdigest()
