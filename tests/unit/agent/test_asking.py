"""A source process that hears of news without waiting for them."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pe_agent.datasource import prefetcher as asking
from pe_agent.datasource.prefetcher import Prefetcher
from pe_agent.transport.flight_errors import AgentUnreachableError
from streambroker_core.wire.agent_rpc.reader import NextOffset
from support.processes.waiting import until

SECONDS = 10.0
START: dict[str, Any] = {"reader": "r"}


class Agent:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.may = threading.Event()
        self.answer: NextOffset | Exception = NextOffset(offset=None)

    def __call__(self, start: dict[str, Any]) -> NextOffset:
        may = self.may
        self.asked.append(start)
        assert may.wait(SECONDS)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def agent() -> Agent:
    return Agent()


@pytest.fixture
def ahead(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> Prefetcher:
    monkeypatch.setattr(asking, "FRESH_SECONDS", SECONDS)
    ahead = Prefetcher(agent)
    ahead.note_empty(START)
    return ahead


def test_while_there_is_no_answer_there_is_nothing_new_and_nobody_asks_again(
    agent: Agent, ahead: Prefetcher
) -> None:
    for _ in range(5):
        assert ahead.poll(START, 0.0) == NextOffset(offset=None)
    until(lambda: agent.asked, SECONDS, "the question")
    agent.answer = NextOffset(offset={"reader": "r", "v": 1})
    agent.may.set()
    assert ahead.poll(START, SECONDS) == agent.answer
    assert agent.asked == [START]


def test_who_does_not_come_from_there_or_not_at_once_asks_itself(
    agent: Agent, ahead: Prefetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a trigger of some seconds nothing is known of what happened since."""
    assert ahead.poll({"reader": "other"}, SECONDS) is None
    monkeypatch.setattr(asking, "FRESH_SECONDS", -SECONDS)
    assert ahead.poll(START, SECONDS) is None
    assert agent.asked == []


@pytest.mark.parametrize("offset", [None, {"reader": "r"}])
def test_an_answer_that_has_lain_is_asked_for_again(
    agent: Agent, ahead: Prefetcher, monkeypatch: pytest.MonkeyPatch, offset: Any
) -> None:
    """By now there may be more to read than the thread was told."""
    agent.answer = NextOffset(offset=offset)
    assert ahead.poll(START, 0.0) == NextOffset(offset=None)
    agent.may.set()
    until(ahead._done.is_set, SECONDS, "the answer")
    monkeypatch.setattr(asking, "FRESH_SECONDS", -SECONDS)
    assert ahead.poll(START, 0.0) is None
    monkeypatch.setattr(asking, "FRESH_SECONDS", SECONDS)
    ahead.note_empty(START)
    assert ahead.poll(START, SECONDS) == agent.answer


def test_an_error_comes_to_who_looks(agent: Agent, ahead: Prefetcher) -> None:
    agent.may.set()
    agent.answer = AgentUnreachableError("away")
    with pytest.raises(AgentUnreachableError):
        ahead.poll(START, SECONDS)
    agent.answer = NextOffset(offset=None)
    assert ahead.poll(START, SECONDS) == NextOffset(offset=None)
    assert ahead.poll(START, SECONDS) == NextOffset(offset=None)
    assert agent.asked == [START] * 3


def test_what_was_asked_behind_another_offset_is_not_taken(agent: Agent, ahead: Prefetcher) -> None:
    ahead.note_empty({"reader": "older"})
    assert ahead.poll({"reader": "older"}, 0.0) == NextOffset(offset=None)
    ahead.note_empty(START)
    until(lambda: agent.asked, SECONDS, "the older question")
    older, late = ahead._done, agent.may
    agent.may = threading.Event()
    agent.answer = NextOffset(offset={"reader": "newer"})
    assert ahead.poll(START, 0.0) == NextOffset(offset=None)
    agent.may.set()
    until(ahead._done.is_set, SECONDS, "the newer answer")
    agent.answer = NextOffset(offset={"reader": "older"})
    late.set()
    until(older.is_set, SECONDS, "the older answer")
    assert ahead.poll(START, SECONDS) == NextOffset(offset={"reader": "newer"})
