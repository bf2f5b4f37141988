"""One port of a program without Spark, and the agent that has it."""

from __future__ import annotations

import getpass
import logging
import os
import re
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pe_agent.job.agent.agent_start import AgentSettings, StartedAgent
from pe_agent.job.arguments import seconds
from pe_agent.transport.agent_client import AgentClient, send
from pe_agent.transport.agent_tls import AgentTrust
from pe_agent.transport.broker_client import BrokerClient, pe_path
from streambroker_client.errors import BrokerUnavailableError, UnknownPortError
from streambroker_core.errors import StreambrokerError
from streambroker_core.model import DEFAULT_SCOPE, Kind, PeKey, PortKey
from streambroker_core.wire.agent_rpc.job import Declare
from streambroker_core.wire.manifests.ports import read_spec, write_spec

log = logging.getLogger("pe_agent")

RECONNECT_SECONDS = 60.0
"""Seconds for which an agent that does not answer is called again."""
_DELETE_SECONDS = 2.0
_KINDS: Mapping[str, Kind] = {"export": "Export", "import": "Import"}


class AgentPort:
    """A declared port of an agent that this program has started.

    With ``is_temporary`` the port and the agent's data end with the program. The agent of an export
    goes on serving for ``linger``.
    """

    def __init__(
        self, kind: str, port: PortKey, settings: AgentSettings, *, is_temporary: bool = False
    ) -> None:
        """Start the agent.

        Raises:
            StreambrokerError: see `streambroker.start`.
        """
        self.kind, self.key = kind, port
        pe = PeKey(port.namespace, port.job, port.pe)
        settings.check(pe)
        directory: str | None = None
        if is_temporary:
            directory = tempfile.mkdtemp(prefix="streambroker-")
            settings = replace(settings, data_dir=directory)
        try:
            self._started = settings.start(pe)
        except BaseException:
            _remove(directory)
            raise
        end_agent = kind == "import" or seconds(settings.linger, "linger") == 0
        path = f"{pe_path(port.job, port.pe)}/{kind}/{port.port}" if is_temporary else None
        self._finalizer = weakref.finalize(self, _end, self._started, path, directory, end_agent)

    @property
    def agent(self) -> AgentClient:
        """The client of the agent; a restart of the agent replaces it."""
        return self._started.process.client

    @property
    def trust(self) -> AgentTrust:
        """TLS trust for the own agent and those of exporters."""
        return self._started.process.trust

    def call(self, action: str, *, timeout: float = 10.0, **body: Any) -> dict[str, Any]:
        """Perform an action of the agent; see `AgentClient.call`."""
        return self.agent.call(action, timeout=timeout, **body)

    @property
    def broker(self) -> BrokerClient:
        """The client of the broker; raise BrokerUnavailableError without one."""
        if self._started.broker is None:
            raise BrokerUnavailableError("there is no broker; give broker=.")
        return self._started.broker

    def on_beat(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` about twice a second while the agent answers."""
        self._started.process.beat_callbacks.append(callback)

    def declare(
        self, spec: Mapping[str, Any], *, application: str, redeclare: bool, schema: Any = None
    ) -> None:
        """Declare the port."""
        spec = {"application": {"name": application, "scope": DEFAULT_SCOPE}, **spec}
        if schema is not None:
            spec["schema"] = schema
        written = write_spec(read_spec(_KINDS[self.kind], spec, key=self.key))
        request = Declare(
            kind=self.kind,
            port=self.key.port,
            spec={name: written.get(name, value) for name, value in spec.items()},
            schema=schema,
            redeclare=redeclare,
        )
        send(self.agent, request)

    def close(self) -> None:
        """End the agent; a temporary port is deleted."""
        self._finalizer()


def reader_job() -> str:
    """Return ``reader-<user>``, the application of readers without a job of their own."""
    user = re.sub(r"[^a-z0-9]+", "-", _user().lower()).strip("-")[:40].strip("-") or "user"
    return f"reader-{user}"


def retry_until(deadline: float, error: StreambrokerError) -> None:
    """Wait a moment before another attempt; raise the error if it is too late or final."""
    if error.code != "AgentUnreachable" or time.monotonic() > deadline:
        raise error
    time.sleep(0.1)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return f"user-{os.getuid()}"


def _end(started: StartedAgent, path: str | None, directory: str | None, end_agent: bool) -> None:
    started.process.stop(end_agent=end_agent)
    if path is not None and started.broker is not None:
        try:
            started.broker.request("DELETE", path, timeout=_DELETE_SECONDS)
        except UnknownPortError:
            pass  # it was never declared
        except StreambrokerError as error:
            log.warning("%s stays at the broker: %s", path, error)
    _remove(directory)


def _remove(directory: str | None) -> None:
    if directory is not None:
        shutil.rmtree(Path(directory), ignore_errors=True)
