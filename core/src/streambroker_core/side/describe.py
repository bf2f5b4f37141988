"""Texts that describe an operator with side inputs, and what its rows wait for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from streambroker_core.side.definition import Enrich, SideInput, SideJoin
from streambroker_core.side.state.waiting_rows import GROUP, Stall
from streambroker_core.side.windows import GLOBAL, GLOBAL_START, EventTimeWindows, window_end
from streambroker_core.wire.reports.side_status import SideStall, describe_side_stall

_UPDATES = {
    "append": "a further value is added to the existing ones",
    "replace": "a further value replaces the one before",
    "refuse": "a further value is refused",
    "latest": "of several values, the one with the latest event time is used",
}
_READY = {
    "first data": "rows wait for the first data",
    "complete": "rows wait until it is complete",
    "watermark": "rows wait until the watermark has passed the window",
    "not required": "rows do not wait",
}
_MISSING = {
    "null": "a row without a value gets nulls",
    "error": "a row without a value goes to the output `errors`",
    "wait": "a row without a value waits for its key",
}
_STATELESS = (
    "Rows are joined with tables where the rows are, without state: there is no shuffle and no"
    " order, and no row waits.",
    "A micro-batch has one version of each table, pinned when its first row is joined: all of"
    " its tasks see that version, and so does a replay; versions are swapped between two"
    " micro-batches.",
)
_START = datetime(1970, 1, 1, tzinfo=UTC)


def explain(join: SideJoin) -> list[str]:
    """Return the settings of an operator, one line each; defaults are marked."""
    if join.stateless:
        sides = [_describe_side(side, waits=False) for side in join.inputs]
        enriched = [_describe_enrich(join, enrich) for enrich in join.enrich]
        return [*_STATELESS, *sides, *enriched]
    order = "the order of arrival" if join.order == "arrival" else "the order of event time"
    lines = [f"Rows of all inputs are processed in {order}."]
    windows = join.windows
    if windows is not None and windows.is_windowed:
        lines.append(f"Main rows: {windows}; {_describe_calls(join)}.")
    lines += [_describe_side(side) for side in join.inputs]
    lines += [_describe_enrich(join, enrich) for enrich in join.enrich]
    return lines


def describe_stall(join: SideJoin, stall: Stall, now: int) -> str:
    """Return what rows wait for, as a sentence; ``now`` is the pinned clock in microseconds."""
    return describe_side_stall(summarize_stall(join, stall), now)


def summarize_stall(join: SideJoin, stall: Stall) -> SideStall:
    """Return what some rows wait for, in the form of reports."""
    return SideStall(cause=_describe_cause(join, stall), rows=stall.rows, since=stall.since)


def _describe_cause(join: SideJoin, stall: Stall) -> str:
    if stall.input == GROUP:
        return f"for the end of their window, {_format_span(join.windows or GLOBAL, stall.window)}"
    side = join.inputs[stall.input]
    what = f"for {'their keys in ' if stall.by_key else ''}side input `{side.name}`"
    window = ""
    if stall.window != GLOBAL_START:
        window = f", window {_format_span(side.windows, stall.window)}"
    reason = "" if stall.by_key else f" ({_READY[side.readiness]})"
    return f"{what}{window}{reason}"


def _format_span(windows: EventTimeWindows, start: int) -> str:
    return f"{format_time(start)} to {format_time(window_end(windows, start))}"


def format_time(micros: int) -> str:
    """Return a time as text, in UTC."""
    at = _START + timedelta(microseconds=micros)
    return at.isoformat().replace("+00:00", "Z")


def _describe_side(side: SideInput, *, waits: bool = True) -> str:
    what = side.kind if not side.keyed else f"{side.kind} for each key"
    key = f" by {', '.join(side.key)}" if side.key else ""
    where = "with the main rows of its key" if side.keyed else "in every bucket"
    if side.static:
        where = "a table, once per process, replaced version by version"
    parts = [
        f"Side input `{side.name}`: {what}{key}, {where}",
        *([f"{side.windows}"] if waits else []),
        _UPDATES[side.updating] + _mark_default(side.update),
        *([_READY[side.readiness] + _mark_default(side.ready)] if waits else []),
    ]
    if side.timeout is not None:
        then = (
            ("use what is available")
            if side.on_timeout == "default"
            else "go to the output `errors`"
        )
        parts.append(f"after {side.timeout:g} s they {then}")
    if side.has_default:
        parts.append(f"where there is no value it is {side.default!r}")
    refused = "stop the query" if side.on_refused == "fail" else "go to the output `errors`"
    parts += [f"rows that are rejected {refused}"] if waits else []
    return "; ".join(parts) + "."


def _mark_default(chosen: str | None) -> str:
    return " (by default)" if chosen is None else ""


def _describe_calls(join: SideJoin) -> str:
    if join.grouped:
        return "the rows of a key and window are processed together, when the window has passed"
    return "a row is processed once for each window it is in"


def _describe_enrich(join: SideJoin, enrich: Enrich) -> str:
    side = join.input(enrich.input)
    on = f" on {', '.join(enrich.on)}" if enrich.on else ""
    columns = ", ".join(enrich.columns or side.fields)
    what = f"Columns {columns} of `{side.name}` are added{on}"
    if enrich.only_wait:
        what = f"Rows are joined with `{side.name}`{on}"
    missing = _MISSING[join.missing(enrich)] + _mark_default(enrich.missing)
    limit = join.limit(side)
    if enrich.missing is None and join.waits(side) and limit is not None:
        missing += f", {limit:g} s at most"
        if side.on_timeout == "default":
            then = "the default" if side.has_default else "nulls"
            missing += f", and then gets {then} and is also in the output `late`"
    return f"{what}; {missing}."
