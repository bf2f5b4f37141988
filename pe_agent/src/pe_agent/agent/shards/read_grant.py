"""Grants and passes: what the home of an export gives a reader to show.

A grant is a ticket: the epochs that were planned for one reader, and under which filter. It is
signed with the token of the agent that has the blocks, which only processes of the job have. The
home looks at its plan as well; a fellow knows neither readers nor plans, and serves planned reads
also while the home is away. Text form: ``base64url(json)`` dot ``hex(mac)``.

A pass is for the agent that reads: with it, it renews a reader's lease and registers its plan again
where it has no capability that counts. A reader's id alone opens nothing: it is in checkpoints and
logs.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streambroker_core.errors import StreambrokerError
from streambroker_core.ledger.offset import column_names
from streambroker_core.wire.encoding.canonical import canonical

if TYPE_CHECKING:
    from pe_agent.agent.exports.stream.block_reader import ReadRequest


class GrantError(StreambrokerError):
    """A read that the home of the export has not granted; nothing was sent."""

    code = "GrantInvalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What a reader may read at a fellow: epochs ``[first, next)`` by stream, and how."""

    export: str
    reader: str
    ranges: Mapping[str, tuple[int, int]]
    filter: str | None
    columns: tuple[str, ...] | None

    def covers(
        self,
        reader: str,
        stream: str,
        epoch: int,
        filter_: str | None,
        columns: Sequence[str] | None,
    ) -> bool:
        """Whether it is for this read."""
        first, next_ = self.ranges.get(stream, (0, 0))
        asked = (reader, filter_, column_names(columns))
        return first <= epoch < next_ and asked == (self.reader, self.filter, self.columns)


def sign(token: str, grant: Grant) -> str:
    """Return the text of a grant for the fellow with this token; equal grants give equal texts."""
    body = canonical(
        {
            "v": 1,
            "export": grant.export,
            "reader": grant.reader,
            "ranges": {s: list(r) for s, r in grant.ranges.items()},
            "filter": grant.filter,
            "columns": None if grant.columns is None else list(grant.columns),
        }
    )
    return f"{base64.urlsafe_b64encode(body).decode()}.{_mac(token, body)}"


def check(token: str, ticket: Mapping[str, Any], read: ReadRequest) -> None:
    """Refuse a read that the grant of its ticket is not for.

    Raises:
        GrantError: it is not signed by the agent with this token, or is for another read.
    """
    grant, export = verify(token, ticket.get("grant")), str(ticket["export"])
    asked = read.reader, read.stream
    for epoch, _, _ in read.pieces:
        if grant.export != export or not grant.covers(*asked, epoch, read.filter, read.columns):
            raise GrantError(
                f"the grant is not for epoch {epoch} of stream {read.stream} of {export} with this"
                " reader, filter and columns."
            )


def pass_for(token: str, export: str, import_: str, reader: str) -> str:
    """Return the pass of a reader of an export; the same as long as the agent keeps its token."""
    text = canonical({"export": export, "import": import_, "reader": reader})
    return hmac.new(token.encode(), b"pass\0" + text, hashlib.sha256).hexdigest()


def verify(token: str, text: object) -> Grant:
    """Return what a text grants.

    Raises:
        GrantError: it is none, or not signed for the agent with this token.
    """
    encoded, _, mac = str(text or "").partition(".")
    try:
        body = base64.b64decode(encoded, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        body = b""
    if not body or not hmac.compare_digest(mac.encode(), _mac(token, body).encode()):
        raise GrantError(
            "the read shows no grant of its export's home for this agent; the next batch brings a"
            " new one (was the agent's data directory replaced?)."
        )
    found: dict[str, Any] = json.loads(body)
    return Grant(
        export=found["export"],
        reader=found["reader"],
        ranges={s: (int(r[0]), int(r[1])) for s, r in found["ranges"].items()},
        filter=found["filter"],
        columns=column_names(found["columns"]),
    )


def _mac(token: str, body: bytes) -> str:
    return hmac.new(token.encode(), b"grant\0" + body, hashlib.sha256).hexdigest()
