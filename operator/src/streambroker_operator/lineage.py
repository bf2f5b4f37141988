"""Sends the graph to a receiver of OpenLineage events: what changed, soon after it changed.

- Keys of jobs and datasets are pending, not events. An event is made when it is sent: the latest
  content wins, and the board bounds how many keys are pending.
- Content that was sent is not sent again.
- Only the leader sends. A new leader sends everything once, as does a broker that starts.
- A failure here never concerns the rest of the broker.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, TypeAlias

import aiohttp
from yarl import URL

from streambroker_core.catalog.openlineage import Lineage
from streambroker_core.model import Export, Import, PeKey, PortKey, kind_of
from streambroker_core.wire.encoding.canonical import canonical, digest
from streambroker_operator.runtime.change_log import MAX_EVENTS, ChangeEvent
from streambroker_operator.runtime.runtime import Runtime

WINDOW_S = 2.0
"""Time in which changes are collected before they are sent; also the first delay of a retry."""
MAX_DELAY_S = 60.0
"""Maximum delay of a retry."""
REQUEST_S = 10.0
"""Timeout of a request."""
REFUSED = (400, 413, 422)
"""Responses about the event itself, which would be the same at the next attempt."""
ENDPOINT = "/api/v1/lineage"
"""Path of receivers, if the URL has none."""

_Key: TypeAlias = PeKey | PortKey
_log = logging.getLogger("streambroker.lineage")
_jitter = random.Random()  # noqa: S311 - it only spreads retries


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageTarget:
    """Where events go.

    Attributes:
        url: receives the events as POST requests.
        namespace: namespace of the jobs in OpenLineage, which names this broker.
        token: bearer token; empty for none.
    """

    url: str
    namespace: str = "streambroker"
    token: str = field(default="", repr=False)


def read_url(text: str) -> str:
    """Return the URL that events are sent to.

    Raises:
        ValueError: it is not a URL of HTTP, or has a user or a password.
    """
    try:
        url = URL(text)
    except ValueError:
        url = URL()
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError(f"{text!r} is not a URL; write http://HOST or https://HOST")
    if url.user or url.password:
        raise ValueError("it has a user or a password; set STREAMBROKER_LINEAGE_TOKEN instead")
    return str(url.with_path(ENDPOINT) if url.path == "/" else url)


class LineageSender:
    """Follows the board and sends events to one receiver, once it is started.

    Attributes:
        results: number of attempts by result: ``sent``, ``failed``, ``refused``.
        problem: why the last attempt failed; empty if it did not.
    """

    _runtime: Runtime
    _leads: Callable[[], bool]
    _task: asyncio.Task[None]

    def __init__(self, target: LineageTarget) -> None:
        self._target = target
        release = version("streambroker-operator")
        self._lineage = Lineage(
            namespace=target.namespace, producer=f"urn:streambroker:broker:{release}"
        )
        self._pending: dict[_Key, None] = {}
        # Digest of the content, and names of the dataset's facets.
        self._sent: dict[_Key, tuple[str, tuple[str, ...]]] = {}
        self._position: int | None = None
        self._failures = 0
        self.results: Counter[str] = Counter()
        self.problem = ""

    @property
    def pending(self) -> int:
        """Number of jobs and datasets that may have changed since they were sent."""
        return len(self._pending)

    def start(self, runtime: Runtime, leads: Callable[[], bool] = lambda: True) -> None:
        """Start sending what `runtime` has, while `leads` returns True."""
        self._runtime, self._leads = runtime, leads
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop sending; the next leader sends what is pending."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        headers = {"Content-Type": "application/json"}
        if self._target.token:
            headers["Authorization"] = f"Bearer {self._target.token}"
        timeout = aiohttp.ClientTimeout(total=REQUEST_S)
        try:
            async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
                while True:
                    await asyncio.sleep(retry_delay_s(self._failures, _jitter.random()))
                    self._collect()
                    await self._send_pending(session)
        except Exception:
            self.problem = "an error in the broker, see its log"
            _log.exception("lineage is not sent any more")

    def _collect(self) -> None:
        """Add what has changed since the last call; nothing is known while another leads."""
        board, log = self._runtime.board, self._runtime.change_log
        if not (self._leads() and board.synced):
            self._position, self._failures, self.problem = None, 0, ""
            self._pending.clear()
            self._sent.clear()
            return
        events = None if self._position is None else log.events_after(self._position, MAX_EVENTS)
        self._position = log.count
        if events is None:
            exports = [one.key for one in board.iter_exports()]
            ports = [*exports, *(one.key for one in board.iter_imports())]
            keys = [*self._sent, *exports, *(port.owner for port in ports)]
            self._pending |= dict.fromkeys(keys)
        else:
            self._pending |= dict.fromkeys(key for event in events for key in _changed(event))

    async def _send_pending(self, session: aiohttp.ClientSession) -> None:
        """Send events of the keys that are pending now, up to the first one to be retried."""
        for key in list(self._pending):
            await asyncio.sleep(0)
            if not self._leads():
                return
            is_done = await self._send(session, key)
            del self._pending[key]
            if not is_done:
                # The last one next time: an event that always fails does not hold up the others.
                self._pending[key] = None
                return

    async def _send(self, session: aiohttp.ClientSession, key: _Key) -> bool:
        """Send the event of a key if its content is new; return False if it must be retried."""
        former, is_gone = self._sent.get(key), self._is_gone(key)
        if is_gone and former is None:
            return True
        event = self._build(key)
        content, facets = digest(event), tuple(event.get("dataset", {}).get("facets", ()))
        if former is not None:
            if former[0] == content:
                return True
            if facets:
                event = self._lineage.without_facets(event, former[1])
        time = datetime.now(UTC).isoformat()
        status, problem = await self._post(session, canonical({**event, "eventTime": time}))
        if problem and status not in REFUSED:
            self._on_failure(problem)
            return False
        self.results["refused" if problem else "sent"] += 1
        if problem:
            _log.warning("the event of %s is refused and not sent again: %s", key, problem)
        if self._failures:
            _log.warning("lineage is sent again")
        self._failures, self.problem = 0, ""
        if is_gone:
            self._sent.pop(key)
        else:
            self._sent[key] = content, facets
        return True

    def _on_failure(self, problem: str) -> None:
        if problem != self.problem:
            origin = URL(self._target.url).origin()
            _log.warning("lineage cannot be sent to %s, will be retried: %s", origin, problem)
        self.problem = problem
        self._failures += 1
        self.results["failed"] += 1

    async def _post(self, session: aiohttp.ClientSession, body: bytes) -> tuple[int, str]:
        """Return the status of the response, 0 for none, and what is wrong with it."""
        try:
            async with session.post(self._target.url, data=body, allow_redirects=False) as response:
                if response.ok and response.status < 300:
                    return response.status, ""
                text = (await response.content.read(200)).decode(errors="replace")
                return response.status, f"HTTP {response.status} {text}".strip()
        except TimeoutError:
            return 0, f"no response within {REQUEST_S:g} s"
        except aiohttp.ClientError as error:
            return 0, str(error) or type(error).__name__

    def _build(self, key: _Key) -> dict[str, Any]:
        """Return the event of a key, without its time."""
        if isinstance(key, PortKey):
            return self._lineage.dataset_event(key, self._export(key))
        exports, imports = self._ports(key)
        board = self._runtime.board
        reads = [(one, board.routes_of("Import", one.uid)) for one in imports]
        return self._lineage.job_event(key, exports, reads)

    def _is_gone(self, key: _Key) -> bool:
        if isinstance(key, PortKey):
            return self._export(key) is None
        return not any(self._ports(key))

    def _export(self, key: PortKey) -> Export | None:
        board = self._runtime.board
        found = board.holder("Export", key)
        is_accepted = found is not None and board.is_accepted("Export", found.uid)
        return found if is_accepted and isinstance(found, Export) else None

    def _ports(self, pe: PeKey) -> tuple[list[Export], list[Import]]:
        """Return the accepted Exports and Imports of a PE."""
        board = self._runtime.board
        found = [one for one in board.resources_of(pe) if board.is_accepted(kind_of(one), one.uid)]
        return (
            [one for one in found if isinstance(one, Export)],
            [one for one in found if isinstance(one, Import)],
        )


def retry_delay_s(failures: int, jitter: float) -> float:
    """Return the seconds until the next attempt; `jitter` (0 to 1) spreads the upper half."""
    if not failures:
        return WINDOW_S
    return min(MAX_DELAY_S, WINDOW_S * 2.0 ** min(failures, 16)) * (0.5 + 0.5 * jitter)


def _changed(event: ChangeEvent) -> Iterator[_Key]:
    """Yield the keys that an event of the change log concerns."""
    body = json.loads(event.data)
    if "route" in body:
        yield PortKey.parse(body["route"]["import"]).owner
    elif event.name in ("export", "import"):
        spec, namespace = body["object"]["spec"], body["object"]["metadata"]["namespace"]
        port = PortKey(namespace, spec["job"], spec["pe"], spec["port"])
        if event.name == "export":
            yield port
        yield port.owner
