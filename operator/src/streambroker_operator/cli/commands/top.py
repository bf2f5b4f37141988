"""``top``: routes with rates, lag and congestion, as agents report them."""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from streambroker_client.broker import Broker
from streambroker_client.errors import BrokerUnavailableError
from streambroker_core.wire.reports.route_states import STATE_ORDER, route_state
from streambroker_operator.cli.io.errors import OK, UsageError
from streambroker_operator.cli.io.options import (
    add_everywhere,
    add_output,
    add_remote_command,
    client_for,
    namespace_for,
    one_of,
    seconds_between,
)
from streambroker_operator.cli.io.targets import (
    Item,
    Target,
    find_items,
    item_names,
    read_targets,
    select_items,
)
from streambroker_operator.cli.io.terminal import (
    Colour,
    format_duration,
    format_size,
    is_terminal,
    paint,
    print_text,
)
from streambroker_operator.cli.output.job_tables import rule_lines, side_lines
from streambroker_operator.cli.output.table import (
    Columns,
    Table,
    print_answer,
)

INTERVAL_S = 2.0
OLD_S = 10.0
"""Age of metrics from which on the table has a note."""
_CLEAR = "\x1b[H\x1b[J"
_COLOURS: dict[str, Colour] = {
    "waits": "red",
    "stalled": "red",
    "away": "yellow",
    "stale": "dim",
    "unknown": "dim",
}
_ENDED_WORDS = {None: "-", False: "no", True: "yes"}
"""None: a broker of an older release does not report it."""


class TopSnapshot(NamedTuple):
    """Routes with metrics, and reports of their jobs.

    The reports are side inputs, pattern rules, and operators that wait for the watermark.
    """

    routes: Sequence[Item]
    sides: Sequence[Item] = ()
    rules: Sequence[Item] = ()
    waiting: Sequence[Item] = ()


def add(commands: Any) -> None:
    """Add the command."""
    top = add_remote_command(commands, "top", "show routes with rates, lag and congestion, live")
    top.add_argument("words", nargs="*", metavar="[routes] [JOB/PE/PORT…]", help="only of these")
    top.add_argument(
        "--once", action="store_true", help=("print once and exit; the default without a terminal")
    )
    top.add_argument(
        "--interval", type=seconds_between(0.1, 3_600), default=INTERVAL_S, metavar="SECONDS"
    )
    top.add_argument(
        "--sort", type=one_of(*_SORT_KEYS), default="state", metavar="|".join(_SORT_KEYS)
    )
    add_output(top, "table", "wide", "json", "yaml")
    add_everywhere(top)
    top.set_defaults(run=_top)


def _top(options: argparse.Namespace) -> int:
    broker, namespace = client_for(options), namespace_for(options)
    selected = _targets(options.words)
    targets = [port for target in selected for port in _port_targets(broker, target, namespace)]

    def ask() -> TopSnapshot:
        response = broker.in_namespace(namespace).top()
        routes = sorted(_select_routes(response.routes, targets), key=_SORT_KEYS[options.sort])
        pes = {route[end].rpartition("/")[0] for route in routes for end in ("export", "import")}
        jobs = [
            [item for item in response.get(section, ()) if not options.words or item["pe"] in pes]
            for section in ("sides", "rules", "ruleWaiting")
        ]
        return TopSnapshot(routes, *jobs)

    if options.once or options.output not in ("table", "wide") or not is_terminal():
        return _print_once(ask(), options.output, namespace)
    _run_live(ask, options.interval, broker.connection.url)
    return OK


def _targets(words: Sequence[str]) -> list[Target]:
    if not words:
        return [Target(kinds=("routes",))]
    targets = [target for word in words for target in read_targets([word])]
    if any(target.name is None and target.kinds != ("routes",) for target in targets):
        raise UsageError("`top` shows routes; name ports as JOB/PE/PORT, or pass no argument.")
    named = [target for target in targets if target.name is not None]
    return named or targets


def _port_targets(broker: Broker, target: Target, namespace: str) -> list[Target]:
    """Return a target by the ports of its resources, as routes name them."""
    if target.name is None or target.kinds == ("routes",):
        return [target]
    matches = find_items(broker, target, namespace)
    return [
        Target(kinds=("routes",), name=end)
        for kind, items in matches
        for item in items
        for end in _port_names(kind, item)
    ]


def _port_names(kind: str, item: Item) -> list[str]:
    if kind != "pes":
        return [item_names(kind, item)[-1]]
    pe = item_names(kind, item)[1]
    return [f"{pe}/{port}" for port in (*item["exports"], *item["imports"])]


def _select_routes(routes: Sequence[Item], targets: Sequence[Target]) -> list[Item]:
    return [
        r for r in routes if any(select_items("routes", [r], target.name) for target in targets)
    ]


def _print_once(snapshot: TopSnapshot, output: str, namespace: str) -> int:
    routes, sides, rules, waiting = snapshot
    job_lines = [*side_lines(sides, time.time()), *rule_lines(rules, waiting)]
    table = route_lines(routes) if output == "wide" else route_lines(routes, namespace=namespace)
    jobs = {"sides": list(sides), "rules": list(rules), "ruleWaiting": list(waiting)}
    text = "\n".join([*table, *_age_lines(routes), *job_lines]) + "\n"
    print_answer({"routes": list(routes), **jobs}, output, text)
    return OK


def _age_lines(routes: Sequence[Item]) -> list[str]:
    """Return a note on old metrics: agents report more often after a call."""
    ages = [route["age"] for route in routes if route_state(route) not in ("stale", "unknown")]
    oldest = max(ages, default=0.0)
    if oldest < OLD_S:
        return []
    return [f"Metrics are up to {format_duration(oldest)} old; newer ones come in some seconds."]


def _run_live(fetch: Callable[[], TopSnapshot], interval_s: float, url: str) -> None:
    """Redraw until interrupted; keep the last screen while the broker is unreachable."""
    snapshot = fetch()
    note = ""
    while True:
        size = shutil.get_terminal_size()
        print_text(
            _CLEAR
            + render_screen(
                snapshot,
                url,
                note,
                size.columns,
                size.lines,
                datetime.now().astimezone(),
            )
        )
        time.sleep(interval_s)
        try:
            snapshot, note = fetch(), ""
        except BrokerUnavailableError as error:
            note = f"{error.code}: metrics are not updated; trying again"


def render_screen(
    snapshot: TopSnapshot, url: str, note: str, columns: int, rows: int, now: datetime
) -> str:
    """Return one screen of the live view, not larger than the terminal."""
    routes = snapshot.routes
    waiting = sum(1 for route in routes if route_state(route) == "waits")
    count = "1 route" if len(routes) == 1 else f"{len(routes)} routes"
    head = f"streambroker top  {url}  {count}, {waiting} waiting  {now:%H:%M:%S}"
    lines = [paint(head[:columns], "bold")]
    if note:
        lines.append(paint(note[:columns], "yellow"))
    lines += side_lines(snapshot.sides, now.timestamp(), columns)[: rows // 3]
    lines += rule_lines(snapshot.rules, snapshot.waiting, columns)[: rows // 4]
    room = max(1, rows - 1 - len(lines))
    body = route_lines(routes, columns)
    if len(body) > room:
        body = [*body[: room - 1], f"… {len(body) - room + 1} more"]
    return "\n".join([*lines, *body][: max(1, rows - 1)])


def route_lines(
    routes: Sequence[Item], columns: int | None = None, *, namespace: str | None = None
) -> list[str]:
    """Return the lines of the route table with a header, coloured if enabled.

    Lines are cut at `columns`, unless it is None. With a namespace, the table has only the columns
    that fit 120 characters, and ports of that namespace without its name.
    """
    if not routes:
        return ["no routes"]
    shown = COLUMNS
    if namespace is not None:
        shown = {name: _without_prefix(f"{namespace}/", COLUMNS[name]) for name in _NARROW_COLUMNS}
    if not any(map(_problem_text, routes)):
        shown = {name: cell for name, cell in shown.items() if name != "PROBLEM"}
    if not any(route.get("storage") for route in routes):
        shown = {name: cell for name, cell in shown.items() if name not in _STORE_COLUMNS}
    return Table(shown, right=_RIGHT_ALIGNED).lines(
        routes, colour=lambda route: _COLOURS.get(route_state(route)), cut=columns
    )


def _without_prefix(prefix: str, cell: Callable[[Item], str]) -> Callable[[Item], str]:
    return lambda route: cell(route).removeprefix(prefix)


def _storage_text(route: Item) -> str:
    """Return for how long the export's oldest bytes have waited for their upload, or ``fails``."""
    storage = route.get("storage")
    if storage is None:
        return "-"
    if storage["failing"] or storage["superseded"]:
        return "fails"
    return format_duration(storage["seconds"])


def _problem_text(route: Item) -> str:
    """Return which end of a route is not healthy and why; empty if both are, or it is unknown."""
    ends = ((end, route.get(f"{end}Problem")) for end in ("export", "import"))
    return ", ".join(f"{end}: {reason}" for end, reason in ends if reason)


def _format_number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.1f}" if 0 < value < 10 and value != int(value) else f"{value:,.0f}"


def _format_known(format_value: Callable[[float], str], value: float | None) -> str:
    return "-" if value is None else format_value(value)


COLUMNS: Columns[Item] = {
    "CONGESTION": route_state,
    "FULL": lambda route: "-" if route["congestion"] is None else f"{route['congestion']}%",
    "EXPORT": lambda route: route["export"],
    "IMPORT": lambda route: route["import"],
    "PROBLEM": lambda route: _problem_text(route) or "-",
    "ROWS/S": lambda route: _format_number(route["rowsPerSecond"]),
    "BYTES/S": lambda route: _format_known(format_size, route["bytesPerSecond"]),
    "LAG": lambda route: _format_number(route["lagEpochs"]),
    "LAG ROWS": lambda route: _format_number(route["lagRows"]),
    "LAG BYTES": lambda route: _format_known(format_size, route["lagBytes"]),
    "LAG TIME": lambda route: _format_known(format_duration, route["lagSeconds"]),
    "BLOCKED": lambda route: _format_known(format_duration, route["blockedSeconds"]),
    "THROTTLED": lambda route: _format_known(format_duration, route.get("throttledSeconds")),
    "FILTERED": lambda route: _format_number(route["filteredRows"]),
    "DROPPED": lambda route: _format_number(route["droppedRows"]),
    "LOST": lambda route: _format_number(route["lostRows"]),
    "STORE": _storage_text,
    "TO STORE": lambda route: (
        format_size(route["storage"]["bytes"]) if route.get("storage") else "-"
    ),
    "ENDED": lambda route: _ENDED_WORDS[route.get("ended")],
    "AGE": lambda route: _format_known(format_duration, route["age"]),
    "POLICY": lambda route: route["policy"],
}
"""Ordered by importance, because a narrow terminal cuts the last ones."""
METRIC_COLUMNS = tuple(name for name in COLUMNS if name not in ("EXPORT", "IMPORT", "POLICY"))
"""Columns that change all the time."""
_NARROW_COLUMNS = [
    "CONGESTION",
    "EXPORT",
    "IMPORT",
    "PROBLEM",
    "ROWS/S",
    "LAG ROWS",
    "LAG TIME",
    "BLOCKED",
]
_NARROW_COLUMNS += ["DROPPED", "LOST", "STORE", "AGE"]
"""Columns of the default table, which fits 120 characters; ``wide`` has all."""
_STORE_COLUMNS = ("STORE", "TO STORE")
"""Columns of tables with an export that has object storage."""
_LEFT_ALIGNED = {"CONGESTION", "EXPORT", "IMPORT", "PROBLEM", "ENDED", "AGE", "POLICY"}
_RIGHT_ALIGNED = COLUMNS.keys() - _LEFT_ALIGNED
_SORT_KEYS: dict[str, Callable[[Item], Any]] = {
    "state": lambda r: (
        STATE_ORDER.index(route_state(r)),
        -(r["lagBytes"] or 0),
        r["export"],
        r["import"],
    ),
    "lag": lambda r: (-(r["lagBytes"] or 0), -(r["lagEpochs"] or 0), r["export"], r["import"]),
    "rate": lambda r: (-(r["rowsPerSecond"] or 0), r["export"], r["import"]),
    "name": lambda r: (r["export"], r["import"]),
}
