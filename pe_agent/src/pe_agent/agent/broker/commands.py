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
    Done,
    Errand,
    decode_errands,
    encode_done,
)
from streambroker_core.wire.broker.hints import POLL_SPACING_S

log = logging.getLogger("pe_agent")

Action = Callable[[dict[str, Any]], dict[str, Any]]


class UnknownErrandError(StreambrokerError):
    """The broker asks for something that this release cannot do, or does for nobody else."""

    code = "ErrandUnknown"


class Errands:
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
                self.round()
            except Exception as error:
                # Whatever it was: it waits there still, and the broker says so again.
                log.info("errands of the broker cannot be fetched or answered: %s", error)
            self._closed.wait(POLL_SPACING_S)

    def round(self) -> None:
        """Fetch, do and answer until nothing waits.

        Raises:
            StreambrokerError: the broker did not take the answers, and has the errands still.
        """
        done: list[Done] = []
        while errands := decode_errands(self._send(encode_done(done))):
            done = [self._done(one) for one in errands]

    def _done(self, errand: Errand) -> Done:
        try:
            if errand.action not in ACTIONS:
                raise UnknownErrandError(f"this agent does no {errand.action!r} for a broker.")
            return Done(id=errand.id, answer=self._actions[errand.action](errand.body))
        except StreambrokerError as error:
            return Done(id=errand.id, code=error.code, detail=str(error))
        except Exception as error:
            log.exception("errand failed", extra={"errand": errand.action})
            why = f"the agent failed, its log says why: {type(error).__name__}: {error}"
            return Done(id=errand.id, code=FAILED, detail=why)
