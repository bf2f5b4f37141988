"""``get`` and ``watch``: list resources, and follow their changes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeAlias

from streambroker_client.broker import Broker
from streambroker_client.errors import BrokerUnavailableError, broker_error
from streambroker_client.events import RESET, Event
from streambroker_core.errors import SubscriptionError
from streambroker_core.model import Export
from streambroker_operator.cli.io.errors import OK, UsageError
from streambroker_operator.cli.io.options import (
    add_everywhere,
    add_output,
    add_remote_command,
    client_for,
    namespace_for,
)
from streambroker_operator.cli.io.targets import (
    KINDS,
    PORT_KINDS,
    SINGULAR,
    Item,
    Target,
    find_items,
    item_names,
    list_items,
    read_targets,
    select_items,
    target_namespace,
)
from streambroker_operator.cli.io.terminal import Colour, one_line, paint, print_text
from streambroker_operator.cli.output import table

WHAT = "KIND [NAME…] | KIND/NAME | JOB/PE/PORT"
_COLOURS: dict[str, Colour] = {"ADDED": "green", "DELETED": "red"}


def add(commands: Any) -> None:
    """Add the commands."""
    get = add_remote_command(commands, "get", "show exports, imports, PEs and routes")
    get.add_argument("words", nargs="*", metavar=WHAT, help="exports, imports, pes, routes, all")
    add_output(get)
    add_everywhere(get)
    get.add_argument("-w", "--watch", action="store_true", help="keep running and show changes")
    get.add_argument(
        "--match", metavar="EXPR", help="only exports whose properties satisfy this subscription"
    )
    get.add_argument(
        "--search", metavar="TEXT", help="only exports with these words in anything people read"
    )
    get.add_argument("--no-headers", action="store_true", help="rows only")
    get.set_defaults(run=_get)
    watch = add_remote_command(commands, "watch", "show what happens, as it happens")
    watch.add_argument("words", nargs="*", metavar=WHAT, help="only these; all if none is given")
    add_output(watch, "table", "json")
    add_everywhere(watch)
    watch.set_defaults(run=_watch)


def _get(options: argparse.Namespace) -> int:
    targets, broker = read_targets(options.words), client_for(options)
    matches = _match_filter(options.match, options.search, targets)
    if options.watch:
        return _get_and_watch(options, targets, broker, matches)
    matched = [
        (kind, [item for item in items if matches(item)])
        for kind, items in _find_all(broker, targets, namespace_for(options))
    ]
    if options.output in ("json", "yaml"):
        found = [table.with_kind(kind, item) for kind, items in matched for item in items]
        single = len(found) == len(targets) == 1 and targets[0].name is not None
        print_text(table.render_document(found, options.output, single=single))
        return OK
    titled = len(matched) > 1 and options.output != "name" and not options.no_headers
    parts = [
        (f"{paint(kind, 'bold')}\n" if titled else "")
        + table.render_items(
            kind,
            items,
            options.output,
            everywhere=options.all_namespaces,
            headers=not options.no_headers,
        )
        for kind, items in matched
        if items
    ]
    print_text(("\n" if titled else "").join(parts))
    _report_empty([kind for kind, items in matched if not items], namespace_for(options))
    return OK


def _report_empty(kinds: Sequence[str], namespace: str) -> None:
    """Print which kinds are empty, to standard error: scripts read standard output as rows."""
    if kinds:
        where = "any namespace" if namespace == "*" else f"namespace {namespace}"
        sys.stderr.write(f"streambroker: no {', '.join(kinds)} in {where}\n")


def _match_filter(
    text: str | None, words: str | None, targets: Sequence[Target]
) -> Callable[[Item], bool]:
    """Return the predicate of ``--match`` and ``--search``, which apply to Exports only."""
    if words is not None:
        if any(target.kinds != ("exports",) for target in targets):
            raise UsageError("--search finds exports: `get exports --search TEXT`.")
        expected, found = _match_filter(text, None, targets), _search_filter(words)
        return lambda item: expected(item) and found(item)
    if text is None:
        return lambda _: True
    if any(target.kinds != ("exports",) for target in targets):
        raise UsageError("--match tests the properties of exports: `get exports --match EXPR`.")
    from streambroker_core.expression import parse

    try:
        expression = parse(text, "subscription")
    except SubscriptionError as error:
        facts: Item = {"text": text, "position": error.position}
        raise broker_error(422, error.code, str(error), **facts) from error
    return lambda item: expression.evaluate(item["spec"].get("properties") or {}) is True


def _search_filter(words: str) -> Callable[[Item], bool]:
    from streambroker_core.catalog.search import matches_words, searched_text
    from streambroker_core.wire.manifests.ports import read_manifest

    def test(item: Item) -> bool:
        export = read_manifest(table.with_kind("exports", item), loose=True)
        return isinstance(export, Export) and matches_words(searched_text(export), words)

    return test


def _find_all(
    broker: Broker, targets: Sequence[Target], namespace: str
) -> list[tuple[str, list[Item]]]:
    by_kind: dict[str, list[Item]] = {}
    for target in targets:
        for kind, items in find_items(broker, target, namespace):
            collected = by_kind.setdefault(kind, [])
            collected += [item for item in items if item not in collected]
    return list(by_kind.items())


def _get_and_watch(
    options: argparse.Namespace,
    targets: Sequence[Target],
    broker: Broker,
    matches: Callable[[Item], bool],
) -> int:
    namespace = _watch_namespace(targets, namespace_for(options))
    _check_names(broker, targets, namespace)
    tables = {
        kind: _WatchTable(kind, options, titled=len(_kinds(targets)) > 1)
        for kind in _kinds(targets)
    }
    for event in broker.in_namespace(namespace).watch(on_away=_report_away):
        if event.name == RESET:
            for target in targets:
                for kind in target.kinds:
                    items = list_items(broker, kind, namespace)
                    tables[kind].show_initial(
                        [item for item in select_items(kind, items, target.name) if matches(item)]
                    )
        elif event.kind in tables and _is_selected(event, targets):
            tables[event.kind].show_change(
                event.change, event.item, is_selected=matches(event.item)
            )
    return OK


def _report_away(error: BrokerUnavailableError) -> None:
    sys.stderr.write(f"streambroker: {error.code}: {error} Trying again.\n")


def _watch_namespace(targets: Sequence[Target], namespace: str) -> str:
    """Return the one namespace in the names of targets, or else the selected one."""
    namespaces = {target_namespace(target, namespace) for target in targets}
    if namespace == "*":
        return namespace
    if len(namespaces) > 1:
        raise UsageError("Name resources of one namespace, or watch all of them with -A.")
    return namespaces.pop()


def _check_names(broker: Broker, targets: Sequence[Target], namespace: str) -> None:
    """Refuse unknown names; for a route, each of its ends must exist, but not the route itself."""
    for target in targets:
        ends = target.name.split(":") if target.name is not None else []
        for name in ends:
            kinds = tuple(PORT_KINDS) if target.kinds == ("routes",) else target.kinds
            find_items(broker, Target(kinds=kinds, name=name), namespace)


def _kinds(targets: Sequence[Target]) -> list[str]:
    return [kind for kind in KINDS if any(kind in target.kinds for target in targets)]


def _is_selected(event: Event, targets: Sequence[Target]) -> bool:
    return any(
        event.kind in target.kinds and bool(select_items(event.kind, [event.item], target.name))
        for target in targets
    )


_Change: TypeAlias = tuple[str, Item]


class _WatchTable:
    def __init__(self, kind: str, options: argparse.Namespace, *, titled: bool) -> None:
        self._kind = kind
        self._titled = titled
        self._output = options.output
        self._headers = not options.no_headers
        self._everywhere = options.all_namespaces
        self._table = self._new_table()
        self._present: set[str] = set()

    def _new_table(self) -> table.Table[_Change]:
        def of_item(cell: Callable[[Item], str]) -> Callable[[_Change], str]:
            return lambda change: cell(change[1])

        items = table.item_columns(
            self._kind, wide=self._output == "wide", everywhere=self._everywhere
        )
        kind: table.Columns[_Change] = (
            {"KIND": lambda _: SINGULAR[self._kind]} if self._titled else {}
        )
        columns: table.Columns[_Change] = {
            "EVENT": lambda change: change[0],
            **kind,
            **{name: of_item(cell) for name, cell in items.items()},
        }
        return table.Table(columns, least={**{name: len(name) for name in columns}, "EVENT": 8})

    def show_initial(self, items: Sequence[Item]) -> None:
        """Show the existing items."""
        self._present |= {self._identity(item) for item in items}
        if self._output not in ("table", "wide"):
            for item in items:
                self._print_object("ADDED", item)
            return
        self._table = self._new_table()
        rows = [("ADDED", item) for item in items]
        print_text(self._table.text(rows, header=self._headers))

    def show_change(self, change: str, item: Item, *, is_selected: bool) -> None:
        """Show one change; items that enter or leave the selection are shown as ADDED or DELETED.

        A deleted item is passed as it was before. `is_selected` concerns its current state.
        """
        identity = self._identity(item)
        was_present = identity in self._present
        if change == "DELETED" or not is_selected:
            if not was_present:
                return
            change = "DELETED"
            self._present.discard(identity)
        else:
            change = "MODIFIED" if was_present else "ADDED"
            self._present.add(identity)
        self._print_row(change, item)

    def _identity(self, item: Item) -> str:
        return table.qualified_name(self._kind, item, True)

    def _print_row(self, change: str, item: Item) -> None:
        if self._output not in ("table", "wide"):
            self._print_object(change, item)
            return
        (line,) = self._table.lines(
            [(change, item)], header=False, colour=lambda row: _COLOURS.get(row[0])
        )
        print_text(f"{line}\n")

    def _print_object(self, change: str, item: Item) -> None:
        body = {"type": change, "object": table.with_kind(self._kind, item)}
        if self._output == "name":
            name = table.qualified_name(self._kind, item, self._everywhere)
            print_text(f"{SINGULAR[self._kind]}/{name} {change.lower()}\n")
        elif self._output == "yaml":
            print_text("---\n" + table.as_yaml([body]))
        else:
            print_text(table.as_json(body, indent=None))


def _watch(options: argparse.Namespace) -> int:
    targets, broker = read_targets(options.words), client_for(options)
    namespace = _watch_namespace(targets, namespace_for(options))
    _check_names(broker, targets, namespace)
    has_started = False
    for event in broker.in_namespace(namespace).watch(on_away=_report_away):
        if event.name == RESET:
            if has_started:
                sys.stderr.write("streambroker: events were missed; `streambroker get` lists all\n")
            has_started = True
            continue
        if not _is_selected(event, targets):
            continue
        if options.output == "json":
            body = {"event": event.name, **event.data}
            print_text(table.as_json(body, indent=None))
        else:
            print_text(_event_line(event, datetime.now().astimezone()))
    return OK


def _event_line(event: Event, now: datetime) -> str:
    if event.kind == "routes":
        name = f"{event.item['export']} -> {event.item['import']}"
    else:
        name = item_names(event.kind, event.item)[-1]
        if event.kind == "pes":
            name = item_names(event.kind, event.item)[1]
    reason = event.data.get("reason") or _route_change_text(event) or _spec_text(event)
    text = one_line(f"{event.change:<8}  {SINGULAR[event.kind]:<6}  {name}")
    colour = _COLOURS.get(event.change)
    return f"{now:%H:%M:%S}  {paint(text, colour)}{f': {reason}' if reason else ''}\n"


def _spec_text(event: Event) -> str:
    """Return an Export's offer and end, or an Import's subscription and filter; else empty."""
    if event.kind not in PORT_KINDS or event.change == "DELETED":
        return ""
    spec = event.item["spec"]
    if event.kind == "exports":
        return one_line(
            table.offer_text(spec) + (", ended" if event.item["status"].get("ended") else "")
        )
    filter_ = f", filter {table.shorten(spec['filter'])}" if spec.get("filter") else ""
    return one_line(table.subscription_text(spec) + filter_)


def _route_change_text(event: Event) -> str:
    """Return the changed values of a route; empty for other events."""
    previous: Item = event.data.get("was", {})
    return one_line(
        ", ".join(f"{name} {old} => {event.item.get(name)}" for name, old in previous.items())
    )
