"""Commands of the broker for the agent: fetched when announced, performed, answered.

They run in a thread of their own. A control tuple waits for the disk and for the batch being
published, which must not delay a poll.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from streambroker_core.errors import StreambrokerError
from streambroker_core.wire.agent_rpc.codec import Actions
from streambroker_core.wire.broker.agent_commands import (
    ACTIONS,
    FAILED,
    AgentCommand,
    CommandResult,
    decode_commands,
    encode_results,
)
from streambroker_core.wire.broker.hints import POLL_SPACING_S

log = logging.getLogger("pe_agent")


class UnknownCommandError(StreambrokerError):
    """The broker sent a command that this release does not know, or does not accept from it."""

    code = "ErrandUnknown"


class CommandRunner:
    """Thread that fetches and performs commands.

    Args:
        actions: the actions of the agent; a broker may only use those in `ACTIONS`.
        send: sends results to the broker and returns the next commands.
    """

    def __init__(self, actions: Actions, send: Callable[[dict[str, Any]], Any]) -> None:
        self._actions = actions
        self._send = send
        self._wake = threading.Event()
        self._closed = threading.Event()

    def start(self) -> None:
        """Start the thread; it fetches nothing before `wake`."""
        threading.Thread(target=self._run, daemon=True, name="broker commands").start()

    def wake(self) -> None:
        """Fetch now: the broker has commands."""
        self._wake.set()

    def close(self) -> None:
        """Stop the thread."""
        self._closed.set()
        self._wake.set()

    def _run(self) -> None:
        while self._wake.wait() and not self._closed.is_set():
            self._wake.clear()
            try:
                self.run_pending()
            except Exception as error:
                # The commands stay at the broker, which announces them again.
                log.info("cannot fetch or answer commands of the broker: %s", error)
            self._closed.wait(POLL_SPACING_S)

    def run_pending(self) -> None:
        """Fetch, perform and answer commands until none is left.

        Raises:
            StreambrokerError: the broker did not accept the results and keeps the commands.
        """
        done: list[CommandResult] = []
        while commands := decode_commands(self._send(encode_results(done))):
            done = [self._perform(command) for command in commands]

    def _perform(self, command: AgentCommand) -> CommandResult:
        try:
            if command.action not in ACTIONS:
                raise UnknownCommandError(
                    f"this agent does not support the broker command {command.action!r}."
                )
            answer = self._actions.handle(command.action, command.body)
            return CommandResult(id=command.id, answer=answer)
        except StreambrokerError as error:
            return CommandResult(id=command.id, code=error.code, detail=str(error))
        except Exception as error:
            log.exception("command failed", extra={"errand": command.action})
            why = f"the agent failed, see its log: {type(error).__name__}: {error}"
            return CommandResult(id=command.id, code=FAILED, detail=why)
