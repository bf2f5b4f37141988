"""Ended exports of a PE: the header ``Ended`` of an agent's poll.

Sorted port names, separated by commas. A final ``*`` means that more may have ended: a poll must
not fail because there are many. Without ended exports there is no header, nor from an agent
without support for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from streambroker_core.errors import ManifestError
from streambroker_core.model import is_port_name

HEADER = "Ended"
MAX_LENGTH = 2_000
"""Characters; the broker accepts 8 KiB of headers, including a token."""
_MORE = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedExports:
    """Ended exports in an agent's report.

    Attributes:
        ports: exports that have ended.
        more: the state of all other exports is unknown.
    """

    ports: frozenset[str] = frozenset()
    more: bool = False

    def has_ended(self, port: str) -> bool | None:
        """Return whether an export has ended; None if unknown."""
        if port in self.ports:
            return True
        return None if self.more else False


def make_ended_exports(ports: Iterable[str]) -> EndedExports:
    """Return a report with as many of these ports as fit into `MAX_LENGTH`."""
    names: set[str] = set()
    room = MAX_LENGTH - len(_MORE)
    for name in sorted(ports):
        room -= len(name) + 1
        if room < 0:
            return EndedExports(ports=frozenset(names), more=True)
        names.add(name)
    return EndedExports(ports=frozenset(names))


def encode(ended: EndedExports) -> str:
    """Return the header's value; if it is empty, no header is sent."""
    return ",".join([*sorted(ended.ports), *([_MORE] if ended.more else [])])


def decode(text: str) -> EndedExports:
    """Decode the header's value.

    Raises:
        ManifestError: a name is not a port name.
    """
    names = [name.strip() for name in text.split(",")] if text.strip() else []
    more = names[-1:] == [_MORE]
    ports = names[:-1] if more else names
    for name in ports:
        if not is_port_name(name):
            raise ManifestError(path=HEADER, reason=f"names {name[:64]!r}, which is not a port")
    return EndedExports(ports=frozenset(ports), more=more)
