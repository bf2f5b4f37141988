"""The ports of a PE by name; the error for a missing one suggests the closest name."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TypeVar

from streambroker_core.errors import StreambrokerError

P = TypeVar("P")


class PortMissingError(StreambrokerError, KeyError):
    """This PE has no such port; it is a `KeyError` as well."""

    code = "UnknownPort"
    __str__ = Exception.__str__


class PortsByName(dict[str, P]):
    """Ports by name; ``method`` of the PE makes a port of this ``kind``."""

    def __init__(self, kind: str, method: str) -> None:
        super().__init__()
        self._kind, self._method = kind, method

    def __missing__(self, name: object) -> P:
        """Raise a PortMissingError that suggests a name."""
        near = get_close_matches(str(name), sorted(self), n=1)
        meant = f" Did you mean {near[0]!r}?" if near else ""
        known = ", ".join(sorted(self)) or "none yet"
        raise PortMissingError(
            f"this PE has no {self._kind} {name!r}.{meant} Known: {known}. {self._method}()"
            " creates one."
        )
