"""``get`` and ``watch``: lists, and what changes in them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from streambroker_operator.cli.addresses import (
    KINDS,
    SINGULAR,
    Item,
    Target,
    chosen,
    find,
    names_of,
    read_targets,
)
from streambroker_operator.cli.client import Caller
from streambroker_operator.cli.errors import OK
from streambroker_operator.cli.events import RESET, Event, follow
from streambroker_operator.cli.options import (
    add_everywhere,
    add_output,
    caller_of,
    namespace_of,
    remote,
)
from streambroker_operator.cli.tables import (
    Layout,
    as_json,
    as_yaml,
    name_in,
    shown,
    table,
    widths_of,
    with_kind,
)
from streambroker_operator.cli.terminal import Colour, flat, paint, say

WHAT = "KIND [NAME…] | KIND/NAME | JOB/PE/PORT"
_COLOURS: dict[str, Colour] = {"ADDED": "green", "DELETED": "red"}


def add(commands: Any) -> None:
    """Add the commands."""
    get = remote(commands, "get", "show exports, imports, PEs and routes")
    get.add_argument("words", nargs="*", metavar=WHAT, help="exports, imports, pes, routes, all")
    add_output(get)
    add_everywhere(get)
    get.add_argument("-w", "--watch", action="store_true", help="go on with what changes")
    get.set_defaults(run=_get)
    watch = remote(commands, "watch", "show what happens, as it happens")
    watch.add_argument("words", nargs="*", metavar=WHAT, help="only these; all if none is given")
    add_output(watch, "table", "json")
    add_everywhere(watch)
    watch.set_defaults(run=_watch)


def _get(options: argparse.Namespace) -> int:
    targets, caller = read_targets(options.words), caller_of(options)
    if options.watch:
        return _get_on(options, targets, caller)
    found = _found(caller, targets, namespace_of(options))
    if options.output in ("json", "yaml"):
        say(_document(found, options.output, single=_is_single(targets, found)))
        return OK
    for kind, items in found:
        if len(found) > 1 and options.output != "name":
            say(f"\n{paint(kind, 'bold')}\n")
        say(shown(kind, items, options.output, everywhere=options.all_namespaces))
    return OK


def _found(
    caller: Caller, targets: Sequence[Target], namespace: str
) -> list[tuple[str, list[Item]]]:
    """Return all that is asked for, each kind once."""
    found: dict[str, list[Item]] = {}
    for target in targets:
        for kind, items in find(caller, target, namespace):
            known = found.setdefault(kind, [])
            known += [item for item in items if item not in known]
    return list(found.items())


def _is_single(targets: Sequence[Target], found: Sequence[tuple[str, list[Item]]]) -> bool:
    named = len(targets) == 1 and targets[0].name is not None
    return named and sum(len(items) for _, items in found) == 1


def _document(found: Sequence[tuple[str, list[Item]]], output: str, *, single: bool) -> str:
    items = [with_kind(kind, item) for kind, found_ in found for item in found_]
    if output == "yaml":
        return as_yaml(items)
    whole = {"apiVersion": "v1", "kind": "List", "items": items}
    return as_json(items[0] if single else whole)


def _get_on(options: argparse.Namespace, targets: Sequence[Target], caller: Caller) -> int:
    """Show the lists, then each change, until interrupted."""
    namespace = namespace_of(options)
    sheets = {
        kind: _Sheet(kind, options, titled=len(_kinds(targets)) > 1) for kind in _kinds(targets)
    }
    for event in follow(caller, namespace):
        if event.name == RESET:
            for target in targets:
                for kind in target.kinds:
                    items = caller.items(f"/{kind}", namespace=namespace)
                    sheets[kind].begin(chosen(kind, items, target.name))
        elif event.kind in sheets and _wanted(event, targets):
            sheets[event.kind].go_on(event)
    return OK


def _kinds(targets: Sequence[Target]) -> list[str]:
    return [kind for kind in KINDS if any(kind in target.kinds for target in targets)]


def _wanted(event: Event, targets: Sequence[Target]) -> bool:
    return any(
        event.kind in target.kinds and bool(chosen(event.kind, [event.item], target.name))
        for target in targets
    )


class _Sheet:
    """One table that grows."""

    def __init__(self, kind: str, options: argparse.Namespace, *, titled: bool) -> None:
        self._kind = kind
        self._output = options.output
        self._title = f"\n{paint(kind, 'bold')}\n" if titled else ""
        self._everywhere = options.all_namespaces
        self._layout = Layout(
            kind, wide=options.output == "wide", everywhere=options.all_namespaces
        )
        self._widths: list[int] = []

    def begin(self, items: Sequence[Item]) -> None:
        """Show what there is."""
        if self._output not in ("table", "wide"):
            for item in items:
                self._write("ADDED", item)
            return
        rows = [["EVENT", *self._layout.head]]
        rows += [["ADDED", *self._layout.row(item)] for item in items]
        self._widths = widths_of(rows, [8] + [0] * len(self._layout.head))
        say(self._title + table(rows, self._widths))

    def go_on(self, event: Event) -> None:
        """Show one change."""
        if self._output not in ("table", "wide"):
            self._write(event.change, event.item)
            return
        row = [event.change, *self._layout.row(event.item)]
        self._widths = widths_of([row], self._widths)
        line = table([row], self._widths)
        say(paint(line.rstrip("\n"), _COLOURS.get(event.change)) + "\n")

    def _write(self, change: str, item: Item) -> None:
        body = {"type": change, "object": with_kind(self._kind, item)}
        if self._output == "name":
            name = name_in(self._kind, item, self._everywhere)
            say(f"{SINGULAR[self._kind]}/{name} {change.lower()}\n")
        elif self._output == "yaml":
            say("---\n" + as_yaml([body]))
        else:
            say(json.dumps(body, ensure_ascii=False) + "\n")


def _watch(options: argparse.Namespace) -> int:
    targets, caller = read_targets(options.words), caller_of(options)
    begun = False
    for event in follow(caller, namespace_of(options)):
        if event.name == RESET:
            if begun:
                sys.stderr.write("streambroker: events were missed; `streambroker get` lists all\n")
            begun = True
            continue
        if not _wanted(event, targets):
            continue
        if options.output == "json":
            body = {"event": event.name, **event.data}
            say(json.dumps(body, ensure_ascii=False) + "\n")
        else:
            say(_line(event, datetime.now().astimezone()))
    return OK


def _line(event: Event, now: datetime) -> str:
    if event.kind == "routes":
        what = f"{event.item['export']} -> {event.item['import']}"
    else:
        what = names_of(event.kind, event.item)[-1]
        if event.kind == "pes":
            what = names_of(event.kind, event.item)[1]
    why = event.data.get("reason") or _turned(event)
    text = flat(f"{event.change:<8}  {SINGULAR[event.kind]:<6}  {what}")
    colour = _COLOURS.get(event.change)
    return f"{now:%H:%M:%S}  {paint(text, colour)}{f': {why}' if why else ''}\n"


def _turned(event: Event) -> str:
    """Return what is another of a route that goes on; empty for all else."""
    was: Item = event.data.get("was", {})
    return flat(", ".join(f"{name} {old} => {event.item.get(name)}" for name, old in was.items()))
