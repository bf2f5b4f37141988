"""What was changed at each port, when and by which caller; in memory only, and bounded."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from streambroker_core.model import Kind, PortKey, Resource, kind_of
from streambroker_core.wire.encoding.canonical import canonical
from streambroker_core.wire.manifests.ports import write_spec

MAX_ENTRIES = 20
"""Entries of one port, at most."""
MAX_CHARACTERS = 8 * 1024 * 1024
"""Characters of all values together, at most; the port that has not changed for longest goes."""
MAX_VALUE = 200
"""Maximum length of a value in an entry, in characters."""
MAX_FIELDS = 20
"""Maximum number of fields in an entry."""
_ENTRY_COST = 200
"""What an entry costs in addition to its values, in characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of a port.

    Attributes:
        time: seconds since 1970, UTC.
        principal: name of the caller; empty for none.
        action: ``created``, ``changed``, ``deleted`` or ``released``.
        fields: old and new values by field, as JSON and cut; None for no value.
    """

    time: float
    kind: Kind
    port: PortKey
    principal: str
    action: str
    generation: int
    fields: Mapping[str, tuple[str | None, str | None]]

    @property
    def cost(self) -> int:
        """What the change takes of `MAX_CHARACTERS`."""
        values = (value for pair in self.fields.values() for value in pair)
        return _ENTRY_COST + sum(len(value or "") for value in values)


class History:
    """The last changes of each port."""

    def __init__(self) -> None:
        self._ports: OrderedDict[tuple[Kind, PortKey], deque[Change]] = OrderedDict()
        self._cost = 0

    def note(
        self, now: float, principal: str, action: str, old: Resource | None, new: Resource | None
    ) -> None:
        """Add a change from `old` to `new`; one of them may be missing. `now` in seconds."""
        resource = new or old
        if resource is None:
            return
        change = Change(
            time=now,
            kind=kind_of(resource),
            port=resource.key,
            principal=principal,
            action=action,
            generation=resource.generation,
            fields=dict(islice(_differences(old, new), MAX_FIELDS)),
        )
        place = change.kind, change.port
        changes = self._ports.setdefault(place, deque())
        self._ports.move_to_end(place)
        changes.append(change)
        self._cost += change.cost
        if len(changes) > MAX_ENTRIES:
            self._cost -= changes.popleft().cost
        while self._cost > MAX_CHARACTERS:
            self._cost -= sum(one.cost for one in self._ports.popitem(last=False)[1])

    def find(self, namespace: str, limit: int, port: tuple[Kind, PortKey] | None) -> list[Change]:
        """Return the changes of a namespace (``*``: of all), or of one port, the newest first."""
        if port is not None:
            found = list(self._ports.get(port, ()))
        else:
            found = [
                change
                for (_, key), changes in self._ports.items()
                if namespace in ("*", key.namespace)
                for change in changes
            ]
        found.sort(key=lambda change: change.time)
        return found[::-1][:limit]


def _differences(
    old: Resource | None, new: Resource | None
) -> Iterator[tuple[str, tuple[str | None, str | None]]]:
    was = {} if old is None else write_spec(old)
    now = {} if new is None else write_spec(new)
    for name in sorted({*was, *now} - {"job", "pe", "port"}):
        if was.get(name) != now.get(name):
            yield name, (_text(was.get(name)), _text(now.get(name)))


def _text(value: Any) -> str | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else canonical(value).decode()
    return text if len(text) <= MAX_VALUE else f"{text[: MAX_VALUE - 1]}…"
