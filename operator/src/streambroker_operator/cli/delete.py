"""``delete``: resources by name, by port, or those of files, if they are still the same."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from streambroker_core.model import PeKey, PortKey, Resource, kind_of, name_of
from streambroker_operator.cli.addresses import Target, find, find_port, read_targets, suggested
from streambroker_operator.cli.client import Caller, pe_path, port_path
from streambroker_operator.cli.documents import read_resources
from streambroker_operator.cli.errors import OK, UsageError, exit_code, note, tally, tell
from streambroker_operator.cli.forecast import (
    add_dry_run,
    add_file,
    barred,
    foretell,
    routes_text,
)
from streambroker_operator.cli.options import caller_of, remote
from streambroker_operator.cli.terminal import say
from streambroker_operator.errors import RequestError

RESOURCE = "KIND/NAME | KIND NAME… | KIND JOB PE PORT"
KIND_WORDS = {"exports": "Export", "imports": "Import"}
NAME_ONE = "Name one export, import or PE: `export|import JOB PE PORT`, export/NAME, or pe/JOB/PE."

Port = tuple[str, "PortKey | PeKey"]


def add(commands: Any) -> None:
    """Add the command."""
    delete = remote(commands, "delete", "delete resources, or those of YAML files")
    add_file(delete)
    add_dry_run(delete)
    delete.add_argument("words", nargs="*", metavar=RESOURCE)
    delete.add_argument(
        "--ignore-not-found", action="store_true", help="what is not there is no failure"
    )
    delete.add_argument(
        "--all", action="store_true", help="`delete pes --all`: without ports, never registered"
    )
    delete.set_defaults(run=_delete)


@dataclass(frozen=True, slots=True)
class _Doomed:
    """What is to be deleted; ``match`` is the ETag that it has to have, empty for any."""

    kind: str
    key: PortKey | PeKey
    match: str = ""


def _delete(options: argparse.Namespace) -> int:
    if bool(options.file) == bool(options.words):
        raise UsageError("Give either -f FILE or `export|import JOB PE PORT` or KIND/NAME.")
    caller = caller_of(options)
    doomed = _of_files(caller, options) if options.file else _of_words(caller, options)
    ports = [(one.kind, one.key) for one in doomed]
    if options.dry_run == "server":
        return foretell(caller, options, [], ports)
    if options.dry_run == "client":
        for kind, key in ports:
            say(f"{kind.lower()} {key} would be deleted (dry run)\n")
        return OK
    guarded = options.max_removed is not None
    if guarded and (verdict := barred(caller, options, [], ports, total=len(ports))):
        return verdict
    return _delete_all(caller, doomed, options)


def _of_words(caller: Caller, options: argparse.Namespace) -> list[_Doomed]:
    if options.all:
        return _empty_pes(caller, options)
    found = []
    for target in named(options.words):
        try:
            ports = ports_of(caller, target, options.namespace)
        except RequestError as error:
            if error.status != 404 or not options.ignore_not_found:
                raise
            ports = []
        found += [_Doomed(kind, key) for kind, key in ports]
    return found


def _empty_pes(caller: Caller, options: argparse.Namespace) -> list[_Doomed]:
    """Return the PEs that nobody misses: those without a port and without an agent.

    Raises:
        UsageError: something else is to be deleted.
    """
    if [target.kinds for target in read_targets(options.words)] != [("pes",)]:
        raise UsageError("--all is for PEs without ports: `streambroker delete pes --all`.")
    return [
        _Doomed("pe", PeKey.parse(f"{item['namespace']}/{item['job']}/{item['pe']}"))
        for item in caller.items("/pes", namespace=options.namespace)
        if not (item["exports"] or item["imports"] or item["location"])
    ]


def _of_files(caller: Caller, options: argparse.Namespace) -> list[_Doomed]:
    """Return the resources of files that are there under their names.

    Raises:
        RequestError: one is not there, or its port is another's; nothing was deleted.
    """
    resources = read_resources(options.file, options.namespace).resources
    if options.dry_run == "client":
        return [_Doomed(kind_of(resource), resource.key) for resource in resources]
    found = []
    for resource in resources:
        kind, key = kind_of(resource), resource.key
        try:
            item = caller.call("GET", port_path(kind, key), namespace=key.namespace)
        except RequestError as error:
            if error.status != 404:
                raise
            if options.dry_run == "server":
                found.append(_Doomed(kind, key))
            elif not options.ignore_not_found:
                raise suggested(caller, f"{kind.lower()}s", key, error) from error
            continue
        metadata = item["metadata"]
        if metadata["name"] == name_of(resource):
            match = f'"{metadata["uid"]}.{metadata["generation"]}"'
            found.append(_Doomed(kind, key, match))
        elif options.ignore_not_found:
            note([f"{_others(resource, metadata['name'])}; it stays"])
        else:
            raise RequestError(
                409,
                "PortTaken",
                f"{_others(resource, metadata['name'])}. Nothing was deleted. `streambroker delete "
                f"{kind.lower()}/{metadata['name']}` would delete that one.",
            )
    return found


def _others(resource: Resource, name: str) -> str:
    kind = kind_of(resource).lower()
    return f"{kind} {resource.key} is {name!r}, not {name_of(resource)!r}"


def named(words: Sequence[str]) -> list[Target]:
    """Return the targets of a command that never means everything of a kind.

    Raises:
        UsageError: it would.
    """
    targets = read_targets(words)
    for target in targets:
        if target.name is None or "routes" in target.kinds:
            raise UsageError(NAME_ONE)
    return targets


def ports_of(caller: Caller, target: Target, namespace: str) -> list[Port]:
    """Return the one port or PE that a target means, by kind.

    Raises:
        RequestError: nothing has that name.
        UsageError: an export and an import have it.
    """
    kinds, name = target.kinds, target.name or ""
    if len(kinds) > 1:
        items = find(caller, target, namespace)
        if len(items) > 1:
            both = " and ".join(f"{kind.removesuffix('s')}/{name}" for kind, _ in items)
            raise UsageError(f"{name!r} may be {both}; say which.")
        kinds = (items[0][0],)
    if kinds[0] in KIND_WORDS:
        return [(KIND_WORDS[kinds[0]], find_port(caller, kinds[0], name, namespace))]
    found: list[Port] = []
    for _, pes in find(caller, Target(kinds=kinds, name=name), namespace):
        found += [("pe", PeKey.parse(f"{i['namespace']}/{i['job']}/{i['pe']}")) for i in pes]
    return found


def _delete_all(caller: Caller, doomed: Sequence[_Doomed], options: argparse.Namespace) -> int:
    for done, one in enumerate(doomed):
        try:
            _delete_one(caller, one, options)
        except RequestError as error:
            tell(error)
            how = "refused" if error.status else "failed"
            tally("deleted", done, len(doomed), refused=1, how=how)
            return exit_code(error)
    return OK


def _delete_one(caller: Caller, one: _Doomed, options: argparse.Namespace) -> None:
    kind, key = one.kind, one.key
    path = pe_path(key) if isinstance(key, PeKey) else port_path(kind, key)
    try:
        answer = caller.change("DELETE", path, match=one.match, namespace=key.namespace)
    except RequestError as error:
        if error.status == 404 and options.ignore_not_found:
            return
        if isinstance(key, PortKey):
            raise suggested(caller, f"{kind.lower()}s", key, error) from error
        raise
    say(f"{kind.lower()} {key} deleted{routes_text(answer) if answer else ''}\n")
