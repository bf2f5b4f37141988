"""Tracks which changes the agents run, for the condition `Programmed`.

Every change of the board has a number. An agent with the PE's current view runs all changes;
with an older view it runs the changes before that view was replaced. A resource is programmed when
the agents of all its routes run its last change, and none is away.

The state is one number per resource and a few per PE, none per route.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from streambroker_core.board import Action, RoutesChanged, StatusChanged
from streambroker_core.model import RULE, PeKey
from streambroker_operator.kubernetes.replicas.agent_liveness import AWAY_S, LeaderAgentLiveness
from streambroker_operator.kubernetes.status.conditions import (
    Condition,
    false_condition,
    true_condition,
)

AgentState: TypeAlias = Literal["current", "behind", "unheard", "away", "gone"]
"""``gone``: away and not missed by any reader; the job may have finished."""

_MAX_RECENT = 8
"""Remembered former views per PE; an agent with an older one is behind anyway."""
_MAX_EARLY = 10_000


class _EarlyReport(NamedTuple):
    """Report, relayed by another replica, of an instance that is not registered here yet."""

    instance: str
    version: str
    since: float


class _FormerView(NamedTuple):
    """Replaced view: the last change at which it was current, and since when it was current."""

    change: int
    current_since: float


@dataclass(slots=True)
class _Agent:
    """State of the agent of one PE.

    Attributes:
        current: version of the PE's view; None without one.
        current_since: time since when this view is current.
        recent: former versions, oldest first.
        ran_change: last change that the agent runs; None until it reports.
        runs_current: whether the agent runs the current view.
        late_since: time of the first view change that the agent does not run yet, or None.
    """

    current: str | None = None
    current_since: float = 0.0
    recent: dict[str, _FormerView] = field(default_factory=dict)
    ran_change: int | None = None
    runs_current: bool = False
    late_since: float | None = None


class ProgrammedTracker:
    """Tracks what each agent runs, from its reports and the changes of the board.

    Args:
        on_applied: called with the seconds from a changed view until its agent runs it.

    Attributes:
        liveness: last contact of each agent, and which are away.
    """

    def __init__(
        self,
        version_for: Callable[[PeKey], str | None],
        is_registered: Callable[[PeKey], bool],
        *,
        on_applied: Callable[[float], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_applied = on_applied
        self._clock = clock
        self._version_for = version_for
        self._is_registered = is_registered
        self.liveness = LeaderAgentLiveness(clock)
        self._instances: dict[PeKey, str] = {}
        self._early: dict[PeKey, _EarlyReport] = {}
        self._agents: dict[PeKey, _Agent] = {}
        self._needed_changes: dict[str, int] = {}
        self._change = 0

    def on_actions(self, actions: Iterable[Action], *, changed: Iterable[str] = ()) -> None:
        """Process the board's actions after one event; `changed` are uids of changed specs."""
        self._change += 1
        for action in actions:
            if isinstance(action, RoutesChanged):
                self._on_view_changed(action.pe, action.version)
            elif isinstance(action, StatusChanged) and action.kind != RULE:
                self._needed_changes[action.uid] = self._change
        for uid in changed:
            self._needed_changes[uid] = self._change

    def forget(self, uid: str) -> None:
        """Drop a deleted resource."""
        self._needed_changes.pop(uid, None)

    def on_registered(self, pe: PeKey, instance: str) -> bool:
        """Record the instance of an agent; return whether an early report of it takes effect.

        A new instance has run nothing, so earlier reports are discarded.
        """
        if self._instances.get(pe) == instance:
            return False
        self._instances[pe] = instance
        self.liveness.note_contact(pe)
        agent = self._agents.get(pe)
        if agent is not None:
            agent.ran_change, agent.runs_current, agent.late_since = None, False, None
        early = self._early.pop(pe, None)
        if early is None or early.instance != instance:
            return False
        return self.on_acknowledged(pe, early.version, self._clock() - early.since)

    def on_withdrawn(self, pe: PeKey) -> None:
        """Drop the agent of a removed PE."""
        self.liveness.forget(pe)
        self._instances.pop(pe, None)
        self._early.pop(pe, None)

    def on_acknowledged(
        self, pe: PeKey, version: str, ago_s: float = 0.0, instance: str | None = None
    ) -> bool:
        """Record the view that an agent runs since `ago_s`; return whether that changes its state.

        `instance` is set if another replica relayed the report. A report of an instance that is not
        registered here yet counts once it is.
        """
        if instance is not None and instance != self._instances.get(pe):
            if len(self._early) < _MAX_EARLY:
                self._early[pe] = _EarlyReport(instance, version, self._clock() - ago_s)
            return False
        was_silent = self.liveness.note_contact(pe)
        return self._apply_version(pe, version, ago_s) or was_silent

    def _apply_version(self, pe: PeKey, version: str, ago_s: float) -> bool:
        """Apply a reported version; return whether the agent runs more changes than before."""
        agent = self._get_agent(pe)
        before = agent.runs_current, agent.ran_change
        if version == agent.current:
            agent.runs_current = True
            agent.ran_change = self._change
            if agent.late_since is not None:
                self._on_applied(max(0.0, self._clock() - ago_s - agent.late_since))
                agent.late_since = None
            return not before[0]
        former = agent.recent.get(version)
        change = -1 if former is None else former.change
        if agent.ran_change is None or change > agent.ran_change:
            agent.ran_change = change
            self._on_former_view(agent, former, ago_s)
        return agent.ran_change != before[1]

    def _on_former_view(self, agent: _Agent, former: _FormerView | None, ago_s: float) -> None:
        """Report the delay of a view that was applied while newer views exist."""
        late = agent.late_since
        if former is None or late is None or former.current_since < late:
            return
        self._on_applied(max(0.0, self._clock() - ago_s - late))
        later = (
            other.current_since
            for other in agent.recent.values()
            if other.current_since > former.current_since
        )
        agent.late_since = min(later, default=agent.current_since)

    def agent_state(self, pe: PeKey) -> AgentState:
        """Return the state of a registered agent, as far as this process knows."""
        if self.liveness.is_away(pe):
            return "away"
        agent = self._agents.get(pe)
        if agent is None or not self._is_reporting(pe, agent):
            return "unheard"
        return "current" if agent.runs_current else "behind"

    def runs_current(self, pe: PeKey) -> bool:
        """Return whether a PE's agent is known to run its current view."""
        agent = self._agents.get(pe)
        return agent is not None and agent.runs_current

    def condition(self, uid: str, pes: Iterable[PeKey]) -> Condition | None:
        """Return the condition of a resource; None while an agent has no recent report.

        `pes` are its own PE first, then the PEs at the other ends of its routes.
        """
        needed_change = self._needed_changes.get(uid, 0)
        is_own, unheard, behind = True, False, False
        away: Condition | None = None
        for pe in pes:
            if not self._is_registered(pe):
                return _no_agent_condition(is_own=is_own)
            agent = self._agents.get(pe)
            if self.liveness.is_away(pe):
                away = away or _agent_away_condition(is_own=is_own)
            elif agent is None or not self._is_reporting(pe, agent):
                unheard = True
            elif not agent.runs_current and (
                agent.ran_change is None or agent.ran_change < needed_change
            ):
                behind = True
            is_own = False
        if away is not None:
            return away
        if behind:
            message = "Not all agents of its routes run it yet."
            return false_condition("Programmed", "Pending", message)
        return None if unheard else true_condition("Programmed", "Programmed")

    def _is_reporting(self, pe: PeKey, agent: _Agent) -> bool:
        """Return whether it is known what the agent runs, and that it is alive."""
        return (agent.ran_change is not None or agent.runs_current) and self.liveness.is_alive(pe)

    def _get_agent(self, pe: PeKey) -> _Agent:
        agent = self._agents.get(pe)
        if agent is None:
            agent = self._agents[pe] = _Agent(current=self._version_for(pe))
        return agent

    def _on_view_changed(self, pe: PeKey, version: str | None) -> None:
        if version is None:
            self._agents.pop(pe, None)
            return
        agent = self._agents.get(pe)
        if agent is None:
            return
        now = self._clock()
        if agent.current is not None:
            agent.recent.pop(agent.current, None)
            agent.recent[agent.current] = _FormerView(self._change - 1, agent.current_since)
            if len(agent.recent) > _MAX_RECENT:
                del agent.recent[next(iter(agent.recent))]
        if agent.runs_current:
            agent.ran_change, agent.runs_current = self._change - 1, False
            agent.late_since = now
        agent.current, agent.current_since = version, now


def _no_agent_condition(*, is_own: bool) -> Condition:
    message = (
        "No agent is registered for its PE." if is_own else "An agent of its routes is missing."
    )
    return false_condition("Programmed", "NoAgent", message)


def _agent_away_condition(*, is_own: bool) -> Condition:
    subject = "The agent of its PE" if is_own else "An agent of its routes"
    message = f"{subject} has not requested its routes for {AWAY_S:.0f} seconds."
    return false_condition("Programmed", "AgentAway", message)
