"""The commands of ``streambroker``: what they take, call and print."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from streambroker_core.errors import ManifestError, StreambrokerError
from streambroker_core.model import DEFAULT_NAMESPACE, PortKey, kind_of
from streambroker_core.properties import normalise
from streambroker_core.wire.fields import Fields
from streambroker_core.wire.manifest import write_manifest
from streambroker_operator import audit
from streambroker_operator.cli.calling import Caller, port_path
from streambroker_operator.cli.documents import read_resources, read_value
from streambroker_operator.cli.tables import shown
from streambroker_operator.errors import RequestError

DEFAULT_URL = "http://127.0.0.1:8470"
KINDS = ("exports", "imports", "pes", "routes")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return 0, 1 for a refusal, 2 for wrong usage."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except StreambrokerError as error:
        sys.stderr.write(f"streambroker: {error.code}: {error}\n")
        return 2 if error.code == "Usage" else 1
    except (KeyboardInterrupt, BrokenPipeError):
        return 130


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="streambroker", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_up(commands)
    _add_documents(commands)
    _add_get(commands)
    _add_setters(commands)
    return parser


def _remote(commands: Any, name: str, text: str) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    command.add_argument(
        "--url",
        default=os.environ.get("STREAMBROKER_URL", DEFAULT_URL),
        help="the broker; default $STREAMBROKER_URL or " + DEFAULT_URL,
    )
    command.add_argument("-n", "--namespace", default=DEFAULT_NAMESPACE)
    return command


def _add_up(commands: Any) -> None:
    up = commands.add_parser("up", help="run a broker over a SQLite file")
    up.add_argument("--db", type=Path, default=Path("streambroker.db"), metavar="FILE")
    up.add_argument("--host", default="127.0.0.1")
    up.add_argument("--port", type=int, default=8470, help="0 picks a free one")
    up.add_argument("--tokens", type=Path, metavar="FILE", help="who may call; see the documents")
    up.add_argument(
        "--insecure", action="store_true", help="listen for other machines without tokens"
    )
    up.add_argument("--log-level", default="WARNING", choices=("DEBUG", "INFO", "WARNING"))
    up.set_defaults(run=_up)


def _add_documents(commands: Any) -> None:
    apply = _remote(commands, "apply", "create or replace the resources of a YAML file")
    apply.add_argument("-f", "--file", required=True, help="a path, or - for standard input")
    apply.set_defaults(run=_apply)
    delete = _remote(commands, "delete", "delete the resources of a YAML file, or one port")
    delete.add_argument("-f", "--file", help="a path, or - for standard input")
    delete.add_argument("port", nargs="*", metavar="export|import JOB PE PORT")
    delete.set_defaults(run=_delete)


def _add_get(commands: Any) -> None:
    get = _remote(commands, "get", "show exports, imports, PEs and routes")
    get.add_argument("kind", nargs="?", choices=KINDS)
    get.add_argument("-o", "--output", default="table", choices=("table", "wide", "json", "yaml"))
    get.add_argument("-A", "--all-namespaces", action="store_true")
    get.set_defaults(run=_get)


def _add_setters(commands: Any) -> None:
    texts = (
        ("set-filter", "change which rows an import gets; an empty EXPR clears it", _set_filter),
        ("set-subscription", "change what an import is connected to", _set_subscription),
    )
    for name, text, run in texts:
        command = _port_command(commands, name, text)
        command.add_argument("expression", metavar="EXPR")
        command.set_defaults(run=run)
    command = _port_command(commands, "set-properties", "replace all properties of an export")
    command.add_argument(
        "properties", nargs="*", metavar="NAME=VALUE", help="or one YAML mapping; none for {}"
    )
    command.set_defaults(run=_set_properties)


def _port_command(commands: Any, name: str, text: str) -> argparse.ArgumentParser:
    command = _remote(commands, name, text)
    command.add_argument("job", metavar="JOB")
    command.add_argument("pe", metavar="PE")
    command.add_argument("port", metavar="PORT")
    return command


def _up(options: argparse.Namespace) -> int:
    from streambroker_operator.serving import Broker, serve

    logging.basicConfig(
        level=options.log_level, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    if options.tokens is not None:
        audit.show()
    broker = Broker(
        db=options.db,
        host=options.host,
        port=options.port,
        tokens=options.tokens,
        insecure=options.insecure,
    )
    asyncio.run(serve(broker, lambda url: _say(f"streambroker listening on {url}\n")))
    return 0


def _apply(options: argparse.Namespace) -> int:
    resources = read_resources(options.file, options.namespace)
    caller = Caller(options.url)
    for resource in resources:
        path = port_path(kind_of(resource), resource.key)
        body = write_manifest(resource)
        answer = caller.call("PUT", path, body, namespace=resource.key.namespace)
        done = "configured" if answer["changed"] else "unchanged"
        if answer["created"]:
            done = "created"
        _say(f"{kind_of(resource).lower()} {resource.key} {done}{_routes(answer)}\n")
    return 0


def _delete(options: argparse.Namespace) -> int:
    if bool(options.file) == bool(options.port):
        raise RequestError(0, "Usage", "Give either -f FILE or `export|import JOB PE PORT`.")
    if options.file:
        found = read_resources(options.file, options.namespace)
        targets = [(kind_of(resource), resource.key) for resource in found]
    else:
        targets = [_target(options)]
    caller = Caller(options.url)
    for kind, key in targets:
        answer = caller.call("DELETE", port_path(kind, key), namespace=key.namespace)
        _say(f"{kind.lower()} {key} deleted{_routes(answer)}\n")
    return 0


def _target(options: argparse.Namespace) -> tuple[Any, PortKey]:
    words = options.port
    if len(words) != 4 or words[0].lower() not in ("export", "import"):
        raise RequestError(0, "Usage", "One port is given as `export|import JOB PE PORT`.")
    return words[0], PortKey.parse(f"{options.namespace}/{'/'.join(words[1:])}")


def _get(options: argparse.Namespace) -> int:
    caller = Caller(options.url)
    namespace = "*" if options.all_namespaces else options.namespace
    kinds = KINDS if options.kind is None else (options.kind,)
    for kind in kinds:
        items = caller.call("GET", f"/{kind}", namespace=namespace)["items"]
        if len(kinds) > 1 and options.output in ("table", "wide"):
            _say(f"\n{kind}\n")
        _say(shown(kind, items, options.output))
    return 0


def _set_filter(options: argparse.Namespace) -> int:
    return _set(options, "Import", "filter", {"filter": options.expression})


def _set_subscription(options: argparse.Namespace) -> int:
    return _set(options, "Import", "subscription", {"subscription": options.expression})


def _set_properties(options: argparse.Namespace) -> int:
    return _set(options, "Export", "properties", _mapping(options.properties))


def _mapping(words: list[str]) -> Any:
    if len(words) == 1 and words[0].lstrip().startswith("{"):
        return normalise(Fields(read_value(words[0]), "properties").raw())
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name in found:
            raise ManifestError(path=word, reason="is not NAME=VALUE, each name once")
        found[name] = read_value(value)
    return normalise(found)


def _set(options: argparse.Namespace, kind: str, part: str, body: object) -> int:
    key = PortKey.parse(f"{options.namespace}/{options.job}/{options.pe}/{options.port}")
    caller = Caller(options.url)
    path = f"{port_path(kind, key)}/{part}"
    answer = caller.call("PUT", path, body, namespace=key.namespace)
    done = "set" if answer["changed"] else "unchanged"
    _say(f"{kind.lower()} {key} {part} {done}{_routes(answer)}\n")
    return 0


def _routes(answer: dict[str, Any]) -> str:
    routes = answer["routes"]
    counts = f" (routes: {len(routes['kept'])} kept, {len(routes['added'])} added"
    lines = [f"  + {route['export']} -> {route['import']}" for route in routes["added"]]
    lines += [
        f"  - {route['export']} -> {route['import']}: {route['reason']}" for route in routes["cut"]
    ]
    return "\n".join([f"{counts}, {len(routes['cut'])} cut)", *lines])
