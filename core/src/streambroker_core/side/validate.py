"""Validation of side-input definitions, when an operator is defined and before any row.

:func:`check` raises for the first problem and names the remedy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as pt

from streambroker_core.side.definition import (
    MAIN,
    MAX_INPUTS,
    MISSING,
    READY,
    RESERVED,
    UPDATES,
    Enrich,
    SideInput,
    SideJoin,
    added_columns,
)
from streambroker_core.side.errors import SideDefinitionError, SideSchemaError
from streambroker_core.side.keys import equality_class, key_type
from streambroker_core.side.windows import MAX_SECONDS

_TIMED: Final = (
    "name the column: with_watermark(column, delay) of its stream, or event_time= in core"
)
_MAIN_TIMED: Final = (
    "name the column: with_watermark(column, delay) of the main stream, options(event_time=...)"
    " of one after an operator, or event_time= in core"
)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")


def check(join: SideJoin) -> None:
    """Raise SideDefinitionError (side input, problem, remedy) if a definition can never work."""
    for name, problem, remedy in _stateless_problems(join) if join.stateless else ():
        raise SideDefinitionError(name, problem, remedy)
    seen: set[str] = set()
    for side in join.inputs:
        for problem, remedy in (*_problems(side), *_problems_in(join, side)):
            raise SideDefinitionError(side.name, problem, remedy)
        if side.name in seen:
            raise SideDefinitionError(side.name, "its name is used twice", "give each its own")
        seen.add(side.name)
    for problem, remedy in _main_problems(join):
        raise SideDefinitionError(MAIN, problem, remedy)
    for enrich in join.enrich:
        for problem, remedy in _enrich_problems(join, enrich, join.input(enrich.input)):
            raise SideDefinitionError(enrich.input, problem, remedy)
    for problem, remedy in _name_problems(join):
        raise SideDefinitionError(MAIN, problem, remedy)


Problems = list[tuple[str, str]]


def _problems(side: SideInput) -> Problems:
    problems: Problems = []
    if not _NAME.match(side.name) or side.name == MAIN:
        problems.append(
            (
                f"`{side.name}` is not a valid name for it",
                "use a letter, then letters, digits and _, and not `main`",
            )
        )
    if side.kind not in UPDATES:
        return [
            *problems,
            (f"kind `{side.kind}` is not known", f"use one of {', '.join(UPDATES)}"),
        ]
    if side.readiness not in READY:
        problems.append((f"ready `{side.ready}` is not known", f"use one of {', '.join(READY)}"))
    for what, value, choices in (
        ("on_timeout", side.on_timeout, ("default", "error")),
        ("on_refused", side.on_refused, ("fail", "output")),
    ):
        if value not in choices:
            problems.append((f"{what} `{value}` is not known", f"use one of {', '.join(choices)}"))
    return [
        *problems,
        *_key_problems(side),
        *_update_problems(side),
        *_window_problems(side),
        *_other_problems(side),
        *_schema_problems(side),
    ]


def _schema_problems(side: SideInput) -> Problems:
    names = (*side.key, side.event_time, side.deleted, *side.fields)
    problems = _missing_columns(side.schema, [name for name in names if name is not None])
    for what, columns in (("key", side.key), ("value", side.fields)):
        problems += [
            (f"column {name} is in its {what} twice", "name it once")
            for name in sorted({name for name in columns if columns.count(name) > 1})
        ]
    if problems:
        return problems
    try:
        key_type([side.schema.field(name).type for name in side.key])
    except SideSchemaError as error:
        return [(str(error).partition(": ")[2].partition(";")[0], "use another key")]
    if side.deleted and not pt.is_boolean(side.schema.field(side.deleted).type):
        problems.append((f"column {side.deleted} is not boolean", "name a boolean column"))
    problems += _time_problems(side.schema, side.event_time)
    problems += _default_problems(side)
    if not side.fields:
        problems.append(("its rows have no value", "give it a column that is not key or time"))
    return problems


def _default_problems(side: SideInput) -> Problems:
    """Reject a default that cannot replace a value."""
    default: Any = side.default
    if not side.has_default or default is None:
        return []
    by_name = isinstance(default, Mapping) and not isinstance(side.value, str)
    if by_name and (unknown := sorted(set(default) - set(side.fields))):
        known = ", ".join(side.fields)
        return [
            (f"its default has {unknown[0]}, which is not a value of it", f"there are: {known}")
        ]
    problems: Problems = []
    for name in side.fields:
        value, type_ = default.get(name) if by_name else default, side.schema.field(name).type
        try:
            pa.scalar(value, type_)
        except (pa.ArrowException, TypeError, ValueError):
            problems.append(
                (f"default {value!r} is not of type {type_}, as {name} is", "give one of its type")
            )
    return problems


def _missing_columns(schema: pa.Schema, names: Iterable[str]) -> Problems:
    known = ", ".join(schema.names)
    return [
        (f"there is no column {name}", f"there are: {known}")
        for name in names
        if schema.get_field_index(name) < 0
    ]


def _time_problems(schema: pa.Schema, name: str | None) -> Problems:
    if name is not None and not pt.is_timestamp(schema.field(name).type):
        return [(f"column {name} is not a timestamp, but {schema.field(name).type}", "cast it")]
    return []


def _key_problems(side: SideInput) -> Problems:
    problems: Problems = []
    if side.kind in ("map", "multimap") and not side.key:
        problems.append((f"a {side.kind} without key", "name the key's columns: key=(...)"))
    if side.kind in ("singleton", "list") and side.key and not side.keyed:
        kind = "map" if side.kind == "singleton" else "multimap"
        problems.append(
            (f"a {side.kind} for all rows has no key", f"make it keyed, or use a {kind}")
        )
    if side.keyed and not side.key:
        problems.append(("keyed, without key", "name the columns that hold the main rows' key"))
    if side.keyed and side.static:
        problems.append(
            ("a static table is not keyed", "leave keyed out: it is kept once per process")
        )
    return problems


def _update_problems(side: SideInput) -> Problems:
    allowed = UPDATES[side.kind]
    if side.updating not in allowed:
        return [
            (f"a {side.kind} cannot {side.updating}", f"use one of: {', '.join(allowed)}"),
        ]
    if side.updating == "latest" and side.static:
        return [("a table has no times, so none is latest", "set replace: the last row is used")]
    if side.updating == "latest" and side.event_time is None:
        return [("latest needs the event time of a value", _TIMED)]
    if side.many and side.updating == "replace" and side.readiness != "complete":
        return [
            (
                f"a {side.kind} that is replaced needs a signal for the end of the new one",
                "set ready='complete', and send the control tuple SideComplete after each load",
            )
        ]
    return []


def _window_problems(side: SideInput) -> Problems:
    windows = side.windows
    if windows.gap:
        return [
            (
                "session windows merge, so no main window can be mapped to one",
                "use fixed or sliding windows",
            )
        ]
    if not windows.is_windowed:
        if side.readiness == "watermark":
            return [
                (
                    "no watermark ever passes the one global window, so it is never ready",
                    "set windows=fixed(seconds), or ready='first data' or 'complete'",
                )
            ]
        return []
    problems: Problems = []
    if side.static:
        problems.append(("a static table has no windows", "leave windows out"))
    elif side.event_time is None:
        problems.append(("windows need the time of a row", _TIMED))
    if not 0 < windows.slide <= windows.size:
        problems.append(
            ("windows leave gaps, or never move on", "use a slide of more than 0, at most the size")
        )
    return problems


def _other_problems(side: SideInput) -> Problems:
    problems: Problems = []
    if side.many and side.has_default:
        problems.append((f"a {side.kind} has no default", "leave it out: an empty one is empty"))
    if side.timeout is not None and not 0 < side.timeout <= MAX_SECONDS:
        problems.append(
            (
                f"a timeout of {side.timeout:g} s is not valid",
                f"use more than 0 seconds, at most {MAX_SECONDS:,}, or leave it out",
            )
        )
    if side.static and side.readiness not in ("complete", "not required"):
        problems.append(
            (f"a static table is never ready by {side.readiness}", "use complete, the default")
        )
    if side.static and (side.deleted or side.event_time):
        problems.append(("a static table has neither deleted nor event_time", "leave them out"))
    if side.max_entries < 1 or side.max_bytes < 1:
        problems.append(("a limit below 1", "set limits of at least 1"))
    return problems


def _problems_in(join: SideJoin, side: SideInput) -> Problems:
    problems: Problems = []
    if side.keyed and not join.key:
        names = ", ".join(map(repr, side.key))
        problems.append(
            (
                "keyed=True puts it into the buckets of the main rows with its key, and they"
                " have no key",
                f"call key_by({names}) on the main stream, with its columns, or leave keyed out",
            )
        )
    elif side.keyed and len(side.key) != len(join.key):
        problems.append(
            (
                f"its key has {len(side.key)} columns, the main input's {len(join.key)}",
                "name as many, in the same order: a keyed one is stored with the main rows of"
                " its key",
            )
        )
    elif side.keyed:
        problems += [*_missing_columns(join.schema, join.key)] or _key_type_problems(
            join, join.key, side
        )
    if side.windows.is_windowed and join.event_time is None:
        problems.append(("main rows have no time to find its window by", _MAIN_TIMED))
    if join.order == "event time" and not side.static and side.event_time is None:
        problems.append(("rows are processed by event time, and its rows have none", _TIMED))
    return problems


def _main_problems(join: SideJoin) -> Problems:
    problems: Problems = []
    own = [name for name in (*join.key, join.event_time) if name is not None]
    if missing := _missing_columns(join.schema, own):
        return missing
    problems += _time_problems(join.schema, join.event_time)
    for name in join.schema.names:
        if name.startswith(RESERVED):
            problems.append((f"column {name} has a reserved name", "rename it"))
    if len(join.inputs) > MAX_INPUTS:
        problems.append((f"more than {MAX_INPUTS} side inputs", "use several operators"))
    return [*problems, *_order_problems(join), *(_group_problems(join) if join.grouped else [])]


def _order_problems(join: SideJoin) -> Problems:
    problems: Problems = []
    windows = join.windows
    if join.order not in ("arrival", "event time"):
        problems.append((f"order `{join.order}` is not known", "use arrival or event time"))
    if join.event_time is None and (
        join.order == "event time" or (windows and windows.is_windowed)
    ):
        problems.append(("the order or the windows need a time", _MAIN_TIMED))
    if windows is not None and windows.gap:
        problems.append(("session windows of the main input", "use fixed or sliding windows"))
    if windows is not None and windows.is_windowed and not 0 < windows.slide <= windows.size:
        problems.append(
            ("windows leave gaps, or never move on", "use a slide of more than 0, at most the size")
        )
    if not 0 <= join.lateness <= MAX_SECONDS:
        problems.append(
            (f"lateness of {join.lateness:g} s", f"use 0 or more seconds, at most {MAX_SECONDS:,}")
        )
    if join.max_waiting_rows < 1 or join.max_waiting_bytes < 1:
        problems.append(("a limit below 1", "set limits of at least 1"))
    return problems


def _group_problems(join: SideJoin) -> Problems:
    problems: Problems = []
    if not (join.windows and join.windows.is_windowed):
        remedy = "call window(seconds) before apply, or give windows= in core"
        problems.append(("rows are grouped by window, and have none", remedy))
    if any(join.missing(enrich) == "wait" for enrich in join.enrich):
        remedy = "use missing='null' or 'error'"
        problems.append(("the rows of a group would wait separately for their keys", remedy))
    if join.lateness:
        problems.append(("a processed group accepts no later rows", "leave lateness out"))
    return problems


def _enrich_problems(join: SideJoin, enrich: Enrich, side: SideInput) -> Problems:
    if enrich.missing is not None and enrich.missing not in MISSING:
        return [(f"missing `{enrich.missing}` is not known", f"use one of {', '.join(MISSING)}")]
    if side.kind == "list" and not side.keyed:
        return [("a list has no value for a row", "use a function, or a multimap")]
    if len(enrich.on) != len(side.key):
        return [
            (
                f"`on` has {len(enrich.on)} columns, its key {len(side.key)}",
                "name the main columns for each column of the key, in order",
            )
        ]
    if enrich.missing == "wait" and not side.key:
        remedy = f"leave missing out: rows wait until the {side.kind} is ready"
        return [("missing='wait' waits for a key, and it has none", remedy)]
    if side.keyed and enrich.on != join.key:
        return [
            ("a keyed one is where the main row's key is", f"use on={join.key!r}, or remove keyed")
        ]
    if problems := [
        *_missing_columns(join.schema, enrich.on),
        *_missing_columns(pa.schema(list(side.value_type)), enrich.columns),
    ]:
        return problems
    return _key_type_problems(join, enrich.on, side)


def _key_type_problems(join: SideJoin, columns: tuple[str, ...], side: SideInput) -> Problems:
    """Reject main columns whose type can never equal the key's."""
    problems: Problems = []
    for ours, theirs in zip(columns, side.key, strict=True):
        left, right = join.schema.field(ours).type, side.schema.field(theirs).type
        if equality_class(left) != equality_class(right):
            problems.append(
                (f"column {ours} is {left} in the main input, key {theirs} is {right}", "cast one")
            )
    return problems


def _name_problems(join: SideJoin) -> Problems:
    names = list(join.schema.names)
    for enrich in join.enrich:
        names += [name for name, _ in added_columns(enrich, join.input(enrich.input))]
        names += [enrich.version] if enrich.version else []
    duplicates = sorted({name for name in names if names.count(name) > 1})
    return [
        (f"column {name} occurs twice", "give it another name: names=...") for name in duplicates
    ]


_MISSING_EFFECTS: Final = {"wait": "wait for its key", "error": "go to the output `errors`"}


def needs_state(problem: str, remedy: str) -> tuple[str, str]:
    """Return the problem and remedy of something that ``stateless()`` does not support."""
    return f"{problem}, and rows are stateless", f"{remedy}, or leave stateless() out"


def _stateless_problems(join: SideJoin) -> list[tuple[str, str, str]]:
    """Return the input, problem and remedy of everything that needs state."""
    return [
        *((side.name, *problem) for side in join.inputs for problem in _stateful_side(side)),
        *((MAIN, *problem) for problem in _stateful_main(join)),
        *(
            (enrich.input, *problem)
            for enrich in join.enrich
            for problem in _stateful_missing(enrich)
        ),
    ]


def _stateful_side(side: SideInput) -> Problems:
    problems: Problems = []
    if not side.static:
        problems.append(
            needs_state(
                "rows that arrived on a stream are kept in state", "make it a table of a TableStore"
            )
        )
    for name, is_set in (
        ("ready", side.readiness != "complete"),
        ("timeout", side.timeout is not None),
        ("on_timeout", side.on_timeout != "default"),
        ("on_refused", side.on_refused != "fail"),
    ):
        if is_set:
            problems.append(
                needs_state(
                    f"{name} is for rows that wait or are rejected",
                    f"leave {name} out, because a table is always there as a whole",
                )
            )
    return problems


def _stateful_main(join: SideJoin) -> Problems:
    plain = SideJoin(schema=join.schema)
    problems: Problems = []
    if join.grouped or join.windows is not None:
        problems.append(
            needs_state("windows of rows are kept in state", "leave window and apply out")
        )
    for name in ("order", "event_time", "lateness", "max_waiting_rows", "max_waiting_bytes"):
        if getattr(join, name) != getattr(plain, name):
            problems.append(needs_state(f"{name} is for rows that wait", f"leave {name} out"))
    return problems


def _stateful_missing(enrich: Enrich) -> Problems:
    if enrich.missing not in _MISSING_EFFECTS:
        return []
    return [
        needs_state(
            f"a row without a value would {_MISSING_EFFECTS[enrich.missing]}",
            "use missing='null' and look for nulls afterwards",
        )
    ]
