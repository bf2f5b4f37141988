"""``set-filter``, ``set-subscription`` and ``set-properties``: change a running port."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any

from streambroker_core.model import PortKey
from streambroker_core.model.properties import normalise
from streambroker_core.wire.encoding.fields import Fields
from streambroker_operator.cli.commands.diagnose import fetch_explanation
from streambroker_operator.cli.io.client import BrokerClient
from streambroker_operator.cli.io.errors import OK, UsageError, print_notes, with_expression
from streambroker_operator.cli.io.manifest_files import check_not_null, read_value
from streambroker_operator.cli.io.options import add_force, add_remote_command, client_for
from streambroker_operator.cli.io.targets import KIND_ALIASES, find_port, port_path, with_suggestion
from streambroker_operator.cli.io.terminal import one_line, print_text
from streambroker_operator.cli.output.changes import routes_text
from streambroker_operator.cli.output.table import properties_text, shorten
from streambroker_operator.errors import RequestError

IMPORT = "NAME EXPR | JOB/PE/PORT EXPR"
EXPORT = "NAME | JOB/PE/PORT, then NAME=VALUE… or one YAML mapping"


def add(commands: Any) -> None:
    """Add the commands."""
    texts = (
        ("filter", "change which rows an import gets; an empty EXPR clears it"),
        ("subscription", "change what an import is connected to"),
    )
    for part, text in texts:
        command = add_remote_command(commands, f"set-{part}", text)
        command.add_argument("words", nargs="+", metavar=IMPORT)
        add_force(command)
        command.set_defaults(run=partial(_set_expression, part=part))
    command = add_remote_command(commands, "set-properties", "replace all properties of an export")
    command.add_argument("words", nargs="+", metavar=EXPORT, help="no property is {}")
    add_force(command)
    command.set_defaults(run=_set_properties)


def _set_expression(options: argparse.Namespace, part: str) -> int:
    *address, text = _strip_kind(options.words, "imports")
    if not address:
        raise UsageError(f"Write `streambroker set-{part} NAME EXPR`, or JOB/PE/PORT EXPR.")
    is_port = len(address) == 3 and address[1].isdigit()
    if len(address) > 1 and not is_port:
        expression = " ".join([*address[1:], text]).replace("'", "")
        raise UsageError(
            f"One port as NAME, JOB/PE/PORT or JOB PE PORT, then one expression in single quotes: "
            f"`streambroker set-{part} {address[0]} '{expression}'`."
        )
    return _set(options, "imports", address, part, {part: text})


def _strip_kind(words: Sequence[str], kind: str) -> list[str]:
    has_kind = len(words) > 2 and KIND_ALIASES.get(words[0].lower()) == (kind,)
    return list(words[1:] if has_kind else words)


def _set_properties(options: argparse.Namespace) -> int:
    words = _strip_kind(options.words, "exports")
    is_port = len(words) >= 3 and "/" not in words[0] and words[1].isdigit()
    count = 3 if is_port else 1
    return _set(options, "exports", words[:count], "properties", _parse_properties(words[count:]))


def _parse_properties(words: Sequence[str]) -> Any:
    properties: dict[str, Any] = {}
    if len(words) == 1 and words[0].lstrip().startswith("{"):
        properties.update(Fields(read_value(words[0]), "properties").raw())
        words = []
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise UsageError(f"{word!r} is not NAME=VALUE, as in `kind=trade`.")
        if name in properties:
            raise UsageError(f"{name!r} is repeated; leave one out.")
        properties[name] = read_value(value)
    for name, value in properties.items():
        check_not_null(name, value)
    return normalise(properties)


def _set(
    options: argparse.Namespace, kind: str, address: Sequence[str], part: str, body: Any
) -> int:
    client = client_for(options)
    key = find_port(client, kind, "/".join(address), options.namespace)
    word = kind.removesuffix("s")
    try:
        path = f"{port_path(word, key)}/{part}"
        query = {"force": "true"} if options.force else {}
        answer = client.change("PUT", path, body, namespace=key.namespace, **query)
    except RequestError as error:
        raise with_expression(with_suggestion(client, kind, key, error), body) from error
    outcome = "set" if answer["changed"] else "unchanged"
    stored = f": {shorten(properties_text(body), 200)}" if kind == "exports" else ""
    print_text(f"{word} {key} {part} {outcome}{one_line(stored)}{routes_text(answer)}\n")
    print_notes(answer.get("warnings", ()))
    if kind == "imports" and not (answer["routes"]["kept"] or answer["routes"]["added"]):
        print_notes(_lint_notes(client, key))
    return OK


def _lint_notes(client: BrokerClient, key: PortKey) -> list[str]:
    """Return the linter's messages for an import without a route; empty if the request fails."""
    try:
        findings = fetch_explanation(client, {"import": str(key)}, 1)["lint"]
    except RequestError:
        return []
    return [str(finding["message"]) for finding in findings]
