"""Figures of rules on their way from the driver to the agent of the job.

They are for people: what cannot be told is told with the next beat, and nothing waits for it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from streambroker_core.cep.figures import RuleFigures
from streambroker_core.errors import StreambrokerError

if TYPE_CHECKING:
    from pe_agent.client import AgentClient

log = logging.getLogger(__name__)

SPACING_SECONDS = 2.0
AGAIN_SECONDS = 20.0
"""So often figures are told that are no others: the agent may be another one by now."""
MOST_RULES = 1_000
"""The agent takes so many; of more, those that most time was spent on."""


class Figuring:
    """Tells the agent what the rules of one operator have done, as long as they run.

    Args:
        agent: returns the agent.
        operator: the operator's name.
        sets: name of the log with its sets of rules.
        figures: returns what rules have done.
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
        errors: Callable[[], dict[tuple[str, int], int]],
        running: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._agent, self._operator, self._log = agent, operator, sets
        self._figures, self._errors, self._running = figures, errors, running
        self._clock = clock
        self._sent: list[dict[str, Any]] | None = None
        self._at = 0.0

    def beat(self) -> None:
        """Tell what is new; called about twice a second."""
        rules, now = self._rules() if self._running() else [], self._clock()
        if now < self._at + self._pause(rules):
            return
        try:
            self._agent().call(
                "rules.figures", timeout=2.0, operator=self._operator, log=self._log, rules=rules
            )
        except StreambrokerError as error:
            log.debug("figures of rules are not taken: %s", error)
            return
        self._sent, self._at = rules, now

    def _pause(self, rules: list[dict[str, Any]]) -> float:
        if rules == (self._sent or []):
            return AGAIN_SECONDS if rules else math.inf
        return SPACING_SECONDS if rules and self._sent else 0.0

    def _rules(self) -> list[dict[str, Any]]:
        errors = self._errors()
        found = []
        figures = sorted(self._figures(), key=lambda one: -one.nanoseconds)[:MOST_RULES]
        for one in figures:
            told = asdict(one)
            del told["since"]
            found.append({**told, "errors": errors.get((one.rule, one.version), 0)})
        return found
