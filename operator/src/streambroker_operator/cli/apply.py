"""``apply`` and ``whatif``: whole resources, and what they would do."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from streambroker_core.model import Resource, kind_of
from streambroker_core.wire.manifest import write_manifest, write_spec
from streambroker_operator.cli.client import Caller, port_path
from streambroker_operator.cli.delete import named, ports_of
from streambroker_operator.cli.documents import read_resources
from streambroker_operator.cli.errors import (
    OK,
    UsageError,
    exit_code,
    note,
    tally,
    tell,
    with_text,
)
from streambroker_operator.cli.forecast import (
    add_dry_run,
    add_file,
    add_guard,
    barred,
    foretell,
    parts_of,
    routes_text,
)
from streambroker_operator.cli.options import add_output, caller_of, remote
from streambroker_operator.cli.terminal import say
from streambroker_operator.errors import RequestError


def add(commands: Any) -> None:
    """Add the commands."""
    apply = remote(commands, "apply", "create or replace the resources of YAML files")
    add_file(apply)
    add_dry_run(apply)
    apply.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    apply.set_defaults(run=_apply)
    whatif = remote(commands, "whatif", "show which routes YAML files would add and cut")
    add_file(whatif)
    whatif.add_argument(
        "--delete", action="append", default=[], metavar="KIND/NAME", help="as if this were deleted"
    )
    add_guard(whatif, foretells=True)
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
    return _apply_all(caller, options, found.resources)


def _apply_all(caller: Caller, options: argparse.Namespace, resources: Sequence[Resource]) -> int:
    """Ask about each part before its first document is applied; stop at what is refused."""
    done = 0
    for part in parts_of(resources, whole=options.max_removed is not None):
        if verdict := barred(caller, options, part, [], done=done, total=len(resources)):
            return verdict
        for resource in part:
            try:
                text = _put(caller, resource)
            except RequestError as error:
                tell(error)
                how = "refused" if error.status else "failed"
                tally("applied", done, len(resources), refused=1, how=how)
                return exit_code(error)
            done += 1
            say(f"{kind_of(resource).lower()} {resource.key} {text}\n")
    return OK


def _put(caller: Caller, resource: Resource) -> str:
    path = port_path(kind_of(resource), resource.key)
    try:
        answer = caller.change(
            "PUT", path, write_manifest(resource), namespace=resource.key.namespace
        )
    except RequestError as error:
        about = RequestError(
            error.status,
            error.code,
            f"{kind_of(resource).lower()} {resource.key}: {error}",
            facts=error.facts,
        )
        raise with_text(about, write_spec(resource)) from error
    done = "configured" if answer["changed"] else "unchanged"
    return ("created" if answer["created"] else done) + routes_text(answer)


def _whatif(options: argparse.Namespace) -> int:
    if not options.file and not options.delete:
        raise UsageError("Give -f FILE, or --delete KIND/NAME, or both.")
    resources = []
    if options.file:
        found = read_resources(options.file, options.namespace)
        note(found.notes)
        resources = found.resources
    caller = caller_of(options)
    ports = [
        port
        for word in options.delete
        for target in named([word])
        for port in ports_of(caller, target, options.namespace)
    ]
    return foretell(caller, options, resources, ports)
