"""``apply``, ``delete`` and ``whatif``: whole resources, and what they would do."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from streambroker_core.model import PeKey, PortKey, Resource, kind_of
from streambroker_core.wire.manifest import write_manifest, write_spec
from streambroker_operator.cli.addresses import (
    Target,
    find,
    find_port,
    read_targets,
    suggested,
)
from streambroker_operator.cli.calling import Caller, pe_path, port_path
from streambroker_operator.cli.documents import read_resources
from streambroker_operator.cli.failing import OK, UsageError, with_text
from streambroker_operator.cli.forecasting import barred, foretell, routes_text
from streambroker_operator.cli.options import add_output, caller_of, one_of, remote
from streambroker_operator.cli.terminal import say
from streambroker_operator.errors import RequestError

RESOURCE = "KIND/NAME | KIND NAME… | KIND JOB PE PORT"
KIND_WORDS = {"exports": "Export", "imports": "Import"}


def add(commands: Any) -> None:
    """Add the commands."""
    apply = remote(commands, "apply", "create or replace the resources of a YAML file")
    _add_file(apply, required=True)
    _add_dry_run(apply)
    apply.set_defaults(run=_apply)
    delete = remote(commands, "delete", "delete resources, or those of a YAML file")
    _add_file(delete, required=False)
    _add_dry_run(delete)
    delete.add_argument("words", nargs="*", metavar=RESOURCE)
    delete.add_argument(
        "--ignore-not-found", action="store_true", help="what is not there is no failure"
    )
    delete.set_defaults(run=_delete)
    whatif = remote(commands, "whatif", "show which routes a YAML file would add and cut")
    _add_file(whatif, required=False)
    whatif.add_argument(
        "--delete", action="append", default=[], metavar="KIND/NAME", help="as if this were deleted"
    )
    _add_guard(whatif)
    add_output(whatif, "table", "json", "yaml")
    whatif.set_defaults(run=_whatif)


def _add_file(command: argparse.ArgumentParser, *, required: bool) -> None:
    command.add_argument(
        "-f", "--file", "--filename", required=required, help="a path, or - for standard input"
    )


def _add_dry_run(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--dry-run",
        nargs="?",
        type=one_of("none", "client", "server"),
        const="server",
        default="none",
        metavar="none|client|server",
        help="client: only check the file; server: show what it would do, as whatif",
    )
    _add_guard(command)


def _add_guard(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--max-removed",
        type=_count,
        metavar="N",
        help="cut so many routes at most, else change nothing and end with 3",
    )


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is no count")
    return int(text)


# ---- apply -----------------------------------------------------------------------------------


def _apply(options: argparse.Namespace) -> int:
    resources = read_resources(options.file, options.namespace)
    if options.dry_run == "client":
        for resource in resources:
            say(f"{kind_of(resource).lower()} {resource.key} can be read (dry run)\n")
        return OK
    caller = caller_of(options)
    if options.dry_run == "server":
        return foretell(caller, options, resources, [])
    if verdict := barred(caller, options, resources, []):
        return verdict
    for resource in resources:
        say(f"{kind_of(resource).lower()} {resource.key} {_put(caller, resource)}\n")
    return OK


def _put(caller: Caller, resource: Resource) -> str:
    path = port_path(kind_of(resource), resource.key)
    try:
        answer = caller.call(
            "PUT", path, write_manifest(resource), namespace=resource.key.namespace
        )
    except RequestError as error:
        named = RequestError(
            error.status,
            error.code,
            f"{kind_of(resource).lower()} {resource.key}: {error}",
            facts=error.facts,
        )
        raise with_text(named, write_spec(resource)) from error
    done = "configured" if answer["changed"] else "unchanged"
    return ("created" if answer["created"] else done) + routes_text(answer)


# ---- delete ----------------------------------------------------------------------------------


def _delete(options: argparse.Namespace) -> int:
    if bool(options.file) == bool(options.words):
        raise UsageError("Give either -f FILE or `export|import JOB PE PORT` or KIND/NAME.")
    caller = caller_of(options)
    if options.file:
        found = read_resources(options.file, options.namespace)
        ports: list[tuple[str, PortKey | PeKey]] = [(kind_of(r), r.key) for r in found]
    else:
        ports = [
            port
            for target in _named(options.words)
            for port in _ports(caller, target, options.namespace)
        ]
    if options.dry_run == "server":
        return foretell(caller, options, [], ports)
    if options.dry_run == "none" and (verdict := barred(caller, options, [], ports)):
        return verdict
    for kind, key in ports:
        _delete_one(caller, kind, key, options)
    return OK


def _named(words: Sequence[str]) -> list[Target]:
    """Return the targets of a command that never means everything of a kind.

    Raises:
        UsageError: it would.
    """
    targets = read_targets(words)
    for target in targets:
        if target.name is None or len(target.kinds) != 1 or target.kinds == ("routes",):
            raise UsageError(
                "Name one export, import or PE: `export|import JOB PE PORT`, export/NAME, "
                "or pe/JOB/PE."
            )
    return targets


def _ports(caller: Caller, target: Target, namespace: str) -> list[tuple[str, PortKey | PeKey]]:
    (kind,), name = target.kinds, target.name or ""
    if kind in KIND_WORDS:
        return [(KIND_WORDS[kind], find_port(caller, kind, name, namespace))]
    found: list[tuple[str, PortKey | PeKey]] = []
    for _, items in find(caller, target, namespace):
        found += [("pe", PeKey.parse(f"{i['namespace']}/{i['job']}/{i['pe']}")) for i in items]
    return found


def _delete_one(
    caller: Caller, kind: str, key: PortKey | PeKey, options: argparse.Namespace
) -> None:
    if options.dry_run == "client":
        say(f"{kind.lower()} {key} would be deleted (dry run)\n")
        return
    path = pe_path(key) if isinstance(key, PeKey) else port_path(kind, key)
    try:
        answer = caller.call("DELETE", path, namespace=key.namespace)
    except RequestError as error:
        if error.status == 404 and options.ignore_not_found:
            return
        if isinstance(key, PortKey):
            raise suggested(caller, f"{kind.lower()}s", key, error) from error
        raise
    say(f"{kind.lower()} {key} deleted{routes_text(answer) if answer else ''}\n")


# ---- whatif ----------------------------------------------------------------------------------


def _whatif(options: argparse.Namespace) -> int:
    if not options.file and not options.delete:
        raise UsageError("Give -f FILE, or --delete KIND/NAME, or both.")
    resources = read_resources(options.file, options.namespace) if options.file else []
    caller = caller_of(options)
    ports = [
        port
        for word in options.delete
        for target in _named([word])
        for port in _ports(caller, target, options.namespace)
    ]
    return foretell(caller, options, resources, ports)
