"""``patterns``: list, show, put, delete and enable the pattern rules of a job."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from streambroker_client.broker import Broker
from streambroker_core.errors import ManifestError
from streambroker_core.model import RULE
from streambroker_operator.cli.io.errors import OK, UsageError, did_you_mean
from streambroker_operator.cli.io.manifest_files import read_documents
from streambroker_operator.cli.io.options import (
    add_force,
    add_output,
    add_remote_command,
    client_for,
)
from streambroker_operator.cli.io.targets import Item
from streambroker_operator.cli.io.terminal import format_age, print_text
from streambroker_operator.cli.output.changes import add_file
from streambroker_operator.cli.output.table import Columns, Table, render_document

_ACTIVE_WORDS = {"active": "True", "disabled": "Disabled", "absent": "False"}


def add(commands: Any) -> None:
    """Add the command."""
    command = add_remote_command(
        commands, "patterns", "list, show, put, delete and enable rules of patterns"
    )
    command.add_argument("action", metavar="|".join(ACTIONS), help="what to do")
    command.add_argument("words", nargs="*", metavar="JOB | JOB/ID")
    add_file(command, "of put: rules or PatternProcessors; - is the standard input", metavar="FILE")
    add_force(command)
    add_output(command, "table", "json", "yaml")
    command.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    action = ACTIONS.get(options.action)
    if action is None:
        raise UsageError(
            f"{options.action!r} is none of"
            f" {', '.join(ACTIONS)}.{did_you_mean(options.action, ACTIONS)}"
        )
    if bool(options.file) != (options.action == "put"):
        raise UsageError("`patterns put JOB -f FILE` takes files, the other actions take none.")
    return action(options, client_for(options))


def _list(options: argparse.Namespace, broker: Broker) -> int:
    job = _parse_job(options.words)
    items = broker.patterns(job).list()
    if options.output != "table":
        print_text(render_document(items, options.output))
    elif items:
        print_text(Table(_COLUMNS).text(items) + "".join(map(_refusal_line, items)))
    else:
        print_text(f"no rules for job {job}\n")
    return OK


def _get(options: argparse.Namespace, broker: Broker) -> int:
    manifests = [broker.patterns(job).get(rule) for job, rule in _parse_rules(options.words)]
    if options.output != "table":
        print_text(render_document(manifests, options.output, single=len(manifests) == 1))
    else:
        print_text(Table(_COLUMNS).text(manifests) + "".join(map(_refusal_line, manifests)))
    return OK


def _put(options: argparse.Namespace, broker: Broker) -> int:
    job = _parse_job(options.words)
    rules = [
        (location, *_read_rule(document, location))
        for location, document in read_documents(options.file)
    ]
    if not rules:
        raise UsageError("The files have no rule.")
    changed = False
    for _, rule, body in rules:
        answer = broker.patterns(job).put(rule, body, force=options.force)
        word = "created" if answer.created else "changed" if answer.changed else "unchanged"
        print_text(f"pattern {job}/{rule} {word}\n")
        changed |= word != "unchanged"
    if changed:
        print_text(f"The job accepts or refuses it: `streambroker patterns list {job}`.\n")
    return OK


def _read_rule(document: Any, location: str) -> tuple[str, Any]:
    if not isinstance(document, Mapping):
        raise ManifestError(path=location, reason="is not a rule: write a mapping")
    if "kind" not in document:
        rule = document.get("id")
    elif document["kind"] == RULE:
        spec, metadata = document.get("spec"), document.get("metadata")
        metadata_name = metadata.get("name") if isinstance(metadata, Mapping) else None
        rule = (spec.get("id") if isinstance(spec, Mapping) else None) or metadata_name
    else:
        raise ManifestError(
            path=location,
            reason=f"is of kind {document['kind']!r}; `apply` takes Exports and Imports",
        )
    if not isinstance(rule, str) or not rule:
        raise ManifestError(path=location, reason="has no `id`")
    return rule, document


def _delete(options: argparse.Namespace, broker: Broker) -> int:
    for job, rule in _parse_rules(options.words):
        broker.patterns(job).delete(rule)
        print_text(f"pattern {job}/{rule} deleted\n")
    return OK


def _enable(options: argparse.Namespace, broker: Broker) -> int:
    for job, rule in _parse_rules(options.words):
        broker.patterns(job).enable(rule, force=options.force)
        print_text(f"pattern {job}/{rule} enabled\n")
    return OK


def _parse_job(words: Sequence[str]) -> str:
    if len(words) != 1 or "/" in words[0]:
        raise UsageError("Name one job, as in `streambroker patterns list alerts`.")
    return words[0]


def _parse_rules(words: Sequence[str]) -> list[tuple[str, str]]:
    parts = [word.partition("/") for word in words]
    if not parts or not all(job and slash and rule for job, slash, rule in parts):
        raise UsageError("Name rules as JOB/ID, as in `streambroker patterns get alerts/dear`.")
    return [(job, rule) for job, _, rule in parts]


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _applied_text(status: Item) -> str:
    return f"{status['buckets']}/{status['of']}" if status.get("of") else ""


def _refusal_line(item: Item) -> str:
    message = item["status"].get("message") if _reason(item["status"]) else None
    return f"{item['spec']['id']}: {message}\n" if message else ""


def _reason(status: Item) -> str:
    return "" if status.get("accepted", True) else str(status.get("reason", ""))


_COLUMNS: Columns[Item] = {
    "ID": lambda item: item["spec"]["id"],
    "VERSION": lambda item: _text(item["spec"].get("version")),
    "ACTIVE": lambda item: _ACTIVE_WORDS.get(item["status"].get("state", ""), "Unknown"),
    "RUNS": lambda item: _text(item["status"].get("version")),
    "WINDOW": lambda item: _text(item["status"].get("since")),
    "APPLIED": lambda item: _applied_text(item["status"]),
    "MATCHES": lambda item: _text(item["status"].get("matches")),
    "ERRORS": lambda item: _text(item["status"].get("errors")),
    "REASON": lambda item: _reason(item["status"]),
    "AGE": lambda item: format_age(item["metadata"]["creationTimestamp"]),
}
ACTIONS: Mapping[str, Callable[[argparse.Namespace, Broker], int]] = {
    "list": _list,
    "get": _get,
    "put": _put,
    "delete": _delete,
    "enable": _enable,
}
