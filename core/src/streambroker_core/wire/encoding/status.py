"""What a process answers: JSON that is a dictionary, and a dataclass with its main members."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Self


@dataclass(frozen=True, eq=False)
class Status(dict[str, Any]):
    """A status with attributes, which are read from the JSON that it is."""

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Self:
        """Return the status of an answer.

        Raises:
            LookupError, TypeError: the answer has another form.
        """
        status = cls(**{one.name: _read(one, json) for one in fields(cls)})
        status.update(json)
        return status

    def to_json(self) -> dict[str, Any]:
        """Return the status as it was sent."""
        return dict(self)

    def _repr_html_(self) -> str:
        """Return a table of the attributes, for notebooks."""
        names = [one.name for one in fields(self)]
        return attribute_table(type(self).__name__, {name: getattr(self, name) for name in names})


def member(
    path: str = "",
    default: Any = MISSING,
    *,
    each: type[Status] | None = None,
    read: Callable[[Any], Any] | None = None,
) -> Any:
    """Return a field of a `Status`; without it, an attribute is the member of its name.

    Args:
        path: names of the members that lead to the value, such as ``metadata.name``.
        default: JSON without such a member; by default the member is required.
        each: class of the items of a list.
        read: makes the attribute of JSON.
    """
    if each is not None:
        form = each
        return member(path, default, read=lambda items: tuple(map(form.from_json, items)))
    metadata = {"path": path, **({} if read is None else {"read": read})}
    if default is MISSING:
        return field(metadata=metadata)
    return field(default=default, metadata=metadata)


def _read(one: Field[Any], json: Mapping[str, Any]) -> Any:
    read = one.metadata.get("read", _without_lists)
    value: Any = json
    for name in (one.metadata.get("path") or _camel_case(one.name)).split("."):
        if name not in value and one.default is not MISSING:
            return read(one.default)
        value = value[name]
    return read(value)


def _without_lists(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _camel_case(name: str) -> str:
    first, *others = name.rstrip("_").split("_")
    return first + "".join(map(str.capitalize, others))


def attribute_table(caption: str, values: Mapping[str, Any]) -> str:
    """Return an HTML table with a row per attribute; texts are escaped."""
    rows = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{_cell(value)}</td></tr>"
        for name, value in values.items()
    )
    return f"<table><caption>{html.escape(caption)}</caption>{rows}</table>"


def row_table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return an HTML table with a header; a sentence in its place if it has no rows."""
    body = "".join(f"<tr>{''.join(f'<td>{_cell(v)}</td>' for v in row)}</tr>" for row in rows)
    if not body:
        return f"<p>{html.escape(caption)}: none.</p>"
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    return f"<table><caption>{html.escape(caption)}</caption><tr>{head}</tr>{body}</table>"


def _cell(value: Any) -> str:
    if hasattr(value, "_repr_html_"):
        return str(value._repr_html_())
    if isinstance(value, Mapping):
        return "".join(f"<div>{html.escape(str(k))}: {_cell(v)}</div>" for k, v in value.items())
    return "" if value is None else html.escape(str(value))
