"""Objects by signed URLs, as tasks read and write them: ``https://…``, or ``file:///…``."""

from __future__ import annotations

import contextlib
import http.client
import os
import secrets
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast
from urllib.parse import urlsplit
from urllib.request import url2pathname

from pe_agent.log.atomic_file import sync_directory
from streambroker_core.errors import StreambrokerError

PUT_SECONDS, GET_SECONDS = 60.0, 10.0
"""Longest times without progress."""


class ObjectTransferError(StreambrokerError):
    """An object could not be read or written; a new URL may help."""

    code = "StorageUnavailable"


def put_object(url: str, data: bytes) -> None:
    """Write an object; it is durable when this returns.

    Raises:
        ObjectTransferError: the store does not answer, or refuses the URL.
    """
    parts = urlsplit(url)
    try:
        if parts.scheme == "file":
            _write_file(Path(url2pathname(parts.path)), data)
            return
        headers = {"Content-Type": "application/octet-stream", "x-ms-blob-type": "BlockBlob"}
        request = urllib.request.Request(url, data=data, method="PUT", headers=headers)  # noqa: S310
        with urllib.request.urlopen(request, timeout=PUT_SECONDS):  # noqa: S310
            pass
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise _transfer_error("PUT", url, error) from None


@contextlib.contextmanager
def open_range(url: str, offset: int, length: int) -> Iterator[BinaryIO]:
    """Open a part of an object for reading.

    Raises:
        ObjectTransferError: the store does not answer, or refuses the URL.
    """
    parts = urlsplit(url)
    try:
        if parts.scheme == "file":
            path = Path(url2pathname(parts.path))
            if not path.is_file():
                raise FileNotFoundError(f"{path} is no file")
            with path.open("rb") as file:
                file.seek(offset)
                yield file
            return
        if parts.scheme not in ("http", "https"):
            raise ValueError("the URL has another scheme than http, https and file")
        headers = {"Range": f"bytes={offset}-{offset + length - 1}"}
        request = urllib.request.Request(url, headers=headers)  # noqa: S310
        with urllib.request.urlopen(request, timeout=GET_SECONDS) as response:  # noqa: S310
            yield cast(BinaryIO, response)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise _transfer_error("GET", url, error) from None


def _write_file(path: Path, data: bytes) -> None:
    """Write a file durably, whole or not at all."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync_directory(path.parent)


def _transfer_error(method: str, url: str, error: Exception) -> ObjectTransferError:
    where = url.partition("?")[0]  # the rest is the signature
    why = f"HTTP {error.code}" if isinstance(error, urllib.error.HTTPError) else str(error)
    return ObjectTransferError(f"{method} {where} failed: {why}")
