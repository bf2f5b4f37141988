"""The link to the broker outlives whatever one round meets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pe_agent.agent.actions import job_actions
from pe_agent.agent.agent import Agent
from pe_agent.agent.broker import link as broker_link
from pe_agent.agent.broker.link import (
    ACKNOWLEDGE_SECONDS,
    BUSY_ACKNOWLEDGE_SECONDS,
    BUSY_SECONDS,
    BrokerLink,
)
from pe_agent.transport.broker_client import BrokerAnswer
from streambroker_client.errors import BrokerUnavailableError
from streambroker_core.model import PeKey
from streambroker_core.wire.broker.hints import STALE_S
from streambroker_core.wire.broker.view import View, encode, with_version
from streambroker_core.wire.broker.view_rules import ViewRule, make_view_rules
from streambroker_operator.kubernetes.status.work_queue import SETTLE_S
from support.processes.waiting import until


@pytest.fixture
def link(tmp_path: Path) -> Iterator[BrokerLink]:
    """A link to a broker that is not there."""
    hosts = Agent(PeKey.parse("default/feed/0"), tmp_path, progress=lambda *_: None)
    link = BrokerLink(
        hosts,
        "http://127.0.0.1:9",
        location="grpc+tcp://127.0.0.1:1",
        instance="ab" * 8,
        host="127.0.0.1",
    )
    yield link
    link.close()
    hosts.close()


def test_a_round_that_fails_for_whatever_reason_is_followed_by_another(
    link: BrokerLink, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rounds: list[int] = []

    def round_() -> None:
        rounds.append(len(rounds))
        link.wake()
        if len(rounds) < 3:
            raise OSError("no space left on device")

    monkeypatch.setattr(link, "_sync", round_)
    link.start()
    until(lambda: len(rounds) >= 3, 10, "a third round")

    assert "no space left on device" in caplog.text


def test_after_a_restore_the_first_change_is_taken_although_all_polls_before_brought_nothing(
    link: BrokerLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    pe = PeKey.parse("default/feed/0")
    before, changed = (
        with_version(View(pe=pe, point=(9, 9))),
        View(pe=pe, version="else", point=(4, 3)),
    )
    same = BrokerAnswer(304, {"point": "3,3"}, None)
    answers = [BrokerAnswer(200, {}, encode(before)), same, same]
    answers.append(BrokerAnswer(200, {}, encode(changed)))
    clock = iter((0.0, 30.0, 30.0 + STALE_S, 31.0 + STALE_S))
    monkeypatch.setattr(broker_link, "time", SimpleNamespace(monotonic=lambda: next(clock)))

    def request(*_: Any, **__: Any) -> BrokerAnswer:
        return answers.pop(0)

    monkeypatch.setattr(link._client, "request", request)
    for _ in range(4):
        link._poll()

    view = link._agent.routes.view
    assert view is not None
    assert (view.version, view.point) == ("else", (4, 3))


def test_a_view_of_which_rules_were_left_out_is_asked_for_whole(
    link: BrokerLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = make_view_rules([ViewRule(id="new", document={})])
    new = with_version(View(pe=PeKey.parse("default/feed/0"), rules=rules, rules_version=7))
    old = with_version(replace(new, rules=make_view_rules([]), rules_version=6))
    answers = [BrokerAnswer(200, {}, encode(each)) for each in (new, old, new, new)]
    asked: list[dict[str, str]] = []

    def request(*_: Any, headers: dict[str, str], **__: Any) -> BrokerAnswer:
        asked.append(headers)
        return answers.pop(0)

    monkeypatch.setattr(link._client, "request", request)
    for _ in range(4):
        link._poll()

    tags = [headers.get("If-None-Match") for headers in asked]
    assert tags == [None, f'"{new.version}"', None, f'"{new.version}"']
    view = link._agent.routes.view
    assert view is not None
    assert view.rules == rules


def test_a_broker_that_says_later_is_asked_more_and_more_seldom(
    link: BrokerLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("random.uniform", lambda _low, high: high)

    def round_() -> None:
        if len(pauses) < 6:
            raise BrokerUnavailableError("later", busy=True)
        if len(pauses) == 7:
            raise BrokerUnavailableError("gone")

    def wait(pause: float) -> None:
        pauses.append(pause)
        if len(pauses) == 8:
            link._stopped.set()

    monkeypatch.setattr(link, "_sync", round_)
    monkeypatch.setattr(link._wake, "wait", wait)
    link._run()

    assert pauses == [2.0, 4.0, 8.0, 16.0, 16.0, 16.0, 33.0, 1.0]


def test_an_agent_of_many_changes_tells_of_them_with_its_polls(
    link: BrokerLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, pauses, sent = [100.0], list[float](), list[bool]()
    monkeypatch.setattr(broker_link, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def request(*_: Any, headers: dict[str, str], **__: Any) -> BrokerAnswer:
        sent.append("Running-For" in headers)
        view = View(pe=PeKey.parse("default/feed/0"), version=f"v{len(sent)}", point=(1, len(sent)))
        return BrokerAnswer(200, {"acknowledge": "at-once"}, encode(view))

    monkeypatch.setattr(link._client, "request", request)
    # One change, one half a second later, and one long after these.
    for pause in (0.5, 5.0, 0.0):
        link._poll()
        pauses.append(link._acknowledgement.limit(60.0))
        now[0] += pause

    assert sent == [False, True, True]
    assert pauses == [ACKNOWLEDGE_SECONDS, BUSY_ACKNOWLEDGE_SECONDS, BUSY_ACKNOWLEDGE_SECONDS]
    assert BUSY_ACKNOWLEDGE_SECONDS < SETTLE_S
    now[0] += BUSY_SECONDS
    assert link._acknowledgement.limit(60.0) == ACKNOWLEDGE_SECONDS


def test_a_poll_says_which_exports_have_ended_and_what_changes_meanwhile_is_reported_at_once(
    link: BrokerLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, woken = list[str | None](), list[bool]()
    turns = iter(([], ["b", "a"], ["a"], ["a"]))  # the last word of each poll, while it is made
    now = {"ended": frozenset[str]()}
    monkeypatch.setattr(link._agent.exports, "ended", lambda: now["ended"])

    def request(*_: Any, headers: dict[str, str], **__: Any) -> BrokerAnswer:
        said.append(headers.get("Ended"))
        now["ended"] = frozenset(next(turns))
        return BrokerAnswer(304, {}, None)

    monkeypatch.setattr(link._client, "request", request)
    for _ in range(4):
        link._poll()
        woken.append(link._wake.is_set())
        link._wake.clear()

    assert said == [None, None, "a,b", "a"]
    assert woken == [False, True, True, False]


def test_a_poll_that_fails_has_reported_nothing(
    link: BrokerLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link._agent.exports, "ended", lambda: frozenset({"a"}))
    with pytest.raises(BrokerUnavailableError):
        link._poll()

    assert link._agent.exports.reported_ended == frozenset()


def test_the_broker_is_to_hear_of_an_end_and_of_what_takes_it_back_and_of_no_other_epoch(
    link: BrokerLink,
) -> None:
    hosts = link._agent
    job_actions(hosts).handle("declare", {"kind": "export", "port": "out", "spec": None})
    export, heard = hosts.exports.get("out"), list[bool]()
    steps: list[Callable[[], Any]] = [
        lambda: hosts.notifier.notify(export.key),
        lambda: export.publisher.finish(query=None, run=None),
        lambda: link._note_reported_ended(hosts.exports.ended()),
        export.state.notify,
        lambda: setattr(export.state.publisher, "ended", None),
        export.state.notify,
    ]
    for step in steps:
        hosts.report_due.clear()
        step()
        heard.append(hosts.report_due.is_set())

    assert heard == [False, True, False, False, False, True]
