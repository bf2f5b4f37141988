"""``set-filter``, ``set-subscription`` and ``set-properties``: change a port while it runs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from streambroker_core.errors import ManifestError
from streambroker_core.model import PortKey
from streambroker_core.properties import normalise
from streambroker_core.wire.fields import Fields
from streambroker_operator.cli.addresses import find_port, suggested
from streambroker_operator.cli.calling import Caller, port_path
from streambroker_operator.cli.documents import read_value
from streambroker_operator.cli.failing import OK, UsageError, with_text
from streambroker_operator.cli.forecasting import routes_text
from streambroker_operator.cli.options import caller_of, remote
from streambroker_operator.cli.terminal import say
from streambroker_operator.errors import RequestError

IMPORT = "JOB PE PORT EXPR | JOB/PE/PORT EXPR | NAME EXPR"
EXPORT = "JOB PE PORT | JOB/PE/PORT | NAME, then NAME=VALUE… or one YAML mapping"


def add(commands: Any) -> None:
    """Add the commands."""
    texts = (
        ("set-filter", "change which rows an import gets; an empty EXPR clears it", _set_filter),
        ("set-subscription", "change what an import is connected to", _set_subscription),
    )
    for name, text, run in texts:
        command = remote(commands, name, text)
        command.add_argument("words", nargs="+", metavar=IMPORT)
        command.set_defaults(run=run)
    command = remote(commands, "set-properties", "replace all properties of an export")
    command.add_argument("words", nargs="+", metavar=EXPORT, help="no property is {}")
    command.set_defaults(run=_set_properties)


def _set_filter(options: argparse.Namespace) -> int:
    return _set_expression(options, "filter")


def _set_subscription(options: argparse.Namespace) -> int:
    return _set_expression(options, "subscription")


def _set_expression(options: argparse.Namespace, part: str) -> int:
    *address, text = options.words
    if len(address) not in (1, 3):
        raise UsageError(f"Write `streambroker set-{part}` JOB PE PORT EXPR, or JOB/PE/PORT EXPR.")
    return _set(options, "imports", address, part, {part: text})


def _set_properties(options: argparse.Namespace) -> int:
    words = options.words
    three = len(words) >= 3 and "/" not in words[0] and not any(map(_is_value, words[1:3]))
    count = 3 if three else 1
    return _set(options, "exports", words[:count], "properties", _mapping(words[count:]))


def _is_value(word: str) -> bool:
    return "=" in word or word.lstrip().startswith("{")


def _mapping(words: Sequence[str]) -> Any:
    if len(words) == 1 and words[0].lstrip().startswith("{"):
        return normalise(Fields(read_value(words[0]), "properties").raw())
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name in found:
            raise ManifestError(path=word, reason="is not NAME=VALUE, each name once")
        found[name] = read_value(value)
    return normalise(found)


def _set(
    options: argparse.Namespace, kind: str, address: Sequence[str], part: str, body: Any
) -> int:
    caller = caller_of(options)
    key = _port(caller, kind, address, options.namespace)
    word = kind.removesuffix("s")
    try:
        path = f"{port_path(word, key)}/{part}"
        answer = caller.call("PUT", path, body, namespace=key.namespace)
    except RequestError as error:
        raise with_text(suggested(caller, kind, key, error), body) from error
    done = "set" if answer["changed"] else "unchanged"
    say(f"{word} {key} {part} {done}{routes_text(answer)}\n")
    return OK


def _port(caller: Caller, kind: str, address: Sequence[str], namespace: str) -> PortKey:
    if len(address) == 3:
        return PortKey.parse(f"{namespace}/{'/'.join(address)}")
    return find_port(caller, kind, address[0], namespace)
