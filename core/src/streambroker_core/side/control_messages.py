"""Control messages for side inputs; the class names are the types of their control tuples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypedDict

from streambroker_core.control.tuples import Delivery


@dataclass(frozen=True, slots=True, kw_only=True)
class SideComplete:
    """A load of a side input is complete: its rows become visible now, all at once.

    Attributes:
        input: name of the side input.
        window: start of the window that is complete, in microseconds; None for all.
        whole: the load is the whole content; everything not in it is removed.
        version: a name for the content from now on.
        at: event time at which the message takes effect, in microseconds, where rows are processed
            by event time. None: after the last row of this side input so far.
    """

    input: str
    window: int | None = None
    whole: bool = False
    version: str | None = None
    at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SideVersion:
    """Switch a static table to another version.

    Attributes:
        input: name of the side input.
        version: the version, as the table's reader names it.
        at: event time from which it applies, in microseconds, where rows are processed by event
            time; None for at once.
    """

    delivery: ClassVar[Delivery] = Delivery.BEGIN
    input: str
    version: str
    at: int | None = None


class ControlMessage(TypedDict, total=False):
    """A `SideComplete` or `SideVersion` as JSON; ``type`` is the name of its class."""

    type: str
    input: str
    window: int | None
    whole: bool
    version: str | None
    at: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SideRefresh:
    """Request that the reader of a table reads it now, which results in a new version or none.

    Attributes:
        input: name of the side input.
    """

    input: str
