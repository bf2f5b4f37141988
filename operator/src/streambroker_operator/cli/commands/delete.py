"""``delete``: by name, by port, or by manifest file if the resource still has that name."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from streambroker_client.broker import Broker
from streambroker_client.errors import BrokerError, broker_error
from streambroker_core.model import Kind, PeKey, Removal, kind_of, name_of
from streambroker_core.wire.manifests.ports import PLURALS
from streambroker_operator.cli.io import errors
from streambroker_operator.cli.io.manifest_files import read_resources
from streambroker_operator.cli.io.options import add_remote_command, client_for
from streambroker_operator.cli.io.targets import (
    Target,
    find_items,
    find_port,
    item_names,
    read_targets,
    with_suggestion,
)
from streambroker_operator.cli.io.terminal import print_text
from streambroker_operator.cli.output import changes

RESOURCE = "KIND/NAME | KIND NAME… | KIND JOB PE PORT"
KIND_WORDS: dict[str, Kind] = {plural: kind for kind, plural in PLURALS.items()}
NAME_REQUIRED = (
    "Name one export, import or PE: `export|import JOB PE PORT`, export/NAME, or pe/JOB/PE."
)


def add(commands: Any) -> None:
    """Add the command."""
    delete = add_remote_command(commands, "delete", "delete resources, or those of YAML files")
    changes.add_file(delete)
    changes.add_dry_run(delete)
    changes.add_guard(
        delete,
        "cut at most N routes, else change nothing and exit with 3; default any number",
    )
    delete.add_argument("words", nargs="*", metavar=RESOURCE)
    delete.add_argument(
        "--ignore-not-found", action="store_true", help="a missing resource is not a failure"
    )
    delete.add_argument(
        "--all", action="store_true", help="`delete pes --all`: without ports, never registered"
    )
    delete.set_defaults(run=_delete)


def _delete(options: argparse.Namespace) -> int:
    if bool(options.file) == bool(options.words):
        raise errors.UsageError("Give either -f FILE or `export|import JOB PE PORT` or KIND/NAME.")
    broker = client_for(options)
    removals, pes = _read_files(options) if options.file else _resolve_words(broker, options)
    if options.dry_run == "server":
        return changes.show_forecast(broker, options, [], removals)
    if options.dry_run == "client":
        for kind, key in [*((one.kind, one.key) for one in removals), *(("pe", pe) for pe in pes)]:
            print_text(f"{kind.lower()} {key} would be deleted (dry run)\n")
        return errors.OK
    return _delete_ports(broker, options, removals) or _delete_pes(
        broker, options, pes, len(removals)
    )


def _read_files(options: argparse.Namespace) -> tuple[list[Removal], list[PeKey]]:
    resources = read_resources(options.file, options.namespace).resources
    return [
        Removal(kind_of(resource), resource.key, name_of(resource)) for resource in resources
    ], []


def _empty_pes(broker: Broker, options: argparse.Namespace) -> list[PeKey]:
    """Return the PEs without ports and without an agent, for `delete pes --all`."""
    if [target.kinds for target in read_targets(options.words)] != [("pes",)]:
        raise errors.UsageError("--all is for PEs without ports: `streambroker delete pes --all`.")
    return [
        PeKey.parse(item_names("pes", item)[1])
        for item in broker.pes()
        if not (item["exports"] or item["imports"] or item["location"])
    ]


def _resolve_words(
    broker: Broker, options: argparse.Namespace
) -> tuple[list[Removal], list[PeKey]]:
    if options.all:
        return [], _empty_pes(broker, options)
    removals: list[Removal] = []
    pes: list[PeKey] = []
    for target in read_named_targets(options.words):
        try:
            ports, target_pes = resolve_target(broker, target, options.namespace)
        except BrokerError as error:
            if error.status != 404 or not options.ignore_not_found:
                raise
        else:
            removals += ports
            pes += target_pes
    return list(dict.fromkeys(removals)), list(dict.fromkeys(pes))


def read_named_targets(words: Sequence[str]) -> list[Target]:
    """Return the targets of a command that requires names; refuse others."""
    targets = read_targets(words)
    for target in targets:
        if target.name is None or "routes" in target.kinds:
            raise errors.UsageError(NAME_REQUIRED)
    return targets


def resolve_target(
    broker: Broker, target: Target, namespace: str
) -> tuple[list[Removal], list[PeKey]]:
    """Return the one port, or the PEs, of a target.

    Raises:
        BrokerError: no resource has that name.
        UsageError: an export and an import have that name.
    """
    kinds, name = target.kinds, target.name or ""
    if len(kinds) > 1:
        items = find_items(broker, target, namespace)
        if len(items) > 1:
            both = " and ".join(f"{kind.removesuffix('s')}/{name}" for kind, _ in items)
            raise errors.UsageError(f"{name!r} may be {both}; write one of them.")
        kinds = (items[0][0],)
    if kinds[0] in KIND_WORDS:
        return [Removal(KIND_WORDS[kinds[0]], find_port(broker, kinds[0], name, namespace))], []
    matches = find_items(broker, Target(kinds=kinds, name=name), namespace)
    return [], [PeKey.parse(item_names("pes", item)[1]) for _, items in matches for item in items]


def _delete_ports(broker: Broker, options: argparse.Namespace, removals: Sequence[Removal]) -> int:
    parts = [
        list(removals[at : at + changes.MAX_CHANGES])
        for at in range(0, len(removals), changes.MAX_CHANGES)
    ]
    changes.check_parts(options, parts)
    done = 0
    for part in parts:
        remaining = part
        while remaining:
            try:
                changes.change_all(broker, options, [], remaining, options.max_removed)
                break
            except BrokerError as error:
                absent = _absent_indices(error) if options.ignore_not_found else set()
                if not absent:
                    _add_suggestion(broker, remaining, error)
                    return changes.report_refusal(error, [], "deleted", done, len(removals))
                remaining = [
                    removal for index, removal in enumerate(remaining) if index not in absent
                ]
        done += len(part)
    return errors.OK


def _absent_indices(error: BrokerError) -> set[int]:
    """Return the indices of absent resources; empty if there was any other problem."""
    problems = changes.refused_problems(error)
    if any(problem["code"] not in changes.ABSENT_CODES for problem in problems):
        return set()
    errors.print_notes(
        f"{p['detail'].rstrip('.')}; it stays" for p in problems if p["code"] == "PortTaken"
    )
    return {problem["index"] for problem in problems}


def _add_suggestion(broker: Broker, removals: Sequence[Removal], error: BrokerError) -> None:
    """Add the nearest existing port to the error for an unknown port."""
    problems = changes.refused_problems(error)
    if len(problems) == 1 and problems[0]["code"] == "UnknownPort":
        (problem,) = problems
        kind, key, _ = removals[problem["index"]]
        not_found = broker_error(404, "UnknownPort", problem["detail"])
        problem["detail"] = str(with_suggestion(broker, PLURALS[kind], key, not_found))


def _delete_pes(
    broker: Broker, options: argparse.Namespace, pes: Sequence[PeKey], before: int
) -> int:
    for done, pe in enumerate(pes, before):
        try:
            broker.delete_pe(pe)
        except BrokerError as error:
            if error.status == 404 and options.ignore_not_found:
                continue
            errors.print_error(error)
            how = "refused" if error.status else "failed"
            errors.print_tally("deleted", done, before + len(pes), refused=1, how=how)
            return errors.exit_code(error)
        print_text(f"pe {pe} deleted\n")
    return errors.OK
