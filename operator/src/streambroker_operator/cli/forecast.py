"""What changes would do to routes, asked before they are made and told after."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from streambroker_core.model import PeKey, PortKey, Resource, kind_of
from streambroker_core.wire.manifest import write_manifest, write_spec
from streambroker_operator.cli.client import Caller
from streambroker_operator.cli.errors import (
    OK,
    REFUSED,
    WOULD_CUT,
    UsageError,
    tally,
    tell,
    with_text,
)
from streambroker_operator.cli.options import one_of
from streambroker_operator.cli.tables import as_json, as_yaml
from streambroker_operator.cli.terminal import paint, plain, say
from streambroker_operator.errors import RequestError

MOST = 1_000
"""Changes that the broker foretells in one answer."""
MOST_BYTES = 900_000
"""Bytes of the documents of one question; the broker takes 1 MiB in all."""
SHOWN = 20
"""Refusals that are told one by one."""

_PLACE = re.compile(r"at line (?P<line>\d+), column (?P<column>\d+)")
_REMEDIES = {
    "PortTaken": " Delete that one first, use its name, or use another port.",
    "NameTaken": " Give this one another metadata.name.",
}

Deleted: TypeAlias = Sequence[tuple[str, PortKey | PeKey]]
"""What is deleted, by kind; PEs have no routes of their own."""


def add_file(command: argparse.ArgumentParser) -> None:
    """Add ``-f``, which may be given several times."""
    command.add_argument(
        "-f",
        "--file",
        "--filename",
        action="append",
        default=[],
        help="a file, a directory, or - for standard input; may be given several times",
    )


def add_dry_run(command: argparse.ArgumentParser) -> None:
    """Add ``--dry-run`` and ``--max-removed``."""
    command.add_argument(
        "--dry-run",
        nargs="?",
        type=one_of("none", "client", "server"),
        const="server",
        default="none",
        metavar="none|client|server",
        help="client: only check the file; server: show what it would do, as whatif, and end "
        "with 3 if a route would be cut, unless --max-removed allows it",
    )
    add_guard(command)


def add_guard(command: argparse.ArgumentParser, *, foretells: bool = False) -> None:
    """Add ``--max-removed``, of a command that changes something or only foretells."""
    command.add_argument(
        "--max-removed",
        type=_count,
        metavar="N",
        help="end with 3 if more than N routes would be cut; default 0"
        if foretells
        else "cut so many routes at most, else change nothing and end with 3; default any number",
    )


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is no count")
    return int(text)


def foretell(
    caller: Caller, options: argparse.Namespace, resources: Sequence[Resource], deleted: Deleted
) -> int:
    """Show what changes would do; return the exit code that says whether they may."""
    answer = _asked(caller, options, resources, deleted)
    output = getattr(options, "output", "table")
    if output == "json":
        say(as_json(answer))
    elif output == "yaml":
        say(as_yaml([answer]))
    else:
        say(foretold(answer, _named_changes(resources, deleted)))
    return _verdict(answer, options)


def barred(
    caller: Caller,
    options: argparse.Namespace,
    resources: Sequence[Resource],
    deleted: Deleted,
    *,
    total: int,
    done: int = 0,
) -> int:
    """Ask before changes are made; tell what is against them.

    Args:
        caller: the broker.
        options: with ``max_removed``, None for any number.
        resources: to be put, at most as many as one what-if takes.
        deleted: to be deleted.
        total: how many changes the command makes in all.
        done: how many of them are made already.

    Returns:
        0: make them; else the exit code for not making any.
    """
    verb = "applied" if resources else "deleted"
    try:
        answer = _asked(caller, options, resources, deleted)
    except RequestError as error:
        if error.code == "ForecastTooLarge" and options.max_removed is None:
            return OK
        raise
    refused = _refused(answer, options)
    for problem in refused[:SHOWN]:
        tell(_refusal(problem, resources, deleted))
    if refused:
        tally(verb, done, total, refused=len(refused))
        return REFUSED
    cut = len(answer["cut"])
    if options.max_removed is None or cut <= options.max_removed:
        return OK
    say(foretold(answer, _named_changes(resources, deleted), f"nothing was {verb}"))
    routes = "1 route" if cut == 1 else f"{cut} routes"
    reason = f"{routes} would be cut, --max-removed allows {options.max_removed}"
    tell(RequestError(409, "WouldCut", f"{reason}; nothing was {verb}."))
    return WOULD_CUT


def parts_of(resources: Sequence[Resource], *, whole: bool) -> Iterator[list[Resource]]:
    """Yield resources in their order, as many at once as one what-if takes.

    Args:
        resources: all of them.
        whole: routes are counted for all together, so that there may be one part only.

    Raises:
        UsageError: there would be more.
    """
    part: list[Resource] = []
    room = MOST_BYTES
    for resource in resources:
        size = len(json.dumps(write_manifest(resource)))
        if part and (len(part) == MOST or size > room):
            if whole:
                raise UsageError(
                    "--max-removed counts the routes of all documents together, and "
                    f"{len(resources):,} are too many to ask about at once; {len(part):,} are not."
                )
            yield part
            part, room = [], MOST_BYTES
        part.append(resource)
        room -= size + 2
    yield part


def _refused(answer: Any, options: argparse.Namespace) -> list[dict[str, Any]]:
    passed_over = "UnknownPort" if getattr(options, "ignore_not_found", False) else ""
    problems = answer["problems"]
    return [p for p in problems if p.get("refused", True) and p["code"] != passed_over]


def _refusal(
    problem: dict[str, Any], resources: Sequence[Resource], deleted: Deleted
) -> RequestError:
    """Return what is told of a document that would be refused, with the place in its text."""
    index, code = problem["index"], problem["code"]
    who = _named_changes(resources, deleted)[index]
    remedy = _REMEDIES.get(code, "")
    place = _PLACE.search(problem["detail"])
    facts = {} if place is None else {"position": {k: int(v) for k, v in place.groupdict().items()}}
    found = RequestError(409, code, f"{who}: {problem['detail']}{remedy}", facts=facts)
    return with_text(found, write_spec(resources[index])) if index < len(resources) else found


def _verdict(answer: Any, options: argparse.Namespace) -> int:
    if _refused(answer, options):
        return REFUSED
    return OK if len(answer["cut"]) <= (options.max_removed or 0) else WOULD_CUT


def _asked(
    caller: Caller, options: argparse.Namespace, resources: Sequence[Resource], deleted: Deleted
) -> Any:
    ports = [(kind, key) for kind, key in deleted if isinstance(key, PortKey)]
    if max(len(resources), len(ports)) > MOST:
        raise UsageError(
            f"A what-if takes at most {MOST:,} changes, these are "
            f"{max(len(resources), len(ports)):,}: ask in parts."
        )
    body = {
        "resources": [write_manifest(resource) for resource in resources],
        "delete": [
            {
                "kind": kind,
                "namespace": key.namespace,
                "job": key.job,
                "pe": key.pe,
                "port": key.port,
            }
            for kind, key in ports
        ],
    }
    return caller.call("POST", "/whatif", body, namespace=options.namespace)


def _named_changes(resources: Sequence[Resource], deleted: Deleted) -> list[str]:
    """Return what was asked about, as the problems of a what-if count it."""
    named = [f"{kind_of(resource).lower()} {resource.key}" for resource in resources]
    ports = [(kind, key) for kind, key in deleted if isinstance(key, PortKey)]
    return named + [f"delete {kind.lower()} {key}" for kind, key in ports]


def foretold(
    answer: dict[str, Any], changes: Sequence[str], end: str = "nothing was applied"
) -> str:
    """Return what a what-if says: routes with their signs, then the counts.

    Args:
        answer: of the broker.
        changes: what was asked about, as problems count it.
        end: the last words.

    Returns:
        Lines with ``+`` added, ``-`` cut, ``~`` changed; with ``!`` what would be refused
        and with ``?`` what would be accepted and lead to nothing.
    """
    lines = _signed(answer["added"], answer["cut"])
    for route in answer["changed"]:
        was = ", ".join(f"{k} {v} => {route[k]}" for k, v in route["was"].items())
        text = plain(f"  ~ {route['export']} -> {route['import']}: {was}")
        lines.append(paint(text, "yellow"))
    for problem in answer["problems"]:
        index, refused = problem["index"], problem.get("refused", True)
        who = changes[index] if 0 <= index < len(changes) else f"change {index + 1}"
        text = f"  {'!' if refused else '?'} {who}: {problem['code']}: {problem['detail']}"
        lines.append(paint(plain(text), "red" if refused else "yellow"))
    counts = (
        f"{len(answer['added'])} added, {len(answer['cut'])} cut, {answer['kept']} kept, "
        f"{len(answer['changed'])} changed; {end}"
    )
    return "".join(f"{line}\n" for line in [*lines, counts])


def routes_text(answer: dict[str, Any]) -> str:
    """Return what a change did to routes: counts, and a line for each added and each cut."""
    routes = answer["routes"]
    counts = f" (routes: {len(routes['kept'])} kept, {len(routes['added'])} added"
    head = f"{counts}, {len(routes['cut'])} cut)"
    return "\n".join([head, *_signed(routes["added"], routes["cut"])])


def _signed(added: Sequence[dict[str, Any]], cut: Sequence[dict[str, Any]]) -> list[str]:
    plus = [f"  + {route['export']} -> {route['import']}" for route in added]
    minus = [f"  - {route['export']} -> {route['import']}: {route['reason']}" for route in cut]
    return [
        *(paint(plain(line), "green") for line in plus),
        *(paint(plain(line), "red") for line in minus),
    ]
