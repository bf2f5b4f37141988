"""The ports of a PE by name; one that is not there is refused with the name that was meant."""

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
    """Ports by name.

    Args:
        kind: ``import`` or ``export``.
        method: what makes one.
    """

    def __init__(self, kind: str, method: str) -> None:
        super().__init__()
        self._kind, self._method = kind, method

    def __missing__(self, name: object) -> P:
        """Refuse a name that is not known.

        Raises:
            PortMissingError: always.
        """
        near = get_close_matches(str(name), sorted(self), n=1)
        meant = f" Did you mean {near[0]!r}?" if near else ""
        known = ", ".join(sorted(self)) or "none yet"
        raise PortMissingError(
            f"this PE has no {self._kind} {name!r}.{meant} Known: {known}. {self._method}() makes"
            " one."
        )
