"""Sets of changes: show their forecast, or apply them."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from streambroker_client.answers import PortChange
from streambroker_client.broker import Broker
from streambroker_client.errors import BrokerError, broker_error
from streambroker_core.model import Removal, Resource
from streambroker_core.wire.manifests.ports import write_manifest, write_spec
from streambroker_operator.cli.io import errors
from streambroker_operator.cli.io.options import one_of
from streambroker_operator.cli.io.terminal import Colour, is_terminal, paint, print_text, sanitise
from streambroker_operator.cli.output.table import print_answer

MAX_CHANGES = 1_000
"""Maximum number of changes in one request."""
MAX_REQUEST_BYTES = 900_000
"""Maximum size of the documents in one request, in bytes; the broker accepts 1 MiB in total."""
MAX_PRINTED = 20
"""Maximum number of refusals printed one by one."""
ABSENT_CODES = ("UnknownPort", "PortTaken")
"""Codes of deletions refused because the resource is absent, or another one has the port."""

_POSITION = re.compile(r"at line (?P<line>\d+), column (?P<column>\d+)")
_COLOURS: dict[str, Colour] = {"+": "green", "-": "red", "~": "yellow", "!": "red", "?": "yellow"}
_RESULT_WORDS = {"changed": "configured"}


def add_file(
    command: argparse.ArgumentParser,
    text: str = "a file, a directory, or - for standard input; may be repeated",
    **more: Any,
) -> None:
    """Add ``-f``, which may be repeated; `more` are arguments of `add_argument`."""
    command.add_argument(
        "-f", "--file", "--filename", action="append", default=[], help=text, **more
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
        help=(
            "client: only check the file; server: show what it would do, as whatif, and exit"
            " with 3 if a route would be cut, unless --max-removed allows it"
        ),
    )


def add_guard(command: Any, help_text: str) -> None:
    """Add ``--max-removed``."""
    command.add_argument("--max-removed", type=_count, metavar="N", help=help_text)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise argparse.ArgumentTypeError(f"{text!r} is not a count")
    return int(text)


# ---- forecast ----------------------------------------------------------------------------------


def show_forecast(
    broker: Broker,
    options: argparse.Namespace,
    resources: Sequence[Resource],
    deleted: Sequence[Removal],
) -> int:
    """Show the forecast of changes; return the exit code that rates it."""
    if max(len(resources), len(deleted)) > MAX_CHANGES:
        raise errors.UsageError(
            f"A what-if takes at most {MAX_CHANGES:,} changes, these are"
            f" {max(len(resources), len(deleted)):,}: split them."
        )
    answer = broker.what_if(map(write_manifest, resources), delete=deleted)
    output = getattr(options, "output", "table")
    print_answer(answer, output, colour_forecast(answer.text, "nothing was applied"))
    ignored_codes = ABSENT_CODES if getattr(options, "ignore_not_found", False) else ()
    if any(p.refused and p.code not in ignored_codes for p in answer.problems):
        return errors.REFUSED
    return errors.OK if len(answer.cut) <= (options.max_removed or 0) else errors.WOULD_CUT


def colour_forecast(text: str, end: str = "") -> str:
    """Return a coloured forecast, with `end` after the counts."""
    lines = [paint(line, _COLOURS.get(line.lstrip()[:1])) for line in sanitise(text).split("\n")]
    return "\n".join(lines) + (f"; {end}\n" if end else "\n")


# ---- apply -------------------------------------------------------------------------------------


def apply_all(broker: Broker, options: argparse.Namespace, resources: Sequence[Resource]) -> int:
    """Apply resources in parts as large as the broker accepts; stop at the first refusal."""
    parts = deque(_split_resources(resources))
    check_parts(options, parts)
    max_cut = None if options.yes else options.max_removed or 0
    done = 0
    while parts:
        part = parts.popleft()
        try:
            try:
                change_all(broker, options, part, [], max_cut)
            except BrokerError as error:
                if not _confirm_cuts(error, options):
                    raise
                change_all(broker, options, part, [], error.problem["cut"])
        except BrokerError as error:
            too_large = error.code == "ForecastTooLarge" and options.max_removed is None
            if not too_large or len(part) == 1:
                if error.code == "WouldCut" and options.max_removed is None:
                    errors.print_notes(["apply cuts routes only with --yes or --max-removed N"])
                return report_refusal(error, part, "applied", done, len(resources))
            middle = len(part) // 2
            parts.extendleft((part[middle:], part[:middle]))
            errors.print_notes(
                [
                    f"{len(part):,} changes affect too many routes at once; they are sent in two"
                    " halves"
                ]
            )
        else:
            done += len(part)
    return errors.OK


def check_parts(options: argparse.Namespace, parts: Sequence[Sequence[object]]) -> None:
    """Print a note if the changes need more than one request.

    Refuse them if ``--max-removed`` limits the routes of all together.
    """
    if len(parts) < 2:
        return
    total = sum(map(len, parts))
    if options.max_removed is not None:
        raise errors.UsageError(
            f"--max-removed counts the routes of all changes together, and {total:,} are too many"
            f" for one request; {len(parts[0]):,} are not."
        )
    errors.print_notes(
        [
            f"{total:,} changes are too many for one request; they are sent in {len(parts)} parts"
            f" of at most {MAX_CHANGES:,}, each applied completely or not at all"
        ]
    )


def change_all(
    broker: Broker,
    options: argparse.Namespace,
    resources: Sequence[Resource],
    deleted: Sequence[Removal],
    max_cut: int | None,
) -> None:
    """Make changes in one request; print the result and the effect on routes.

    The broker refuses the changes if they cut more than `max_cut` routes; None for no limit.

    Raises:
        BrokerError: no change was made, or no response arrived.
    """
    manifests = map(write_manifest, resources)
    answer = broker.apply(manifests, delete=deleted, max_removed=max_cut)
    if not answer:
        print_text("done; the effect on routes is reported only once, and that answer was lost\n")
        return
    for change in answer.results:
        outcome = _RESULT_WORDS.get(change.became, change.became)
        print_text(f"{change.kind.lower()} {change.port} {outcome}\n")
    print_text(colour_forecast(answer.text))


def _confirm_cuts(error: BrokerError, options: argparse.Namespace) -> bool:
    """Show which routes would be cut, and ask; return whether the user agrees.

    Asks only at a terminal, and only without ``--max-removed``.
    """
    at_terminal = is_terminal(sys.stdin) and is_terminal()
    if error.code != "WouldCut" or options.max_removed is not None or not at_terminal:
        return False
    print_text(colour_forecast(str(error.problem.get("text"))))
    count = error.problem["cut"]
    print_text(f"Apply, and cut {count} route{'s' if count != 1 else ''}? [y/N] ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def report_refusal(
    error: BrokerError, resources: Sequence[Resource], verb: str, done: int, total: int
) -> int:
    """Print why changes were refused, after `done` of `total` were made; return the exit code."""
    if error.code == "WouldCut":
        print_text(colour_forecast(str(error.problem.get("text")), f"nothing was {verb}"))
    problems = refused_problems(error)
    for problem in problems[:MAX_PRINTED]:
        errors.print_error(_refusal(problem, resources))
    if not problems:
        errors.print_error(error)
    if done or error.code != "WouldCut":
        how = "refused" if error.status else "failed"
        errors.print_tally(verb, done, total, refused=max(len(problems), 1), how=how)
    return errors.exit_code(error)


def refused_problems(error: BrokerError) -> list[dict[str, Any]]:
    """Return the refused changes of a set."""
    problems: list[dict[str, Any]] = error.problem.get("problems", [])
    return [problem for problem in problems if problem["refused"]]


def _refusal(problem: dict[str, Any], resources: Sequence[Resource]) -> BrokerError:
    index = problem["index"]
    position = _POSITION.search(problem["detail"])
    facts = (
        {}
        if position is None
        else {"position": {k: int(v) for k, v in position.groupdict().items()}}
    )
    detail = f"{problem['change']}: {problem['detail']}"
    error = broker_error(409, problem["code"], detail, **facts)
    return (
        errors.with_expression(error, write_spec(resources[index]))
        if index < len(resources)
        else error
    )


def _split_resources(resources: Sequence[Resource]) -> Iterator[list[Resource]]:
    part: list[Resource] = []
    remaining_bytes = MAX_REQUEST_BYTES
    for resource in resources:
        size = len(json.dumps(write_manifest(resource)))
        if part and (len(part) == MAX_CHANGES or size > remaining_bytes):
            yield part
            part, remaining_bytes = [], MAX_REQUEST_BYTES
        part.append(resource)
        remaining_bytes -= size + 2
    yield part


# ---- single changes ----------------------------------------------------------------------------


def routes_text(answer: PortChange) -> str:
    """Return the effect of one change on routes: counts, and a line per added and cut route."""
    counts = f" (routes: {len(answer.kept)} kept, {len(answer.added)} added"
    head = f"{counts}, {len(answer.cut)} cut)"
    plus = [f"  + {route.export} -> {route.import_}" for route in answer.added]
    minus = [f"  - {route.export} -> {route.import_}: {route.reason}" for route in answer.cut]
    return colour_forecast("\n".join([head, *plus, *minus])).rstrip("\n")
