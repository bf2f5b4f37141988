"""What the broker asks of the agent: fetched when something waits, done, answered.

A thread of its own does it: a tuple waits for a disk, and for the batch that is being published,
and no poll may wait for that.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from streambroker_core.errors import StreambrokerError
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

Action = Callable[[dict[str, Any]], dict[str, Any]]


class UnknownCommandError(StreambrokerError):
    """The broker asks for something that this release cannot do, or does for nobody else."""

    code = "ErrandUnknown"


class CommandRunner:
    """One thread that fetches and does.

    Args:
        actions: what the agent can do, by name; only those of `ACTIONS` are done for a broker.
        send: takes answers to the broker, and returns what else there is to do.
    """

    def __init__(
        self, actions: Mapping[str, Action], send: Callable[[dict[str, Any]], Any]
    ) -> None:
        self._actions = actions
        self._send = send
        self._wake = threading.Event()
        self._closed = threading.Event()

    def start(self) -> None:
        """Begin; nothing is asked before something waits."""
        threading.Thread(target=self._run, daemon=True, name="broker errands").start()

    def wake(self) -> None:
        """Something waits."""
        self._wake.set()

    def close(self) -> None:
        """Stop."""
        self._closed.set()
        self._wake.set()

    def _run(self) -> None:
        while self._wake.wait() and not self._closed.is_set():
            self._wake.clear()
            try:
                self.run_pending()
            except Exception as error:
                # Whatever it was: it waits there still, and the broker says so again.
                log.info("errands of the broker cannot be fetched or answered: %s", error)
            self._closed.wait(POLL_SPACING_S)

    def run_pending(self) -> None:
        """Fetch, do and answer until nothing waits.

        Raises:
            StreambrokerError: the broker did not take the answers, and has the errands still.
        """
        done: list[CommandResult] = []
        while errands := decode_commands(self._send(encode_results(done))):
            done = [self._perform(one) for one in errands]

    def _perform(self, command: AgentCommand) -> CommandResult:
        try:
            if command.action not in ACTIONS:
                raise UnknownCommandError(f"this agent does no {command.action!r} for a broker.")
            return CommandResult(id=command.id, answer=self._actions[command.action](command.body))
        except StreambrokerError as error:
            return CommandResult(id=command.id, code=error.code, detail=str(error))
        except Exception as error:
            log.exception("errand failed", extra={"errand": command.action})
            why = f"the agent failed, its log says why: {type(error).__name__}: {error}"
            return CommandResult(id=command.id, code=FAILED, detail=why)
