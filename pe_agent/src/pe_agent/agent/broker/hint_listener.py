"""Listens for the broker's hints."""

from __future__ import annotations

import ipaddress
import logging
import socket
import time
from collections.abc import Callable

from pe_agent.agent.agent import Agent
from streambroker_core.errors import HintError
from streambroker_core.wire.broker import hints

log = logging.getLogger("pe_agent")


class HintListener:
    """Turns valid hints into polls; a replayed hint costs at most one poll.

    Attributes:
        address: IP address and port for hints.
        gate: decides which hints and views are newer than what the agent has.
        proof: the last proof, received by hint, that this agent listens.
        refused: number of refused hints.
    """

    def __init__(
        self,
        agent: Agent,
        *,
        host: str,
        port: int,
        broker: tuple[str, int],
        on_poll: Callable[[], None],
        on_commands: Callable[[], None],
    ) -> None:
        self._agent, self._on_poll, self._on_commands = agent, on_poll, on_commands
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._socket.bind((host, port))
        except (OSError, OverflowError):
            self._socket.close()
            raise
        self.address = _hint_address(self._socket, broker)
        view = agent.routes.view
        self.gate = hints.HintGate(view.version or None, view.point) if view else hints.HintGate()
        self.proof = ""
        self.refused = 0

    def run(self) -> None:
        """Listen until the listener is closed.

        A hint for commands may have replaced one for a view, so it also counts as a poll hint.
        """
        self._socket.settimeout(0.5)  # closing a socket does not interrupt a thread that waits
        while True:
            try:
                datagram = self._socket.recv(hints.MAX_DATAGRAM + 1)
            except TimeoutError:
                continue
            except OSError:
                return
            try:
                hint = hints.decode(self._agent.key, datagram, str(self._agent.pe))
            except HintError as error:
                self.refused += 1
                log.debug("hint refused: %s", error)
                continue
            if hint.version.startswith(hints.PROOF):
                self.proof = hint.version.removeprefix(hints.PROOF)
            if hint.version == hints.COMMANDS:
                self._on_commands()
            if self.gate.should_poll(hint, time.monotonic()):
                self._on_poll()

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()


def _hint_address(listener: socket.socket, broker: tuple[str, int]) -> str:
    """Return the IP address and port for hints; a broker resolves no names."""
    host, port = listener.getsockname()
    if ipaddress.ip_address(host).is_unspecified:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(broker)
                host = probe.getsockname()[0]
            except OSError:
                host = "127.0.0.1"
    return f"{host}:{port}"
