"""Figures of rules on their way from the driver to the agent of the job.

They are for people: what cannot be told is told with the next beat, and nothing waits for it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from streambroker_core.cep.engine.metrics import RuleFigures
from streambroker_core.errors import StreambrokerError
from streambroker_core.wire.reports.rule_metrics import MOST_RULES, ToldWaiting, write_figures

if TYPE_CHECKING:
    from pe_agent.transport.agent_client import AgentClient

log = logging.getLogger("pe_agent.cep")

SPACING_SECONDS = 2.0
AGAIN_SECONDS = 20.0
"""So often figures are told that are no others: the agent may be another one by now."""


class _Told(NamedTuple):
    """What is told at once; nothing at all of a query that has ended."""

    rules: tuple[dict[str, Any], ...] = ()
    waiting: dict[str, Any] | None = None


class Figuring:
    """Tells the agent what the rules of one operator have done, as long as they run.

    Args:
        agent: returns the agent.
        operator: the operator's name.
        sets: name of the log with its sets of rules.
        figures: returns what rules have done; the agent takes the thousand on which most time was
            spent.
        waiting: returns what waits for the watermark, of an operator and the log of its sets.
        errors: returns how often a version of a rule failed, by id and version.
        running: says whether the query is there.
        clock: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        agent: Callable[[], AgentClient],
        operator: str,
        sets: str,
        figures: Callable[[], Sequence[RuleFigures]],
        waiting: Callable[[str, str], ToldWaiting],
        errors: Callable[[], dict[tuple[str, int], int]],
        running: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._agent, self._operator, self._log = agent, operator, sets
        self._figures, self._waiting = figures, waiting
        self._errors, self._running = errors, running
        self._clock = clock
        self._sent: _Told | None = None
        self._at = 0.0

    def beat(self) -> None:
        """Tell what is new; called about twice a second."""
        now = self._clock()
        told = self._told() if self._running() else _Told()
        if now < self._at + self._pause(told):
            return
        names = {"operator": self._operator, "log": self._log}
        try:
            self._agent().call("rules.figures", timeout=2.0, **names, **told._asdict())
        except StreambrokerError as error:
            log.debug("figures of rules are not taken: %s", error)
            return
        self._sent, self._at = told, now

    def _pause(self, told: _Told) -> float:
        if told == (self._sent or _Told()):
            return AGAIN_SECONDS if told.rules else math.inf
        return SPACING_SECONDS if told.rules and self._sent and self._sent.rules else 0.0

    def _told(self) -> _Told:
        rules = tuple(self._rules())
        told = write_figures(self._waiting(self._operator, self._log))
        waiting = {name: told[name] for name in ("rows", "first", "watermark")}
        return _Told(rules, waiting) if rules else _Told()

    def _rules(self) -> list[dict[str, Any]]:
        errors = self._errors()
        found = []
        figures = sorted(self._figures(), key=lambda one: -one.nanoseconds)[:MOST_RULES]
        for one in figures:
            told = asdict(one)
            del told["since"]
            found.append({**told, "errors": errors.get((one.rule, one.version), 0)})
        return found
