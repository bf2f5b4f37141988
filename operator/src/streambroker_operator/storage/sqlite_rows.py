"""Parse rows of the SQLite file, and report which row is damaged."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from streambroker_core.errors import StreambrokerError
from streambroker_core.model import PeKey, PortKey
from streambroker_core.wire.broker.registration import Registration, split_address
from streambroker_core.wire.manifests.ports import read_spec
from streambroker_operator.errors import StoreError
from streambroker_operator.storage.backend import StoredPe, StoredResource

Row: TypeAlias = tuple[Any, ...]
T = TypeVar("T")

RESOURCE_COLUMNS = "kind, namespace, job, pe, port, uid, name, generation, created, version, spec"
PE_COLUMNS = "namespace, job, pe, version, instance, location, hint"

_DAMAGE = (StreambrokerError, ValueError, TypeError, LookupError, AttributeError, RecursionError)


def read_row(path: Path, table: str, what: str, read: Callable[[Row], T], row: Row) -> T:
    """Parse a row that describes `what`.

    Raises:
        StoreError: the row is damaged; the message names file, table and object.
    """
    try:
        return read(row)
    except _DAMAGE as error:
        raise damaged_row_error(path, table, what, str(error) or type(error).__name__) from error


def damaged_row_error(path: Path, table: str, what: str, reason: str) -> StoreError:
    """Return the error for a damaged row."""
    return StoreError(
        f"{path} is damaged: the row of {what} in the table {table} cannot be read: {reason}."
        " Restore the file from a backup, or delete that row with the program sqlite3 and declare"
        f" {what} again."
    )


def row_name(row: Row) -> str:
    """Return the name of a row's object: its kind and port."""
    return f"{row[0]} {'/'.join(map(str, row[1:5]))}"


def read_resource(row: Row) -> StoredResource:
    """Parse a row with the columns of `RESOURCE_COLUMNS`."""
    kind, namespace, job, pe, port, uid, name, generation, created, version, spec = row
    key = PortKey(namespace=namespace, job=job, pe=pe, port=port)
    if PortKey.parse(str(key)) != key:
        raise ValueError(f"{key} is not a port")
    if not (isinstance(uid, str) and uid and isinstance(name, str)):
        raise ValueError("uid and name have to be texts")
    if not (_is_count(generation) and _is_count(version) and math.isfinite(created)):
        raise ValueError("generation, version and time of creation have to be numbers")
    resource = replace(
        read_spec(kind, json.loads(spec), key=key),
        uid=uid,
        name=name,
        generation=generation,
        created=created,
    )
    return StoredResource(resource=resource, version=version)


def read_pe(row: Row) -> StoredPe:
    """Parse a row with the columns of `PE_COLUMNS`."""
    namespace, job, pe, version, instance, location, hint = row
    key = PeKey(namespace=namespace, job=job, pe=pe)
    if PeKey.parse(str(key)) != key or not _is_count(version):
        raise ValueError("it is not a PE with a version")
    registration = None
    if instance is not None:
        split_address(location.partition("://")[2])
        if hint is not None:
            split_address(hint)
        registration = Registration(instance=str(instance), location=location, hint=hint)
    return StoredPe(pe=key, version=version, registration=registration)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and value >= 0
