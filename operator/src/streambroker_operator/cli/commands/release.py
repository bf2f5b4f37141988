"""``release``: give up changes made at run time, so that the manifest applies again."""

from __future__ import annotations

import argparse
from typing import Any

from streambroker_client.errors import BrokerError
from streambroker_core.wire.manifests.ports import PLURALS
from streambroker_operator.cli.commands.delete import RESOURCE, read_named_targets, resolve_target
from streambroker_operator.cli.io.errors import OK, UsageError
from streambroker_operator.cli.io.options import add_remote_command, client_for
from streambroker_operator.cli.io.targets import with_suggestion
from streambroker_operator.cli.io.terminal import print_text
from streambroker_operator.cli.output.changes import routes_text


def add(commands: Any) -> None:
    """Add the command."""
    text = "undo changes made at run time, so that the manifest applies again"
    command = add_remote_command(commands, "release", text)
    command.add_argument("words", nargs="+", metavar=RESOURCE)
    command.set_defaults(run=_release)


def _release(options: argparse.Namespace) -> int:
    broker = client_for(options)
    for target in read_named_targets(options.words):
        ports, pes = resolve_target(broker, target, options.namespace)
        if pes:
            raise UsageError("A PE has nothing to release; name an export or an import.")
        for kind, key, _ in ports:
            try:
                answer = broker.release(kind, key)
            except BrokerError as error:
                raise with_suggestion(broker, PLURALS[kind], key, error) from error
            outcome = "released" if answer.changed else "unchanged"
            print_text(f"{kind.lower()} {key} {outcome}{routes_text(answer)}\n")
    return OK
