"""``set-filter``, ``set-subscription`` and ``set-properties``: change a running port."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from streambroker_client.answers import PortChange
from streambroker_client.broker import Broker
from streambroker_client.errors import BrokerError
from streambroker_core.model import PortKey
from streambroker_core.model.properties import normalise
from streambroker_core.wire.encoding.fields import Fields
from streambroker_operator.cli.io.errors import OK, UsageError, print_notes, with_expression
from streambroker_operator.cli.io.manifest_files import check_not_null, read_value
from streambroker_operator.cli.io.options import add_force, add_remote_command, client_for
from streambroker_operator.cli.io.targets import KIND_ALIASES, find_port, with_suggestion
from streambroker_operator.cli.io.terminal import one_line, print_text
from streambroker_operator.cli.output.changes import routes_text
from streambroker_operator.cli.output.table import properties_text, shorten

IMPORT = "NAME EXPR | JOB/PE/PORT EXPR"
_SETTERS: Mapping[str, Callable[..., PortChange]] = {
    "filter": Broker.set_filter,
    "subscription": Broker.set_subscription,
    "properties": Broker.set_properties,
}
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
    return _set(options, "imports", address, part, text)


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
    options: argparse.Namespace, kind: str, address: Sequence[str], part: str, value: Any
) -> int:
    broker = client_for(options)
    key = find_port(broker, kind, "/".join(address), options.namespace)
    word = kind.removesuffix("s")
    try:
        answer = _SETTERS[part](broker, key, value, force=options.force)
    except BrokerError as error:
        raise with_expression(with_suggestion(broker, kind, key, error), {part: value}) from error
    outcome = "set" if answer.changed else "unchanged"
    stored = f": {shorten(properties_text(value), 200)}" if kind == "exports" else ""
    print_text(f"{word} {key} {part} {outcome}{one_line(stored)}{routes_text(answer)}\n")
    print_notes(answer.warnings)
    if kind == "imports" and not (answer.kept or answer.added):
        print_notes(_lint_notes(broker, key))
    return OK


def _lint_notes(broker: Broker, key: PortKey) -> list[str]:
    """Return the linter's messages for an import without a route; empty if the request fails."""
    try:
        findings = broker.explain(import_=key, limit=1).lint
    except BrokerError:
        return []
    return [finding.message for finding in findings]
