"""``apply`` and ``whatif``: apply manifest files, or show their forecast."""

from __future__ import annotations

import argparse
from typing import Any

from streambroker_core.model import kind_of
from streambroker_operator.cli.commands.delete import read_named_targets, resolve_target
from streambroker_operator.cli.io.errors import OK, UsageError, print_notes
from streambroker_operator.cli.io.manifest_files import read_resources
from streambroker_operator.cli.io.options import add_output, add_remote_command, client_for
from streambroker_operator.cli.io.terminal import print_text
from streambroker_operator.cli.output.changes import (
    add_dry_run,
    add_file,
    add_guard,
    apply_all,
    show_forecast,
)


def add(commands: Any) -> None:
    """Add the commands."""
    apply = add_remote_command(commands, "apply", "create or replace the resources of YAML files")
    add_file(apply)
    add_dry_run(apply)
    cuts = apply.add_mutually_exclusive_group()
    add_guard(
        cuts,
        "cut at most N routes, else change nothing and exit with 3; without it, apply asks"
        " before it cuts a route, and refuses where it cannot ask",
    )
    cuts.add_argument("-y", "--yes", action="store_true", help="cut routes without asking")
    apply.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    apply.set_defaults(run=_apply)
    whatif = add_remote_command(
        commands, "whatif", "show which routes YAML files would add and cut"
    )
    add_file(whatif)
    whatif.add_argument(
        "--delete", action="append", default=[], metavar="KIND/NAME", help="as if this were deleted"
    )
    add_guard(whatif, "exit with 3 if more than N routes would be cut; default 0")
    add_output(whatif, "table", "json", "yaml")
    whatif.set_defaults(run=_whatif)


def _apply(options: argparse.Namespace) -> int:
    if options.words:
        raise UsageError(f"Files are given with -f. Did you mean `-f {options.words[0]}`?")
    if not options.file:
        raise UsageError("Give -f FILE; it may be repeated, and may be a directory.")
    documents = read_resources(options.file, options.namespace)
    print_notes(documents.notes)
    if options.dry_run == "client":
        for resource in documents.resources:
            print_text(f"{kind_of(resource).lower()} {resource.key} can be read (dry run)\n")
        return OK
    broker = client_for(options)
    if options.dry_run == "server":
        return show_forecast(broker, options, documents.resources, [])
    return apply_all(broker, options, documents.resources)


def _whatif(options: argparse.Namespace) -> int:
    if not options.file and not options.delete:
        raise UsageError("Give -f FILE, or --delete KIND/NAME, or both.")
    resources = []
    if options.file:
        documents = read_resources(options.file, options.namespace)
        print_notes(documents.notes)
        resources = documents.resources
    broker = client_for(options)
    deleted = [
        removal
        for word in options.delete
        for target in read_named_targets([word])
        for removal in resolve_target(broker, target, options.namespace)[0]
    ]
    return show_forecast(broker, options, resources, deleted)
