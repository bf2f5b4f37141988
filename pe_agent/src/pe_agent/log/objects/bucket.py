"""Objects under a prefix of a bucket, or of a directory that several machines share.

The library ``obstore`` speaks to S3 and its relatives, Google Cloud Storage, Azure and file
systems. It finds credentials by the usual chain: environment, workload identity, metadata service.
"""

from __future__ import annotations

import contextlib
import logging
import random
import re
import threading
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pe_agent.log.errors import LogError
from streambroker_core.errors import StreambrokerError

T = TypeVar("T")

log = logging.getLogger("pe_agent")

SCHEMES = ("s3", "gs", "az", "file", "memory")
ATTEMPTS = 8
"""Calls of an operation until its error counts; the pauses between them grow to `MAX_PAUSE`."""
MAX_PAUSE = 2.0
_ELAPSED = re.compile(r" in [\d.]+[mnµ]?s\b")
_TIMEOUT = timedelta(seconds=30)
_LARGE = 128 << 20
"""Bytes of an object from which on it is put in several requests."""
_DELETES = 1_000
"""Objects deleted by one call."""


class BucketUrlError(StreambrokerError):
    """The storage URL cannot be used."""

    code = "StorageUrlInvalid"


class BucketError(LogError):
    """A call of the object store failed, also after retries."""

    code = "StorageUnavailable"


class BucketDeniedError(BucketError):
    """The object store refuses the credentials, or what they may do."""

    code = "StorageDenied"


class BucketUnfitError(StreambrokerError):
    """The object store overwrites an object that a put demands to be absent."""

    code = "StorageUnfit"


class Bucket:
    """Immutable and mutable objects by key, relative to the prefix of the URL. Thread-safe.

    Attributes:
        url: as given; names the bucket in errors.
    """

    def __init__(self, url: str, store: Any, prefix: str = "", root: str | None = None) -> None:
        """Use `open_bucket` instead; ``root`` is the directory of a file system."""
        self.url = url
        self._store = store
        self._prefix = prefix
        self._root = root
        self._closing = threading.Event()

    def folder(self, name: str) -> Bucket:
        """Return the same bucket with a longer prefix."""
        inner = Bucket(f"{self.url}/{name}", self._store, f"{self._prefix}{name}/", self._root)
        inner._closing = self._closing
        return inner

    def end_retries(self) -> None:
        """Let calls fail at their first error from now on, also in folders made before."""
        self._closing.set()

    def put_new(self, key: str, data: bytes) -> bool:
        """Write an object if there is none; return whether it now has this content.

        The content must be unique to its writer. Then a repeated call, after a response was lost,
        also returns True.

        Raises:
            BucketError: the store is unavailable; the object may have been written.
        """
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        def write(o: Any, at: str) -> None:
            # An upload in several parts would take no condition.
            o.put(self._store, at, data, mode="create", use_multipart=False)

        for _ in range(ATTEMPTS):
            try:
                self._call("PutObject", key, write)
            except (AlreadyExistsError, PreconditionError):
                found = self.get(key)
                if found is not None:
                    return found == data
                # A conflict with another put that is under way: nothing was written.
                self._closing.wait(0.1)
            else:
                return True
        raise BucketError(f"{self.url}: PutObject of {key} conflicts with another put, repeatedly.")

    def put(self, key: str, data: bytes) -> None:
        """Write or replace an object.

        Raises:
            BucketError: the store is unavailable; the object may have been written.
        """
        # Several parts are as many requests, and stay in the bucket if the agent is killed.
        in_parts = len(data) > _LARGE
        self._call(
            "PutObject", key, lambda o, at: o.put(self._store, at, data, use_multipart=in_parts)
        )

    def get(self, key: str) -> bytes | None:
        """Return an object's content, None if it does not exist.

        Raises:
            BucketError: the store is unavailable.
        """

        def read(o: Any, at: str) -> bytes | None:
            try:
                return bytes(o.get(self._store, at).bytes())
            except FileNotFoundError:
                return None

        return self._call("GetObject", key, read)

    def get_range(self, key: str, offset: int, length: int) -> bytes | None:
        """Return a part of an object, None if the object does not exist.

        Raises:
            BucketError: the store is unavailable.
        """

        def read(o: Any, at: str) -> bytes | None:
            try:
                return bytes(o.get_range(self._store, at, start=offset, length=length))
            except FileNotFoundError:
                return None

        return self._call("GetObject", key, read)

    def sign(self, method: str, key: str, seconds: int) -> str:
        """Return a URL that allows one method for one object, for some time.

        In a directory that machines share it is the file's URL.

        Raises:
            BucketError: the credentials cannot sign.
        """
        if self._root is not None:
            path = Path(self._root, f"{self._prefix}{key}").absolute()
            if method == "PUT":  # here, so that a task without the directory fails
                path.parent.mkdir(parents=True, exist_ok=True)
            return path.as_uri()

        def make(o: Any, at: str) -> str:
            return str(o.sign(self._store, method, at, timedelta(seconds=seconds)))

        return self._call("PutObject" if method == "PUT" else "GetObject", key, make)

    @cached_property
    def is_shared(self) -> bool:
        """Whether other processes can reach the objects by signed URLs."""
        if self.url.startswith("memory:"):
            return False
        try:
            self.sign("GET", "owners", 60)
        except BucketError as error:
            log.warning("tasks cannot use the bucket themselves: %s", error)
            return False
        return True

    def list(self, folder: str) -> dict[str, int]:
        """Return the sizes in bytes of a folder's objects, by key relative to the folder.

        Raises:
            BucketError: the store is unavailable.
        """

        def names(o: Any, at: str) -> dict[str, int]:
            chunks = o.list(self._store, prefix=at)
            return {one["path"][len(at) :]: one["size"] for chunk in chunks for one in chunk}

        return self._call("ListBucket", f"{folder}/", names)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; missing ones are no error.

        Raises:
            BucketError: the store is unavailable; some objects may be deleted.
        """
        due = list(keys)
        for first in range(0, len(due), _DELETES):
            some = due[first : first + _DELETES]

            def remove(o: Any, _: str, some: list[str] = some) -> None:
                paths = [f"{self._prefix}{key}" for key in some]
                try:
                    o.delete(self._store, paths)
                except FileNotFoundError:  # a file system reports each one that is missing
                    for path in paths:
                        with contextlib.suppress(FileNotFoundError):
                            o.delete(self._store, path)

            self._call("DeleteObject", some[0], remove)

    def _call(self, permission: str, key: str, operation: Callable[[Any, str], T]) -> T:
        import obstore
        from obstore.exceptions import (
            AlreadyExistsError,
            PermissionDeniedError,
            PreconditionError,
            UnauthenticatedError,
        )

        failure: Exception | None = None
        for attempt in range(ATTEMPTS):
            pause = min(MAX_PAUSE, 0.05 * 2**attempt) * random.uniform(0.5, 1)  # noqa: S311
            if attempt and self._closing.wait(pause):
                break
            try:
                return operation(obstore, f"{self._prefix}{key}")
            except (AlreadyExistsError, PreconditionError):
                raise
            except (PermissionDeniedError, UnauthenticatedError) as error:
                raise BucketDeniedError(
                    f"{self.url}: {permission} of {key} is refused ({_first_line(error)}). Give the"
                    f" agent credentials that may do it there (on S3, s3:{permission})."
                ) from error
            except Exception as error:
                failure = error
        raise BucketError(
            f"{self.url}: {permission} of {key} failed {ATTEMPTS} times, last with"
            f" {_first_line(failure)}. Check endpoint, bucket and network."
        ) from failure


def open_bucket(url: str) -> Bucket:
    """Return the bucket of a URL such as ``s3://bucket/prefix`` or ``file:///shared/directory``.

    Nothing is called yet.

    Raises:
        BucketUrlError: the URL has another scheme or no bucket, or ``obstore`` is not installed.
    """
    scheme, separator, rest = url.partition("://")
    if scheme not in SCHEMES or not separator or not (rest.strip("/") or scheme == "memory"):
        known = ", ".join(f"{one}://" for one in SCHEMES[:-1])
        raise BucketUrlError(
            f"storage {url!r} names no bucket: write s3://bucket/prefix or"
            f" file:///shared/directory (known: {known})."
        )
    try:
        from obstore.exceptions import BaseError
        from obstore.store import LocalStore, MemoryStore, from_url
    except ImportError as error:
        raise BucketUrlError(
            f"storage {url!r} needs the package obstore: pip install 'pe-agent[object]'."
        ) from error
    if scheme == "file" and not rest.startswith("/"):
        raise BucketUrlError(f"storage {url!r} is no absolute path: write file:///{rest}.")
    full = url.rstrip("/")
    if scheme == "memory":
        return Bucket(full, MemoryStore())
    if scheme == "file":
        root = full.removeprefix("file://")
        return Bucket(full, LocalStore(root, mkdir=True), root=root)
    try:
        # Retries are ours: those of the library would repeat a put that must not be repeated
        # without looking at its result. Payloads are signed, though the hash costs time: versitygw
        # 1.8 keeps the first half of an unsigned one whose connection was cut.
        store = from_url(
            full,
            client_options={"timeout": _TIMEOUT, "allow_http": True},
            retry_config={"max_retries": 0},
        )
    except (BaseError, ValueError, OSError) as error:
        raise BucketUrlError(f"storage {url!r} cannot be used: {_first_line(error)}") from error
    return Bucket(full, store)


def _first_line(error: Exception | None) -> str:
    """Return an error's first line without times, so that a repeated error has the same text."""
    line = str(error).partition("\n")[0].partition(": <?xml")[0]
    return _ELAPSED.sub("", line)[:300]
