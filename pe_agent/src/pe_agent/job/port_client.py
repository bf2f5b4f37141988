"""Client of the broker for one port of the PE; each change is applied exactly once."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

from pe_agent.job.agent.view_cache import KnownPort
from pe_agent.job.context import JobContext
from pe_agent.transport.agent_client import send
from pe_agent.transport.broker_client import BrokerAnswer, pe_path
from streambroker_client.errors import BrokerRefusedError, BrokerUnavailableError, UnknownPortError
from streambroker_core.errors import StreambrokerError
from streambroker_core.wire.agent_rpc.job import GetStatus

DECLARE_WAIT_SECONDS = 5.0
"""How long a request waits until the broker has a port that the job has declared."""
RETRY_LOST_SECONDS = 10.0
"""How long a change with a lost response is retried."""
RETRY_SECONDS = 0.1
CHANGE_SECONDS = 5.0
READ_SECONDS = 2.0
MIN_TIMEOUT_SECONDS = 0.05
"""Minimum timeout of a request, however little time is left."""


class PortClient:
    """One port, as known to the broker, the agent and this program; ``deadline`` is monotonic."""

    def __init__(
        self, job: JobContext, kind: str, name: str, *, deadline: float = math.inf
    ) -> None:
        self._job, self.kind, self.name = job, kind, name
        self._deadline = deadline
        self._path = f"{pe_path(job.key.job, job.key.pe)}/{kind}/{name}"

    def cached_port(self) -> KnownPort | None:
        """Return the port from the cache of this program; never raises."""
        return self._job.view_cache.port(self.kind, self.name)

    def port_in_view(self) -> KnownPort | None:
        """Return the port from the agent's view; never raises."""
        return self._job.view_cache.port_in_view(self.kind, self.name)

    def get(self, subresource: str, parse_fields: Callable[[Any], KnownPort]) -> KnownPort:
        """Return a part of the port from the broker, as ``parse_fields`` parses it.

        Raises:
            BrokerUnavailableError, BrokerRefusedError: as :meth:`request`.
        """
        answer = self.request("GET", subresource)
        uid, _, generation = answer.headers.get("etag", "").strip('"').rpartition(".")
        if not uid or not generation.isdigit():
            raise BrokerUnavailableError("the server at the broker's address is not a broker.")
        fields = parse_fields(answer.body)
        self._cache(uid, int(generation), fields)
        return fields

    def put(
        self,
        subresource: str,
        body: Any,
        fields: KnownPort,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> Mapping[str, Any]:
        """Change a part of the port, or all of it, and return the broker's response.

        ``fields`` are those of a view after the change; ``headers`` are conditions.

        Raises:
            BrokerUnavailableError, BrokerRefusedError: as :meth:`request`.
        """
        answer = self.request("PUT", subresource, body, headers=headers).body
        try:
            result: dict[str, Any] = {**answer, "generation": int(answer["generation"])}
            uid = str(result["uid"])
        except (LookupError, TypeError, ValueError) as error:
            raise BrokerUnavailableError(
                "the server at the broker's address is not a broker, or has another release: it"
                f" is not known whether the change of {self.kind} {self.name} was made.",
                sent=True,
            ) from error
        self._cache(uid, result["generation"], fields)
        return result

    def _cache(self, uid: str, generation: int, fields: KnownPort) -> None:
        self._job.view_cache.update_port(
            self.kind, self.name, uid=uid, generation=generation, fields=fields
        )

    def request(
        self,
        method: str,
        subresource: str = "",
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        await_declared: bool = True,
    ) -> BrokerAnswer:
        """Send a request to the broker.

        With ``await_declared``, wait for a port that is declared but not yet known to the broker.

        Raises:
            BrokerUnavailableError: no response; ``sent`` is set if a change may have been made.
            BrokerRefusedError: the broker refuses, with a reason.
        """
        path = f"{self._path}/{subresource}" if subresource else self._path
        deadline = self._deadline_after(DECLARE_WAIT_SECONDS)
        while True:
            try:
                if method == "GET":
                    return self._job.broker().request(
                        method, path, timeout=self._remaining(READ_SECONDS)
                    )
                return self._change_with_retry(method, path, body, headers or {})
            except UnknownPortError:
                if not await_declared or time.monotonic() > deadline or not self._is_declared():
                    raise
            time.sleep(0.05)

    def _deadline_after(self, seconds: float) -> float:
        return min(time.monotonic() + seconds, self._deadline)

    def _remaining(self, seconds: float) -> float:
        return max(MIN_TIMEOUT_SECONDS, self._deadline_after(seconds) - time.monotonic())

    def _is_declared(self) -> bool:
        try:
            return f"{self.kind}/{self.name}" in send(self._job.agent, GetStatus())["declarations"]
        except StreambrokerError:
            return False

    def _change_with_retry(
        self, method: str, path: str, body: Any, headers: Mapping[str, str]
    ) -> BrokerAnswer:
        """Make a change, and repeat the request if the response was lost.

        The request has an id, so the broker makes the change once and repeats its first response.
        A request that never reached the broker is not repeated.
        """
        request_headers = {**headers, "Request-Id": secrets.token_hex(16)}
        deadline, perhaps_made = self._deadline_after(RETRY_LOST_SECONDS), False
        while True:
            try:
                return self._job.broker().request(
                    method,
                    path,
                    body,
                    headers=request_headers,
                    timeout=self._remaining(CHANGE_SECONDS),
                )
            except BrokerUnavailableError as error:
                perhaps_made = perhaps_made or error.sent
                if not perhaps_made:
                    raise
                if time.monotonic() > deadline:
                    raise self._lost_answer_error(error) from error
            except BrokerRefusedError as error:
                if not (perhaps_made and error.status >= 500):
                    raise
                if time.monotonic() > deadline:
                    raise self._lost_answer_error(error) from error
            time.sleep(RETRY_SECONDS)

    def _lost_answer_error(self, error: Exception) -> BrokerUnavailableError:
        return BrokerUnavailableError(
            f"the answer to the change of {self.kind} {self.name} was lost, and the broker did"
            f" not answer again: it is not known whether the change was made. {error}",
            sent=True,
        )
