"""``snapshot``: save agents and a broker's database, and restore them."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from streambroker_client.broker import pe_path
from streambroker_core.errors import ManifestError, StreambrokerError
from streambroker_core.model import PeKey
from streambroker_core.wire.broker.snapshot import SnapshotManifest
from streambroker_operator.cli.io.errors import OK, UsageError, did_you_mean
from streambroker_operator.cli.io.options import add_remote_command, client_for
from streambroker_operator.cli.io.terminal import print_text

POLL_S = 0.5

_USAGE = {
    "create": "create JOB/PE NAME",
    "save": "save FILE DIR",
    "check": "check DIR",
    "restore": "restore DIR TARGET",
}


def add(commands: Any) -> None:
    """Add the command."""
    text = "save a running agent or a broker's database, and restore them"
    command = add_remote_command(commands, "snapshot", text)
    command.add_argument("action", metavar="|".join(_USAGE), help="what to do")
    command.add_argument("words", nargs="*", metavar=" | ".join(_USAGE.values()))
    command.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    usage = _USAGE.get(options.action)
    if usage is None:
        raise UsageError(
            f"{options.action!r} is none of {', '.join(_USAGE)}."
            f"{did_you_mean(options.action, _USAGE)}"
        )
    if len(options.words) != len(usage.split()) - 1:
        raise UsageError(f"Write `streambroker snapshot {usage}`.")
    try:
        _ACTIONS[options.action](options, options.words)
    except OSError as error:
        raise _FileError(f"{error}. Nothing was replaced; correct it and try again.") from error
    return OK


class _FileError(StreambrokerError):
    code = "SnapshotFailed"


def _create(options: argparse.Namespace, words: Sequence[str]) -> None:
    try:
        pe = PeKey.parse(f"{options.namespace}/{words[0].removeprefix('pe/')}")
    except ManifestError as error:
        raise UsageError(f"{words[0]!r} is not JOB/PE: {error.reason}.") from error
    connection = client_for(options).connection
    path = f"{pe_path(pe)}/snapshots/{words[1]}"
    while (found := connection.call("PUT", path, namespace=pe.namespace))["state"] == "running":
        time.sleep(POLL_S)
    print_text(
        f"pe {pe} saved {found['bytes']} bytes in {found['files']} files, as of {found['created']},"
        f" in {found['path']}\n"
    )


def _save(_: argparse.Namespace, words: Sequence[str]) -> None:
    _show("saved", _local().save_broker(*_paths(words)), words[1])


def _check(_: argparse.Namespace, words: Sequence[str]) -> None:
    _show("checked", _local().check(*_paths(words)), words[0])


def _restore(_: argparse.Namespace, words: Sequence[str]) -> None:
    _show("restored", _local().restore(*_paths(words)), words[1])


def _local() -> ModuleType:
    """Return the module for files of this machine, which kubectl's plugin lacks."""
    try:
        return import_module("streambroker_operator.storage.snapshot")
    except ImportError as error:
        raise UsageError(
            "The plugin only creates snapshots. Save, check and restore them with `streambroker`"
            " where the files are."
        ) from error


def _paths(words: Sequence[str]) -> list[Path]:
    return [Path(word).absolute() for word in words]


def _show(verb: str, manifest: SnapshotManifest, place: str) -> None:
    print_text(
        f"{manifest.kind} {manifest.source} {verb}: {manifest.size} bytes in"
        f" {len(manifest.files)} files, as of {manifest.created}, in {place}\n"
    )


_ACTIONS: dict[str, Callable[[argparse.Namespace, Sequence[str]], None]] = {
    "create": _create,
    "save": _save,
    "check": _check,
    "restore": _restore,
}
