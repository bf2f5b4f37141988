"""Objects of a stream that tasks write themselves, without the agent in between.

A task puts its rows under ``direct/<run>/<batch>/<random>`` by a signed URL, and its commit names
the object. Objects of attempts that no commit can name, and of removed epochs, are deleted. Their
keys name run and batch, so no clock has to be trusted.
"""

from __future__ import annotations

import logging
import re
import secrets
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Collection

from pe_agent.log.errors import ObjectCorrupt, Superseded
from pe_agent.log.objects.bucket import Bucket, BucketError

FOLDER = "direct"
URL_SECONDS = 900
"""Validity of a signed URL."""
CACHE_BYTES = 64 << 20
"""Blocks in memory for the agent's own reads, which filter rows for several readers."""
COLLECT_SECONDS = 60.0
"""Time between deletions of objects that are not needed."""

_KEY = re.compile(rf"{FOLDER}/([\w-]+)/(\d+)/[0-9a-f]{{24}}")

log = logging.getLogger("pe_agent")


class DirectObjects:
    """Objects that tasks put into one stream's folder. Thread-safe.

    Attributes:
        find_obsolete: returns those of some keys that neither an epoch nor a commit can name.
    """

    def __init__(
        self,
        bucket: Bucket,
        *,
        request: Callable[[DirectObjects], object],
        save: Callable[[], object],
        url_seconds: int = URL_SECONDS,
    ) -> None:
        """Use the folder of a stream.

        Args:
            bucket: the folder.
            request: has `flush` called soon, by another thread.
            save: writes a snapshot, before objects are deleted; fails if another agent has taken
                over.
            url_seconds: validity of signed URLs.
        """
        self._bucket = bucket
        self._request = request
        self._save = save
        self._url_seconds = url_seconds
        self._lock = threading.Lock()
        self._cache: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._cached_bytes = 0
        self._next_collection = 0.0
        self.find_obsolete: Callable[[Collection[str]], Collection[str]] = lambda _: ()

    def new_key(self, run: str, batch: int) -> str:
        """Return the key of a new object of a run's batch.

        Raises:
            ValueError: the run is no id.
        """
        key = f"{FOLDER}/{run}/{batch}/{secrets.token_hex(12)}"
        if attempt_of(key) is None:
            raise ValueError(f"{run!r} is no id of a run")
        return key

    def put_url(self, key: str) -> str:
        """Return a URL by which one object can be written, for some minutes."""
        return self._bucket.sign("PUT", key, self._url_seconds)

    def get_url(self, key: str) -> str:
        """Return a URL by which one object can be read, for some minutes."""
        return self._bucket.sign("GET", key, self._url_seconds)

    def sizes(self, run: str, batch: int) -> dict[str, int]:
        """Return the bytes of a batch's objects, by key.

        Raises:
            BucketError: the store is unavailable.
        """
        folder = f"{FOLDER}/{run}/{batch}"
        return {f"{folder}/{name}": size for name, size in self._bucket.list(folder).items()}

    def read(self, key: str, offset: int, length: int, crc: int) -> bytes:
        """Return a verified part of an object.

        Raises:
            ObjectCorrupt: the object is missing, or the part differs from what was written.
            BucketError: the store is unavailable.
        """
        with self._lock:
            data = self._cache.get((key, offset))
            if data is not None:
                self._cache.move_to_end((key, offset))
                return data
        part = self._bucket.get_range(key, offset, length)
        found = check_block(part, length, crc, f"{self._bucket.url}/{key}", offset)
        with self._lock:
            if (key, offset) not in self._cache:
                self._cached_bytes += length
            self._cache[key, offset] = found
            while self._cached_bytes > CACHE_BYTES:
                self._cached_bytes -= len(self._cache.popitem(last=False)[1])
        return found

    def tick(self) -> None:
        """Have obsolete objects deleted if that is due; called about once a second."""
        now = time.monotonic()
        if now >= self._next_collection:
            self._next_collection = now + COLLECT_SECONDS
            self._request(self)

    def flush(self) -> None:
        """Delete obsolete objects; the next call tries again what fails."""
        try:
            # Listed first: what is written later cannot be mistaken for obsolete.
            keys = [f"{FOLDER}/{key}" for key in self._bucket.list(FOLDER)]
            obsolete = self.find_obsolete(keys) if keys else ()
            if obsolete:
                self._save()
                self._bucket.delete(obsolete)
        except (BucketError, Superseded) as error:
            log.warning("obsolete objects stay for now: %s", error)

    def fail(self, error: Exception) -> None:
        """Record an unexpected error."""
        log.error("cannot delete obsolete objects of %s", self._bucket.url, exc_info=error)


def attempt_of(key: str) -> tuple[str, int] | None:
    """Return run and batch of an object's key; None if no agent has made the key."""
    found = _KEY.fullmatch(key)
    return None if found is None else (found[1], int(found[2]))


def check_block(data: bytes | None, length: int, crc: int, where: str, offset: int) -> bytes:
    """Return what a task wrote; raise ObjectCorrupt if ``data`` is something else."""
    if data is None:
        raise ObjectCorrupt(where, offset=offset, reason="the object is missing in the bucket")
    if len(data) != length or zlib.crc32(data) != crc:
        raise ObjectCorrupt(where, offset=offset, reason="the checksum of a block differs")
    return data
