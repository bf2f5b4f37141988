"""Which exports of a PE have ended, as its agent tells with each poll: the header ``EndedRun``.

Ports in order, with commas between them. ``*`` after the last says that more have ended, of
which nothing is said: a poll must not fail because there are many. Where none has ended there is
no header, as there is none from an agent that cannot tell.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from streambroker_core.errors import ManifestError
from streambroker_core.model import is_port_name

HEADER = "Ended"
MAX_LENGTH = 2_000
"""Characters; the broker takes 8 KiB of headers, among which is a token."""
_MORE = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedExports:
    """What an agent says.

    Attributes:
        ports: exports that have ended.
        more: others may have, too; nothing is said of those that are not named.
    """

    ports: frozenset[str] = frozenset()
    more: bool = False

    def has_ended(self, port: str) -> bool | None:
        """Say whether an export has ended; None where nothing is said of it."""
        if port in self.ports:
            return True
        return None if self.more else False


NONE_ENDED = EndedExports()


def make_ended_exports(ports: Iterable[str]) -> EndedExports:
    """Return what to say where these have ended: as many as `MAX_LENGTH` has room for."""
    names: set[str] = set()
    room = MAX_LENGTH - len(_MORE)
    for name in sorted(ports):
        room -= len(name) + 1
        if room < 0:
            return EndedExports(ports=frozenset(names), more=True)
        names.add(name)
    return EndedExports(ports=frozenset(names))


def encode(ended: EndedExports) -> str:
    """Return the value of the header; empty where none has ended, and there is to be none."""
    return ",".join([*sorted(ended.ports), *([_MORE] if ended.more else [])])


def decode(text: str) -> EndedExports:
    """Return what the value of the header says.

    Raises:
        ManifestError: a name in it is none of a port.
    """
    names = [name.strip() for name in text.split(",")] if text.strip() else []
    more = names[-1:] == [_MORE]
    ports = names[:-1] if more else names
    for name in ports:
        if not is_port_name(name):
            raise ManifestError(path=HEADER, reason=f"names {name[:64]!r}, which is no port")
    return EndedExports(ports=frozenset(ports), more=more)
