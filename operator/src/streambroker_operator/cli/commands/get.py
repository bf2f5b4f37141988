"""``get`` and ``watch``: lists, and what changes in them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from streambroker_core.errors import SubscriptionError
from streambroker_core.expression import parse
from streambroker_operator.cli.io.client import Caller
from streambroker_operator.cli.io.errors import OK, UsageError
from streambroker_operator.cli.io.event_stream import RESET, Event, follow
from streambroker_operator.cli.io.options import (
    add_everywhere,
    add_output,
    caller_of,
    namespace_of,
    remote,
)
from streambroker_operator.cli.io.targets import (
    KINDS,
    PORT_KINDS,
    SINGULAR,
    Item,
    Target,
    chosen,
    find,
    names_of,
    namespace_in,
    read_targets,
)
from streambroker_operator.cli.io.terminal import Colour, flat, paint, say
from streambroker_operator.cli.output.table import (
    Layout,
    as_json,
    as_yaml,
    name_in,
    offered,
    short,
    shown,
    table,
    wanted,
    widths_of,
    with_kind,
)
from streambroker_operator.errors import RequestError

WHAT = "KIND [NAME…] | KIND/NAME | JOB/PE/PORT"
_COLOURS: dict[str, Colour] = {"ADDED": "green", "DELETED": "red"}


def add(commands: Any) -> None:
    """Add the commands."""
    get = remote(commands, "get", "show exports, imports, PEs and routes")
    get.add_argument("words", nargs="*", metavar=WHAT, help="exports, imports, pes, routes, all")
    add_output(get)
    add_everywhere(get)
    get.add_argument("-w", "--watch", action="store_true", help="go on with what changes")
    get.add_argument(
        "--match", metavar="EXPR", help="only exports of whose properties this subscription is true"
    )
    get.add_argument("--no-headers", action="store_true", help="rows only")
    get.set_defaults(run=_get)
    watch = remote(commands, "watch", "show what happens, as it happens")
    watch.add_argument("words", nargs="*", metavar=WHAT, help="only these; all if none is given")
    add_output(watch, "table", "json")
    add_everywhere(watch)
    watch.set_defaults(run=_watch)


def _get(options: argparse.Namespace) -> int:
    targets, caller = read_targets(options.words), caller_of(options)
    matches = _matching(options.match, targets)
    if options.watch:
        return _get_on(options, targets, caller, matches)
    found = [
        (kind, [item for item in items if matches(item)])
        for kind, items in _found(caller, targets, namespace_of(options))
    ]
    if options.output in ("json", "yaml"):
        say(_document(found, options.output, single=_is_single(targets, found)))
        return OK
    titled = len(found) > 1 and options.output != "name" and not options.no_headers
    parts = [
        (f"{paint(kind, 'bold')}\n" if titled else "")
        + shown(
            kind,
            items,
            options.output,
            everywhere=options.all_namespaces,
            headers=not options.no_headers,
        )
        for kind, items in found
        if items
    ]
    say(("\n" if titled else "").join(parts))
    _tell_empty([kind for kind, items in found if not items], namespace_of(options))
    return OK


def _tell_empty(kinds: Sequence[str], namespace: str) -> None:
    """Say what there is none of; not among the rows, where scripts would take it for one."""
    if kinds:
        where = "any namespace" if namespace == "*" else f"namespace {namespace}"
        sys.stderr.write(f"streambroker: no {', '.join(kinds)} in {where}\n")


def _matching(text: str | None, targets: Sequence[Target]) -> Callable[[Item], bool]:
    """Return what says whether an item is wanted by ``--match``.

    Raises:
        UsageError: it is given for anything but Exports.
        SubscriptionError: it cannot be read.
    """
    if text is None:
        return lambda _: True
    if any(target.kinds != ("exports",) for target in targets):
        raise UsageError("--match asks the properties of exports: `get exports --match EXPR`.")
    try:
        expression = parse(text, "subscription")
    except SubscriptionError as error:
        facts = {"text": text, "position": error.position}
        raise RequestError(0, error.code, str(error), facts=facts) from error
    return lambda item: expression.evaluate(item["spec"].get("properties") or {}) is True


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


def _get_on(
    options: argparse.Namespace,
    targets: Sequence[Target],
    caller: Caller,
    matches: Callable[[Item], bool],
) -> int:
    """Show the lists, then each change, until interrupted."""
    namespace = _watched(targets, namespace_of(options))
    _check_names(caller, targets, namespace)
    sheets = {
        kind: _Sheet(kind, options, titled=len(_kinds(targets)) > 1) for kind in _kinds(targets)
    }
    for event in follow(caller, namespace):
        if event.name == RESET:
            for target in targets:
                for kind in target.kinds:
                    items = caller.items(f"/{kind}", namespace=namespace)
                    sheets[kind].begin(
                        [item for item in chosen(kind, items, target.name) if matches(item)]
                    )
        elif event.kind in sheets and _wanted(event, targets):
            sheets[event.kind].go_on(event.change, event.item, asked=matches(event.item))
    return OK


def _watched(targets: Sequence[Target], namespace: str) -> str:
    """Return the namespace that names say, or the one that is asked about.

    Raises:
        UsageError: they say several.
    """
    found = {namespace_in(target, namespace) for target in targets}
    if namespace == "*":
        return namespace
    if len(found) > 1:
        raise UsageError("Name what is of one namespace, or watch all of them with -A.")
    return found.pop()


def _check_names(caller: Caller, targets: Sequence[Target], namespace: str) -> None:
    """Refuse names that nothing has; a route may come later, if one of its ends is there.

    Raises:
        RequestError: nothing has a name; the message names the nearest that there is.
    """
    for target in targets:
        ends = target.name.split(":") if target.name is not None else []
        for name in ends:
            kinds = PORT_KINDS if target.kinds == ("routes",) else target.kinds
            find(caller, Target(kinds=kinds, name=name), namespace)


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
        self._first = [SINGULAR[kind]] if titled else []
        self._headers = not options.no_headers
        self._everywhere = options.all_namespaces
        self._layout = Layout(
            kind, wide=options.output == "wide", everywhere=options.all_namespaces
        )
        self._widths: list[int] = []
        self._there: set[str] = set()

    def begin(self, items: Sequence[Item]) -> None:
        """Show what there is."""
        self._there |= {self._identity(item) for item in items}
        if self._output not in ("table", "wide"):
            for item in items:
                self._write("ADDED", item)
            return
        head = ["EVENT", *(["KIND"] if self._first else []), *self._layout.head]
        rows = [["ADDED", *self._first, *self._layout.row(item)] for item in items]
        self._widths = widths_of([head, *rows], [8] + [0] * (len(head) - 1))
        if self._headers:
            rows.insert(0, head)
        if rows:
            say(table(rows, self._widths))

    def go_on(self, change: str, item: Item, *, asked: bool) -> None:
        """Show one change; to whoever asks for a part, what leaves it is gone, what comes is new.

        Args:
            change: ADDED, MODIFIED or DELETED.
            item: as it is now, or was before it went.
            asked: whether it is asked for as it is now.
        """
        identity = self._identity(item)
        known = identity in self._there
        if change == "DELETED" or not asked:
            if not known:
                return
            change = "DELETED"
            self._there.discard(identity)
        else:
            change = "MODIFIED" if known else "ADDED"
            self._there.add(identity)
        self._show(change, item)

    def _identity(self, item: Item) -> str:
        return name_in(self._kind, item, True)

    def _show(self, change: str, item: Item) -> None:
        if self._output not in ("table", "wide"):
            self._write(change, item)
            return
        row = [change, *self._first, *self._layout.row(item)]
        self._widths = widths_of([row], self._widths)
        line = table([row], self._widths)
        say(paint(line.rstrip("\n"), _COLOURS.get(change)) + "\n")

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
    namespace = _watched(targets, namespace_of(options))
    _check_names(caller, targets, namespace)
    begun = False
    for event in follow(caller, namespace):
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
    why = event.data.get("reason") or _turned(event) or _content(event)
    text = flat(f"{event.change:<8}  {SINGULAR[event.kind]:<6}  {what}")
    colour = _COLOURS.get(event.change)
    return f"{now:%H:%M:%S}  {paint(text, colour)}{f': {why}' if why else ''}\n"


def _content(event: Event) -> str:
    """Return what an Export offers now and its end, or an Import wants; empty for all else."""
    if event.kind not in PORT_KINDS or event.change == "DELETED":
        return ""
    spec = event.item["spec"]
    if event.kind == "exports":
        return flat(offered(spec) + (", ended" if event.item["status"].get("ended") else ""))
    filter_ = f", filter {short(spec['filter'])}" if spec.get("filter") else ""
    return flat(wanted(spec) + filter_)


def _turned(event: Event) -> str:
    """Return what is another of a route that goes on; empty for all else."""
    was: Item = event.data.get("was", {})
    return flat(", ".join(f"{name} {old} => {event.item.get(name)}" for name, old in was.items()))
