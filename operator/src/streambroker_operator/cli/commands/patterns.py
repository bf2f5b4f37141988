"""``patterns``: the rules of patterns of a job: list, show, put, delete, enable."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from streambroker_core.errors import ManifestError
from streambroker_core.model import RULE
from streambroker_operator.cli.io.client import Caller
from streambroker_operator.cli.io.errors import OK, UsageError, meant
from streambroker_operator.cli.io.manifest_files import read_documents
from streambroker_operator.cli.io.options import add_output, caller_of, remote
from streambroker_operator.cli.io.terminal import age, say
from streambroker_operator.cli.output.table import Item, as_json, as_yaml, table
from streambroker_operator.rest.http.paths import JOBS

HEAD = [
    "ID",
    "VERSION",
    "ACTIVE",
    "RUNS",
    "WINDOW",
    "APPLIED",
    "MATCHES",
    "ERRORS",
    "REASON",
    "AGE",
]
_ACTIVE = {"active": "True", "disabled": "Disabled", "absent": "False"}


def add(commands: Any) -> None:
    """Add the command."""
    command = remote(commands, "patterns", "list, show, put, delete and enable rules of patterns")
    command.add_argument("action", metavar="|".join(ACTIONS), help="what to do")
    command.add_argument("words", nargs="*", metavar="JOB | JOB/ID")
    command.add_argument(
        "-f",
        "--file",
        "--filename",
        dest="files",
        action="append",
        default=[],
        metavar="FILE",
        help="of put: rules or PatternProcessors; - is the standard input",
    )
    command.add_argument(
        "--force",
        action="store_true",
        help="in a cluster, take fields over that a manifest declares; warns of it",
    )
    add_output(command, "table", "json", "yaml")
    command.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    action = ACTIONS.get(options.action)
    if action is None:
        raise UsageError(
            f"{options.action!r} is none of {', '.join(ACTIONS)}.{meant(options.action, ACTIONS)}"
        )
    if bool(options.files) != (options.action == "put"):
        raise UsageError("`patterns put JOB -f FILE` takes files, and the others take none.")
    return action(options, caller_of(options))


def _list(options: argparse.Namespace, caller: Caller) -> int:
    job = _one_job(options.words)
    answer = caller.call("GET", _path(job), namespace=options.namespace)
    items: list[Item] = answer["patterns"]
    if options.output == "json":
        say(as_json({"apiVersion": "v1", "kind": "List", "items": items}))
    elif options.output == "yaml":
        say(as_yaml(items))
    elif items:
        say(table([HEAD, *map(_row, items)]))
    return OK


def _get(options: argparse.Namespace, caller: Caller) -> int:
    found = [
        caller.call("GET", _path(job, rule), namespace=options.namespace)
        for job, rule in _rules(options.words)
    ]
    if options.output == "json":
        many = {"apiVersion": "v1", "kind": "List", "items": found}
        say(as_json(found[0] if len(found) == 1 else many))
    elif options.output == "yaml":
        say(as_yaml(found))
    else:
        say(table([HEAD, *map(_row, found)]))
    return OK


def _put(options: argparse.Namespace, caller: Caller) -> int:
    job = _one_job(options.words)
    rules = [(place, *_document(one, place)) for place, one in read_documents(options.files)]
    if not rules:
        raise UsageError("The files have no rule.")
    for _, rule, body in rules:
        answer = _changed(caller, options, "PUT", _path(job, rule), body)
        word = "created" if answer["created"] else "changed" if answer["changed"] else "unchanged"
        say(f"pattern {job}/{rule} {word}\n")
    return OK


def _document(document: Any, place: str) -> tuple[str, Any]:
    """Return the id of a rule, and what to put."""
    if not isinstance(document, Mapping):
        raise ManifestError(path=place, reason="is no rule: write a mapping")
    if "kind" not in document:
        rule = document.get("id")
    elif document["kind"] == RULE:
        spec, metadata = document.get("spec"), document.get("metadata")
        named = metadata.get("name") if isinstance(metadata, Mapping) else None
        rule = (spec.get("id") if isinstance(spec, Mapping) else None) or named
    else:
        raise ManifestError(
            path=place, reason=f"is of kind {document['kind']!r}; `apply` takes Exports and Imports"
        )
    if not isinstance(rule, str) or not rule:
        raise ManifestError(path=place, reason="has no `id`")
    return rule, document


def _delete(options: argparse.Namespace, caller: Caller) -> int:
    return _each(options, caller, "DELETE", "", "deleted")


def _enable(options: argparse.Namespace, caller: Caller) -> int:
    return _each(options, caller, "POST", "/enable", "enabled")


def _each(options: argparse.Namespace, caller: Caller, method: str, part: str, word: str) -> int:
    for job, rule in _rules(options.words):
        _changed(caller, options, method, _path(job, rule) + part, None)
        say(f"pattern {job}/{rule} {word}\n")
    return OK


def _changed(
    caller: Caller, options: argparse.Namespace, method: str, path: str, body: Any
) -> Mapping[str, Any]:
    force = {"force": "true"} if options.force and method != "DELETE" else {}
    answer = caller.change(method, path, body, namespace=options.namespace, **force)
    return answer or {"created": False, "changed": True}


def _one_job(words: Sequence[str]) -> str:
    if len(words) != 1 or "/" in words[0]:
        raise UsageError("Name one job, as in `streambroker patterns list alerts`.")
    return words[0]


def _rules(words: Sequence[str]) -> list[tuple[str, str]]:
    """Return job and id of each rule that is named."""
    found = [word.partition("/") for word in words]
    if not found or not all(job and slash and rule for job, slash, rule in found):
        raise UsageError("Name rules as JOB/ID, as in `streambroker patterns get alerts/dear`.")
    return [(job, rule) for job, _, rule in found]


def _path(job: str, rule: str | None = None) -> str:
    path = f"{JOBS}/{quote(job, safe='')}/patterns"
    return path if rule is None else f"{path}/{quote(rule, safe='')}"


def _row(item: Item) -> list[str]:
    spec, status = item["spec"], item["status"]
    told = [_text(status.get(name)) for name in ("version", "since")]
    applied = f"{status['buckets']}/{status['of']}" if status.get("of") else ""
    reason = "" if status.get("accepted", True) else str(status.get("reason", ""))
    return [
        spec["id"],
        _text(spec.get("version")),
        _ACTIVE.get(status.get("state", ""), "Unknown"),
        *told,
        applied,
        _text(status.get("matches")),
        _text(status.get("errors")),
        reason,
        age(item["metadata"]["creationTimestamp"]),
    ]


def _text(value: Any) -> str:
    return "" if value is None else str(value)


ACTIONS: Mapping[str, Callable[[argparse.Namespace, Caller], int]] = {
    "list": _list,
    "get": _get,
    "put": _put,
    "delete": _delete,
    "enable": _enable,
}
