"""What control tuples say to side inputs. Names of these classes are the types of the tuples."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SideComplete:
    """A load of a side input is complete: its rows are seen from here on, all at once.

    Attributes:
        input: name of the side input.
        window: start of the window that is complete, in microseconds; None for all.
        whole: the load is all there is: what is not in it goes.
        version: a name for the content from here on.
        at: event time at which it holds, in microseconds, where rows are taken by event time;
            None for after the last row of this side input that came before.
    """

    input: str
    window: int | None = None
    whole: bool = False
    version: str | None = None
    at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SideVersion:
    """Another version of a static table holds from here on.

    Attributes:
        input: name of the side input.
        version: the version, as the table's reader knows it.
        at: event time from which it holds, in microseconds, where rows are taken by event time;
            None for at once.
    """

    input: str
    version: str
    at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SideRefresh:
    """Whoever reads a table is to read it now; what comes of it is another version, or none.

    Attributes:
        input: name of the side input.
    """

    input: str
