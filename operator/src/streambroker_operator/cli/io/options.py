"""Options shared by commands, and an argument parser with one-line errors."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from streambroker_core.model import DEFAULT_NAMESPACE
from streambroker_operator.cli.io.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    import ssl

    from streambroker_client.broker import Broker

TIMEOUT_S = 30.0
DEFAULT_URL = "http://127.0.0.1:8470"
_KUBECTL_OUTPUTS = ("jsonpath", "jsonpath-file", "go-template", "template", "custom-columns")
"""Output formats of kubectl that are not supported."""
_TEXT_OUTPUTS = ("table", "text")
"""Synonyms: a command accepts either."""
OUTPUTS = ("table", "wide", "json", "yaml", "name")


class Parser(argparse.ArgumentParser):
    """Parser that raises instead of exiting."""

    def error(self, message: str) -> NoReturn:
        """Raise a usage error."""
        text = message[:1].upper() + message[1:]
        stop = "" if text.endswith(("?", ".")) else "."
        raise UsageError(f"{text}{stop} See `{self.prog} --help`.")


def one_of(*words: str) -> Callable[[str], str]:
    """Return an option type that accepts one of these words."""

    def read(text: str) -> str:
        if text.partition("=")[0] in _KUBECTL_OUTPUTS:
            raise argparse.ArgumentTypeError(f"{text!r} is not known; use json, and select with jq")
        if text in _TEXT_OUTPUTS and text not in words:
            text = next((word for word in words if word in _TEXT_OUTPUTS), text)
        if text not in words:
            listed = ", ".join(words)
            raise argparse.ArgumentTypeError(
                f"{text!r} is none of {listed}.{did_you_mean(text, words)}"
            )
        return text

    return read


def add_shared(command: argparse.ArgumentParser, *, root: bool = False) -> None:
    """Add the options of every command that calls a broker; only the root sets defaults."""
    no_default: Any = argparse.SUPPRESS
    command.add_argument(
        "--url",
        default=os.environ.get("STREAMBROKER_URL") or DEFAULT_URL if root else no_default,
        help="the broker; default $STREAMBROKER_URL or " + DEFAULT_URL,
    )
    command.add_argument(
        "-n",
        "--namespace",
        default=DEFAULT_NAMESPACE if root else no_default,
        help=f"where resources are looked for; default {DEFAULT_NAMESPACE}",
    )
    command.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        default=None if root else no_default,
        help="holds the bearer token; default $STREAMBROKER_TOKEN",
    )
    command.add_argument(
        "--ca",
        type=Path,
        metavar="FILE",
        default=os.environ.get("STREAMBROKER_CA") or None if root else no_default,
        help="certificates to trust at https://, PEM; default $STREAMBROKER_CA, or the system's",
    )
    command.add_argument(
        "--tls-server-name",
        metavar="NAME",
        default=None if root else no_default,
        help="the name to expect in the broker's certificate; default the host of --url",
    )
    command.add_argument(
        "--request-timeout",
        type=parse_seconds,
        metavar="SECONDS",
        default=TIMEOUT_S if root else no_default,
        help=f"seconds without a response before a request fails; default {TIMEOUT_S:g}",
    )


def add_remote_command(commands: Any, name: str, text: str) -> argparse.ArgumentParser:
    """Add and return the parser of a command that calls a broker."""
    command: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    add_shared(command)
    return command


def add_output(command: argparse.ArgumentParser, *words: str) -> None:
    """Add ``-o``; the first word is the default."""
    choices = words or OUTPUTS
    command.add_argument(
        "-o",
        "--output",
        type=one_of(*choices),
        default=choices[0],
        metavar="|".join(choices),
        help=f"how to show it; default {choices[0]}",
    )


def add_everywhere(command: argparse.ArgumentParser) -> None:
    """Add ``-A``."""
    command.add_argument("-A", "--all-namespaces", action="store_true", help="of all namespaces")


def add_force(command: argparse.ArgumentParser) -> None:
    """Add ``--force``."""
    command.add_argument(
        "--force",
        action="store_true",
        help="in a cluster, take over fields that a manifest declares; prints a warning",
    )


def namespace_for(options: argparse.Namespace) -> str:
    """Return the selected namespace, ``*`` for all."""
    return "*" if getattr(options, "all_namespaces", False) else str(options.namespace)


def client_for(options: argparse.Namespace) -> Broker:
    """Return a client with the token of the options or the environment; refuse an invalid token."""
    from streambroker_client.broker import Broker
    from streambroker_client.connection import Connection, SettingNames

    token = _read_token(options.token_file)
    return Broker(
        Connection(
            options.url,
            lambda: token,
            lambda: _tls_context(options.ca, options.tls_server_name),
            options.request_timeout,
            SettingNames(url="--url", ca="--ca", timeout="--request-timeout"),
        ),
        options.namespace,
    )


def _tls_context(ca: Path | None, server_name: str | None) -> ssl.SSLContext:
    import ssl

    class Named(ssl.SSLContext):
        """Expects ``server_name``, not the host of the connection."""

        def wrap_socket(self, *args: Any, **kwargs: Any) -> ssl.SSLSocket:
            return super().wrap_socket(*args, **kwargs | {"server_hostname": server_name})

    try:
        context = ssl.create_default_context(cafile=ca)
        if server_name is not None:
            context.__class__ = Named
        return context
    except OSError as error:  # ssl errors are OSErrors
        reason = "it is not PEM" if isinstance(error, ssl.SSLError) else error.strerror
        raise UsageError(
            f"The file {ca} of certificates to trust cannot be used: {reason}."
            " Correct --ca or STREAMBROKER_CA."
        ) from error


def _read_token(file: Path | None) -> str | None:
    if file is None:
        text = os.environ.get("STREAMBROKER_TOKEN", "").strip()
        where = "STREAMBROKER_TOKEN"
    else:
        where = str(file)
        try:
            text = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"The token file {file} cannot be read: {error}.") from error
        if not text:
            raise UsageError(f"The token file {file} is empty; it holds the token alone.")
    return check_token(text, where) or None


def check_token(text: str, where: str) -> str:
    """Return a bearer token; refuse one that no header can carry. `where` names its source."""
    if not text.isascii() or any(c.isspace() or not c.isprintable() for c in text):
        raise UsageError(f"{where} is not a token: it has to be one word of ASCII.")
    return text


def seconds_between(low: float, high: float) -> Callable[[str], float]:
    """Return an option type that accepts a number of seconds in a range."""

    def read(text: str) -> float:
        try:
            seconds = float(text)
        except ValueError:
            seconds = math.nan
        if not low <= seconds <= high:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a number of seconds from {low:g} to {high:g}"
            )
        return seconds

    return read


def parse_seconds(text: str) -> float:
    """Parse a duration in seconds, for an option."""
    try:
        seconds = float(text.removesuffix("s"))
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < 86_400.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time; write seconds, such as 5")
    return seconds
