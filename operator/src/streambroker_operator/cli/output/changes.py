"""Sets of changes: what they would do to routes, and making them all at once."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from streambroker_core.diagnose import Removal
from streambroker_core.model import Resource
from streambroker_core.wire.manifests.ports import write_manifest, write_spec
from streambroker_operator.cli.io.client import Caller
from streambroker_operator.cli.io.errors import (
    OK,
    REFUSED,
    WOULD_CUT,
    UsageError,
    exit_code,
    note,
    tally,
    tell,
    with_text,
)
from streambroker_operator.cli.io.options import one_of
from streambroker_operator.cli.io.terminal import Colour, is_terminal, paint, plain, say
from streambroker_operator.cli.output.table import as_json, as_yaml
from streambroker_operator.errors import RequestError

MOST = 1_000
"""Changes that the broker takes at once."""
MOST_BYTES = 900_000
"""Bytes of the documents of one request; the broker takes 1 MiB in all."""
SHOWN = 20
"""Refusals that are told one by one."""
ABSENT = ("UnknownPort", "PortTaken")
"""Why a deletion is refused: there is nothing, or something else."""

_PLACE = re.compile(r"at line (?P<line>\d+), column (?P<column>\d+)")
_COLOURS: dict[str, Colour] = {"+": "green", "-": "red", "~": "yellow", "!": "red", "?": "yellow"}
_BECAME = {"changed": "configured"}


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
    """Add ``--dry-run``."""
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


def add_guard(command: Any, help_text: str) -> None:
    """Add ``--max-removed``."""
    command.add_argument("--max-removed", type=_count, metavar="N", help=help_text)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise argparse.ArgumentTypeError(f"{text!r} is no count")
    return int(text)


# ---- asking ------------------------------------------------------------------------------------


def foretell(
    caller: Caller,
    options: argparse.Namespace,
    resources: Sequence[Resource],
    deleted: Sequence[Removal],
) -> int:
    """Show what changes would do; return the exit code that says whether they may."""
    if max(len(resources), len(deleted)) > MOST:
        raise UsageError(
            f"A what-if takes at most {MOST:,} changes, these are "
            f"{max(len(resources), len(deleted)):,}: ask in parts."
        )
    body = _proposal(resources, deleted)
    answer = caller.call("POST", "/whatif", body, namespace=options.namespace)
    output = getattr(options, "output", "table")
    if output == "json":
        say(as_json(answer))
    elif output == "yaml":
        say(as_yaml([answer]))
    else:
        say(painted(answer["text"], "nothing was applied"))
    passed_over = ABSENT if getattr(options, "ignore_not_found", False) else ()
    if any(p["refused"] and p["code"] not in passed_over for p in answer["problems"]):
        return REFUSED
    return OK if len(answer["cut"]) <= (options.max_removed or 0) else WOULD_CUT


def painted(text: str, end: str = "") -> str:
    """Return a forecast in its colours, with some words behind the counts."""
    lines = [paint(line, _COLOURS.get(line.lstrip()[:1])) for line in plain(text).split("\n")]
    return "\n".join(lines) + (f"; {end}\n" if end else "\n")


def _proposal(resources: Sequence[Resource], deleted: Sequence[Removal]) -> dict[str, Any]:
    return {
        "resources": [write_manifest(resource) for resource in resources],
        "delete": [
            {
                "kind": kind,
                "namespace": key.namespace,
                "job": key.job,
                "pe": key.pe,
                "port": key.port,
                **({"name": name} if name else {}),
            }
            for kind, key, name in deleted
        ],
    }


# ---- making them -------------------------------------------------------------------------------


def apply_all(caller: Caller, options: argparse.Namespace, resources: Sequence[Resource]) -> int:
    """Apply resources, as many at once as the broker takes; stop at what is refused."""
    parts = deque(_parts_of(resources))
    check_parts(options, parts)
    may_be_cut = None if options.yes else options.max_removed or 0
    done = 0
    while parts:
        part = parts.popleft()
        try:
            try:
                change_all(caller, options, part, [], may_be_cut)
            except RequestError as error:
                if not _is_confirmed(error, options):
                    raise
                change_all(caller, options, part, [], error.facts["cut"])
        except RequestError as error:
            large = error.code == "ForecastTooLarge" and options.max_removed is None
            if not large or len(part) == 1:
                if error.code == "WouldCut" and options.max_removed is None:
                    note(["apply cuts routes only with --yes or --max-removed N"])
                return told(error, part, "applied", done, len(resources))
            half = len(part) // 2
            parts.extendleft((part[half:], part[:half]))
            note([f"{len(part):,} changes concern too many routes at once; they go in halves"])
        else:
            done += len(part)
    return OK


def check_parts(options: argparse.Namespace, parts: Sequence[Sequence[object]]) -> None:
    """Say so if changes are too many to be made at once.

    Raises:
        UsageError: they are, and the routes of all together are to be counted.
    """
    if len(parts) < 2:
        return
    total = sum(map(len, parts))
    if options.max_removed is not None:
        raise UsageError(
            "--max-removed counts the routes of all changes together, and "
            f"{total:,} are too many to make at once; {len(parts[0]):,} are not."
        )
    note(
        [
            f"{total:,} changes are too many to make at once; they go in {len(parts)} parts of"
            f" at most {MOST:,}, each of them whole or not at all"
        ]
    )


def change_all(
    caller: Caller,
    options: argparse.Namespace,
    resources: Sequence[Resource],
    deleted: Sequence[Removal],
    may_be_cut: int | None,
) -> None:
    """Make changes at once; show what became of them and of the routes.

    Args:
        caller: of the broker.
        options: of the command.
        resources: to be put.
        deleted: to be deleted.
        may_be_cut: the broker refuses the changes if they cut more routes; None for any number.

    Raises:
        RequestError: none of them was made, or no answer came.
    """
    query = {} if may_be_cut is None else {"maxRemoved": str(may_be_cut)}
    body = _proposal(resources, deleted)
    answer = caller.change("POST", "/apply", body, namespace=options.namespace, **query)
    if answer is None:
        say("done; what it did to routes is told once only, and the answer was lost\n")
        return
    for one in answer["results"]:
        became = _BECAME.get(one["became"], one["became"])
        say(f"{one['kind'].lower()} {one['port']} {became}\n")
    say(painted(answer["text"]))


def _is_confirmed(error: RequestError, options: argparse.Namespace) -> bool:
    """Show which routes would be cut and ask; return whether the user wants that.

    Only a user at a terminal who has set no limit is asked.
    """
    at_terminal = is_terminal(sys.stdin) and is_terminal()
    if error.code != "WouldCut" or options.max_removed is not None or not at_terminal:
        return False
    say(painted(str(error.facts.get("text"))))
    count = error.facts["cut"]
    say(f"Apply, and cut {count} route{'s' if count != 1 else ''}? [y/N] ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def told(
    error: RequestError, resources: Sequence[Resource], verb: str, done: int, total: int
) -> int:
    """Tell why a set of changes was not made; return the exit code.

    Args:
        error: the refusal.
        resources: that were to be put.
        verb: what was to be done, as ``applied``.
        done: how many changes were made before.
        total: how many there are.
    """
    if error.code == "WouldCut":
        say(painted(str(error.facts.get("text")), f"nothing was {verb}"))
    problems = refused_in(error)
    for problem in problems[:SHOWN]:
        tell(_refusal(problem, resources))
    if not problems:
        tell(error)
    if done or error.code != "WouldCut":
        how = "refused" if error.status else "failed"
        tally(verb, done, total, refused=max(len(problems), 1), how=how)
    return exit_code(error)


def refused_in(error: RequestError) -> list[dict[str, Any]]:
    """Return what was wrong with the changes of a set that was refused."""
    problems: list[dict[str, Any]] = error.facts.get("problems", [])
    return [problem for problem in problems if problem["refused"]]


def _refusal(problem: dict[str, Any], resources: Sequence[Resource]) -> RequestError:
    """Return what is told of a document that is refused, with the place in its text."""
    index = problem["index"]
    place = _PLACE.search(problem["detail"])
    facts = {} if place is None else {"position": {k: int(v) for k, v in place.groupdict().items()}}
    detail = f"{problem['change']}: {problem['detail']}"
    found = RequestError(409, problem["code"], detail, facts=facts)
    return with_text(found, write_spec(resources[index])) if index < len(resources) else found


def _parts_of(resources: Sequence[Resource]) -> Iterator[list[Resource]]:
    """Yield resources in their order, as many together as the broker takes at once."""
    part: list[Resource] = []
    room = MOST_BYTES
    for resource in resources:
        size = len(json.dumps(write_manifest(resource)))
        if part and (len(part) == MOST or size > room):
            yield part
            part, room = [], MOST_BYTES
        part.append(resource)
        room -= size + 2
    yield part


# ---- one change --------------------------------------------------------------------------------


def routes_text(answer: dict[str, Any]) -> str:
    """Return what a single change did to routes: counts, and a line for each added and each cut."""
    routes = answer["routes"]
    counts = f" (routes: {len(routes['kept'])} kept, {len(routes['added'])} added"
    head = f"{counts}, {len(routes['cut'])} cut)"
    plus = [f"  + {route['export']} -> {route['import']}" for route in routes["added"]]
    minus = [
        f"  - {route['export']} -> {route['import']}: {route['reason']}" for route in routes["cut"]
    ]
    return painted("\n".join([head, *plus, *minus])).rstrip("\n")
