"""``up`` and ``version``: run a broker, and show the release."""

from __future__ import annotations

import argparse
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streambroker_client.errors import BrokerError
from streambroker_core.errors import StreambrokerError
from streambroker_operator.cli.io.errors import OK, UsageError
from streambroker_operator.cli.io.options import (
    add_output,
    add_remote_command,
    check_token,
    client_for,
    one_of,
)
from streambroker_operator.cli.io.terminal import print_text
from streambroker_operator.cli.output.table import print_answer
from streambroker_telemetry import logs

if TYPE_CHECKING:
    from streambroker_client.connection import Connection
    from streambroker_core.wire.manifests.quotas import Quotas
    from streambroker_operator.lineage import LineageTarget

MAX_TCP_PORT = 65_535
_NAMESPACE = re.compile(r"[A-Za-z0-9._:-]{1,253}")


def add(commands: Any) -> None:
    """Add the commands."""
    up = commands.add_parser("up", help="run a broker over a SQLite file")
    up.add_argument(
        "--db",
        type=Path,
        default=Path("streambroker.db"),
        metavar="FILE",
        help="resources and keys of the broker; default streambroker.db in this folder",
    )
    up.add_argument("--host", default="127.0.0.1")
    up.add_argument("--port", type=tcp_port, default=8470, help="default 8470; 0 picks a free one")
    up.add_argument("--tokens", type=Path, metavar="FILE", help="who may call; see the documents")
    up.add_argument(
        "--insecure",
        action="store_true",
        help="let other machines reach a broker without tokens or without TLS",
    )
    up.add_argument("--tls-cert", type=Path, metavar="FILE", help="certificate chain to show, PEM")
    up.add_argument("--tls-key", type=Path, metavar="FILE", help="its private key, PEM")
    up.add_argument(
        "--tls-self-signed",
        type=Path,
        metavar="DIR",
        help="show a certificate of an own CA, which is made in DIR, with pairs for agents",
    )
    add_broker_options(up)
    up.set_defaults(run=_up)
    version_command = add_remote_command(
        commands, "version", "show the release of this command and of the broker"
    )
    version_command.add_argument("--client", action="store_true", help="of this command only")
    add_output(version_command, "text", "json", "yaml")
    version_command.set_defaults(run=_version)


def add_broker_options(command: argparse.ArgumentParser) -> None:
    """Add the options of every broker: rate limits, log level, the page and lineage."""
    command.add_argument(
        "--limit",
        action="append",
        default=[],
        type=_parse_limit,
        metavar="NAME=VALUE",
        help="what the broker lets one caller do, for instance writes-per-s=500; repeatable",
    )
    command.add_argument(
        "--log-level",
        default="WARNING",
        type=one_of("DEBUG", "INFO", "WARNING"),
        metavar="DEBUG|INFO|WARNING",
    )
    logs.add_option(command)
    command.add_argument(
        "--quotas",
        type=_parse_quotas,
        metavar="JSON",
        help="""quotas by namespace, * for the others: '{"*": {"ports": 100}}'""",
    )
    command.add_argument("--no-ui", action="store_true", help="serve no page at /ui/")
    command.add_argument("--no-peek", action="store_true", help="show rows of exports to no caller")
    command.add_argument(
        "--lineage-url",
        type=_parse_lineage_url,
        default=os.environ.get("STREAMBROKER_LINEAGE_URL") or None,
        metavar="URL",
        help="send the graph there as OpenLineage events, with the token of"
        " $STREAMBROKER_LINEAGE_TOKEN if set; default $STREAMBROKER_LINEAGE_URL, or none",
    )
    command.add_argument(
        "--lineage-namespace",
        default="streambroker",
        type=_parse_lineage_namespace,
        metavar="NAME",
        help="namespace of this broker's jobs in OpenLineage; default streambroker",
    )


def configure_log(options: argparse.Namespace) -> None:
    """Write the log as the options of `add_broker_options` ask for."""
    text = "%(asctime)s %(levelname)s %(name)s %(message)s"
    logs.configure(options.log_format, options.log_level, text)


def print_line(options: argparse.Namespace, message: str) -> None:
    """Print a line about the broker, in the format of its log."""
    print_text(logs.format_line(options.log_format, message))


def tcp_port(text: str) -> int:
    """Parse a TCP port; 0 means any free port."""
    if not (text.isascii() and text.isdigit() and int(text[:9]) <= MAX_TCP_PORT):
        raise argparse.ArgumentTypeError(f"{text!r} is not a TCP port; write 0 to {MAX_TCP_PORT}")
    return int(text)


def _parse_limit(text: str) -> tuple[str, float]:
    from streambroker_operator.rest.guard.rate_limits import read_limit

    try:
        return read_limit(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _parse_lineage_url(text: str) -> str:
    from streambroker_operator.lineage import read_url

    try:
        return read_url(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _parse_lineage_namespace(text: str) -> str:
    if not _NAMESPACE.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a namespace; write letters, digits and . _ : -"
        )
    return text


def lineage_target(options: argparse.Namespace) -> LineageTarget | None:
    """Return where lineage is sent; None for nowhere."""
    if options.lineage_url is None:
        return None
    from streambroker_operator.lineage import LineageTarget

    where = "STREAMBROKER_LINEAGE_TOKEN"
    token = check_token(os.environ.get(where, "").strip(), where)
    return LineageTarget(url=options.lineage_url, namespace=options.lineage_namespace, token=token)


def _parse_quotas(text: str) -> Quotas:
    from streambroker_core.wire.manifests.quotas import read_quotas

    try:
        return read_quotas(json.loads(text))
    except (ValueError, StreambrokerError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not quotas in JSON: {error}") from error


def _up(options: argparse.Namespace) -> int:
    import asyncio

    from streambroker_operator.broker import Broker, serve
    from streambroker_operator.rest.guard.rate_limits import RateLimits
    from streambroker_operator.security import audit_log as audit

    configure_log(options)
    if options.tokens is not None:
        audit.log_to_stderr()
    broker = Broker(
        certificate=_certificate(options),
        db=options.db,
        host=options.host,
        port=options.port,
        tokens=options.tokens,
        insecure=options.insecure,
        limits=RateLimits(**dict(options.limit)),
        page=not options.no_ui,
        peek=not options.no_peek,
        lineage=lineage_target(options),
        quotas=options.quotas,
    )
    asyncio.run(serve(broker, lambda url: print_line(options, _greeting(url, options))))
    return OK


def _greeting(url: str, options: argparse.Namespace) -> str:
    from streambroker_operator.rest.console.page_files import find_files
    from streambroker_operator.security.self_signed import CA

    lines = [f"streambroker listening on {url}"]
    if options.tls_self_signed is not None:
        certificate = (options.tls_self_signed / CA).absolute()
        lines.append(f"clients need STREAMBROKER_CA={certificate}")
    lines.append(f"database {options.db.absolute()}")
    if not options.no_ui and find_files():
        lines.append(f"page at {url}/ui/")
    return "\n".join(lines)


def _certificate(options: argparse.Namespace) -> tuple[Path, Path] | None:
    pair = certificate_pair(options)
    if options.tls_self_signed is None:
        return pair
    from streambroker_operator.security.self_signed import write_certificates

    if pair is not None:
        raise UsageError("Give --tls-self-signed, or --tls-cert and --tls-key, not both.")
    return write_certificates(options.tls_self_signed, options.host)


def certificate_pair(options: argparse.Namespace) -> tuple[Path, Path] | None:
    """Return certificate file and key file; None for no TLS. Refuse one without the other."""
    if (options.tls_cert is None) != (options.tls_key is None):
        raise UsageError("Give --tls-cert and --tls-key together, or neither.")
    return None if options.tls_cert is None else (options.tls_cert, options.tls_key)


def _version(options: argparse.Namespace) -> int:
    from importlib.metadata import version

    versions: dict[str, Any] = {"client": version("streambroker-operator")}
    if not options.client:
        versions["broker"] = _broker_version(client_for(options).connection)
    text = "".join(f"{name} {version_}\n" for name, version_ in versions.items())
    print_answer(versions, options.output, text)
    return OK


def _broker_version(connection: Connection) -> str:
    """Return the version of the broker's REST interface, or why it is unknown."""
    try:
        answer = connection.call("GET", "/api/openapi.json")
        return f"{answer['info']['version']} at {connection.url}"
    except BrokerError as error:
        return f"unknown: {error.code} at {connection.url}"
    except (KeyError, TypeError):
        return f"unknown at {connection.url}"
