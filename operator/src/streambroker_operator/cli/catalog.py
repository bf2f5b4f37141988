"""``catalog``: exports as a document of AsyncAPI, or as entities of Backstage."""

from __future__ import annotations

import argparse
from typing import Any

from streambroker_operator.cli.io.errors import OK
from streambroker_operator.cli.io.options import (
    add_everywhere,
    add_output,
    add_remote_command,
    client_for,
    namespace_for,
)
from streambroker_operator.cli.io.terminal import print_text
from streambroker_operator.cli.output.table import as_json, as_yaml


def add(commands: Any) -> None:
    """Add the command."""
    catalog = add_remote_command(commands, "catalog", "print exports for a catalog of APIs")
    add_output(catalog, "asyncapi", "backstage")
    add_everywhere(catalog)
    catalog.set_defaults(run=_catalog)


def _catalog(options: argparse.Namespace) -> int:
    connection = client_for(options).connection
    document = connection.call("GET", "/api/asyncapi.json", namespace=namespace_for(options))
    if options.output == "asyncapi":
        print_text(as_json(document))
        return OK
    from streambroker_core.catalog.backstage import backstage_entities

    print_text(as_yaml(backstage_entities(document)))
    return OK
