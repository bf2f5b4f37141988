"""``apply`` and ``whatif``: whole resources, and what they would do."""

from __future__ import annotations

import argparse
from typing import Any

from streambroker_core.model import kind_of
from streambroker_operator.cli.commands.delete import meant_by, named
from streambroker_operator.cli.io.errors import OK, UsageError, note
from streambroker_operator.cli.io.manifest_files import read_resources
from streambroker_operator.cli.io.options import add_output, caller_of, remote
from streambroker_operator.cli.io.terminal import say
from streambroker_operator.cli.output.changes import (
    add_dry_run,
    add_file,
    add_guard,
    apply_all,
    foretell,
)


def add(commands: Any) -> None:
    """Add the commands."""
    apply = remote(commands, "apply", "create or replace the resources of YAML files")
    add_file(apply)
    add_dry_run(apply)
    cuts = apply.add_mutually_exclusive_group()
    add_guard(
        cuts,
        "cut at most N routes, else change nothing and end with 3; without it, apply asks before it"
        " cuts a route, and refuses where it cannot ask",
    )
    cuts.add_argument("-y", "--yes", action="store_true", help="cut routes without asking")
    apply.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    apply.set_defaults(run=_apply)
    whatif = remote(commands, "whatif", "show which routes YAML files would add and cut")
    add_file(whatif)
    whatif.add_argument(
        "--delete", action="append", default=[], metavar="KIND/NAME", help="as if this were deleted"
    )
    add_guard(whatif, "end with 3 if more than N routes would be cut; default 0")
    add_output(whatif, "table", "json", "yaml")
    whatif.set_defaults(run=_whatif)


def _apply(options: argparse.Namespace) -> int:
    if options.words:
        raise UsageError(f"Files are given with -f. Did you mean `-f {options.words[0]}`?")
    if not options.file:
        raise UsageError("Give -f FILE; it may be given several times, and may be a directory.")
    found = read_resources(options.file, options.namespace)
    note(found.notes)
    if options.dry_run == "client":
        for resource in found.resources:
            say(f"{kind_of(resource).lower()} {resource.key} can be read (dry run)\n")
        return OK
    caller = caller_of(options)
    if options.dry_run == "server":
        return foretell(caller, options, found.resources, [])
    return apply_all(caller, options, found.resources)


def _whatif(options: argparse.Namespace) -> int:
    if not options.file and not options.delete:
        raise UsageError("Give -f FILE, or --delete KIND/NAME, or both.")
    resources = []
    if options.file:
        found = read_resources(options.file, options.namespace)
        note(found.notes)
        resources = found.resources
    caller = caller_of(options)
    deleted = [
        removal
        for word in options.delete
        for target in named([word])
        for removal in meant_by(caller, target, options.namespace)[0]
    ]
    return foretell(caller, options, resources, deleted)
