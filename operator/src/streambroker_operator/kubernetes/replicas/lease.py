"""Acquires and renews a Lease; knows at any time whether this process leads."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime

from streambroker_operator.cooperative import loop_time
from streambroker_operator.kubernetes.client.documents import Document, ObjectMetadata
from streambroker_operator.kubernetes.client.http_api import (
    Answer,
    ApiUnreachableError,
    HttpApi,
    micro_time,
    object_at,
)
from streambroker_operator.kubernetes.replicas.election import (
    Election,
    LeaseRecord,
    LeaseTiming,
    LeaseWrite,
)

TIMEOUT_S = 5.0
"""Timeout of one request, in seconds."""
RELEASE_S = 2.0
"""Timeout for releasing the Lease when the process ends, in seconds."""
JITTER = 0.2
ADDRESS_ANNOTATION = "streambroker.io/address"
"""Annotation of the Lease with the address of its holder."""

_API = "coordination.k8s.io/v1"

_log = logging.getLogger("streambroker.lease")


def new_identity(host: str) -> str:
    """Return a unique identity that starts with the name of the host."""
    return f"{host[:63]}_{secrets.token_hex(8)}"


class Lease:
    """Candidate for a Lease.

    Args:
        identity: from `new_identity`.
        address: address of this process for the other replicas.
        on_change: called with whether this process leads, each time that changes.
    """

    def __init__(
        self,
        api: HttpApi,
        *,
        namespace: str,
        name: str,
        identity: str,
        timing: LeaseTiming | None = None,
        address: str = "",
        on_change: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name
        self._timing = LeaseTiming() if timing is None else timing
        self._election = Election(identity, self._timing)
        self._address = address
        self._leader_address = ""
        self._on_change = on_change
        self._last_reported = False
        self._trouble = ""
        self._timer: asyncio.TimerHandle | None = None
        self._path = f"/apis/{_API}/namespaces/{namespace}/leases"
        self.writes: Counter[str] = Counter()
        """Writes of the Lease by result: ``done``, ``conflict``, ``refused`` or ``failed``."""

    @property
    def leads(self) -> bool:
        """Whether this process leads now, regardless of pending requests."""
        return self._election.leads(loop_time())

    @property
    def holder(self) -> str:
        """Holder of the Lease when last seen; empty for none."""
        return self._election.holder

    @property
    def leader_address(self) -> str:
        """Address of the last known holder; empty if unknown."""
        return self._leader_address if self.holder else ""

    async def run(self) -> None:
        """Hold the Lease or wait for it until cancelled; call `release` after that."""
        while True:
            try:
                trouble = await self._acquire_or_renew()
            except ApiUnreachableError as error:
                self._election.on_failed()
                self.writes["failed"] += 1
                trouble = f"the API server cannot be reached: {error}"
            self._log_trouble(trouble)
            self._update_leadership()
            await asyncio.sleep(self._pause())

    def _pause(self) -> float:
        """Return the seconds until the next attempt; at latest when the Lease expires."""
        if self.leads:
            return self._timing.retry_s
        spread = 1 + JITTER * random.random()  # noqa: S311 - spreads load, hides nothing
        pause = spread * self._timing.retry_s
        expires_in = self._election.expires_at - loop_time()
        # If others try at the same time, only one write succeeds.
        return min(pause, expires_in) if expires_in > 0 else pause

    async def release(self) -> None:
        """Stop leading and release the Lease; takes at most `RELEASE_S` seconds."""
        self._election.release(time.time())
        self._update_leadership()
        releasing = asyncio.ensure_future(self._release())
        await asyncio.wait([releasing], timeout=RELEASE_S)
        if not releasing.done() or not releasing.result():
            releasing.cancel()
            _log.info("the Lease %s could not be released; it expires by itself", self._name)

    async def _release(self) -> bool:
        """Release the Lease, including one that a pending renewal changed meanwhile."""
        while True:
            try:
                if self._election.must_read and await self._read():
                    return False
                write = self._election.release(time.time())
                if write is None:
                    return True
                response = await self._call("PUT", f"{self._path}/{self._name}", self._body(write))
            except ApiUnreachableError:
                return False
            if response.status != 409:
                return response.status == 200
            self._election.on_failed()

    async def _acquire_or_renew(self) -> str:
        """Read the Lease if needed and write it if possible; return the problem, or ""."""
        if self._election.must_read and (trouble := await self._read()):
            return trouble
        sent = loop_time()
        write = self._election.next_write(sent, time.time())
        if write is None:
            return ""
        self._election.on_failed()  # until the response confirms the write
        if write.version is None:
            response = await self._call("POST", self._path, self._body(write))
        else:
            response = await self._call("PUT", f"{self._path}/{self._name}", self._body(write))
        version = _version(response.body)
        if response.status in (200, 201) and version:
            self.writes["done"] += 1
            self._election.on_written(write.record, version, sent=sent, now=loop_time())
            return ""
        if response.status == 409:
            self.writes["conflict"] += 1
            return ""
        self.writes["refused"] += 1
        return _refusal(response)

    async def _read(self) -> str:
        response = await self._call("GET", f"{self._path}/{self._name}")
        if response.status == 404:
            self._election.on_read(None, None, loop_time())
        elif response.status == 200 and (version := _version(response.body)):
            self._election.on_read(_parse_record(response.body), version, loop_time())
            annotations = object_at(response.body, "metadata", "annotations")
            self._leader_address = str(annotations.get(ADDRESS_ANNOTATION, ""))
        else:
            return _refusal(response)
        return ""

    async def _call(self, method: str, path: str, body: Document | None = None) -> Answer:
        return await self._api.call(method, path, body, timeout_s=TIMEOUT_S)

    def _body(self, write: LeaseWrite) -> Document:
        metadata: ObjectMetadata = {"name": self._name, "namespace": self._namespace}
        if self._address:
            metadata["annotations"] = {ADDRESS_ANNOTATION: self._address}
        if write.version is not None:
            metadata["resourceVersion"] = write.version
        record = write.record
        return {
            "apiVersion": _API,
            "kind": "Lease",
            "metadata": metadata,
            "spec": {
                "holderIdentity": record.holder,
                "leaseDurationSeconds": record.duration_s,
                "acquireTime": micro_time(record.acquired),
                "renewTime": micro_time(record.renewed),
                "leaseTransitions": record.transitions,
            },
        }

    def _update_leadership(self) -> None:
        """Report a change of leadership; check again when it would end by itself."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        leads = self.leads
        if leads:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(self._election.leads_until, self._update_leadership)
        if leads != self._last_reported:
            self._last_reported = leads
            _log.info("%s the Lease %s/%s", "got" if leads else "lost", self._namespace, self._name)
            self._on_change(leads)

    def _log_trouble(self, trouble: str) -> None:
        """Log one line each time the Lease starts or stops failing."""
        if trouble and not self._trouble:
            _log.warning("the Lease %s/%s: %s", self._namespace, self._name, trouble)
        elif self._trouble and not trouble:
            _log.info("the Lease %s/%s is renewed again", self._namespace, self._name)
        self._trouble = trouble


def _refusal(answer: Answer) -> str:
    return f"the API server answers {answer.status}: {answer.body.get('message', '')}"


def _version(body: Document) -> str:
    """Return the version of a Lease; empty if the body has none.

    A write must not use an empty version: the API server treats it as any version.
    """
    return str(object_at(body, "metadata").get("resourceVersion", ""))


def _parse_record(body: Document) -> LeaseRecord:
    spec = object_at(body, "spec")
    return LeaseRecord(
        holder=str(spec.get("holderIdentity") or ""),
        duration_s=int(spec.get("leaseDurationSeconds") or 1),
        acquired=_parse_time(spec.get("acquireTime")),
        renewed=_parse_time(spec.get("renewTime")),
        transitions=int(spec.get("leaseTransitions") or 0),
    )


def _parse_time(text: object) -> float:
    """Return seconds since 1970; 0 if the text is no valid time."""
    try:
        return datetime.strptime(str(text), "%Y-%m-%dT%H:%M:%S.%f%z").timestamp()
    except ValueError:
        return 0.0
