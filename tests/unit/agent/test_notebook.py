"""What a job shows in a notebook: tables of ports and changes, and a view that follows."""

from __future__ import annotations

import sys
import threading
from typing import Any
from unittest.mock import Mock

import pytest

from pe_agent.job.agent.view_cache import ViewCache
from pe_agent.job.notebook.live_view import LiveView
from pe_agent.job.ports import Change, ExportPort, ImportPort
from pe_agent.job.statuses import PeStatus
from pe_agent.pe import PE
from streambroker import ArgumentError, Explanation
from streambroker_core.errors import StreambrokerError
from streambroker_core.model import PeKey
from support.processes.waiting import until

HOSTILE = 'kind == "<script>alert(1)</script>"'
VIEW: dict[str, Any] = {
    "exports": {
        "out": {
            "uid": "e", "generation": 1, "properties": {"kind": "<b>"}, "schema": None,
            "routes": [{"import": "default/alerts/0/in", "filter": None, "policy": "wait"}],
        }
    },
    "imports": {
        "in": {
            "uid": "i", "generation": 1, "subscription": HOSTILE, "filter": "x > 1",
            "routes": [{"export": "default/feed/0/out", "filter": "x > 1", "policy": "drop"}],
        }
    },
}  # fmt: skip


def job(**parts: Any) -> Any:
    return Mock(key=PeKey("default", "alerts", 0), view_cache=ViewCache(lambda: VIEW), **parts)


def status(published: int) -> PeStatus:
    reader = {"import": "default/alerts/0/in", "alive": True, "lagRows": 7, "congestion": 40}
    export = {"publishedRows": published, "held": 5, "limit": 10, "readers": {"r": reader}}
    readers = {"q": {"import": "default/feed/0/in", "alive": True, "lost": [1, 3]}}
    return PeStatus.from_json(
        {
            "pe": "default/feed/0",
            "exports": {"default/feed/0/out": export},
            "imports": {"readers": readers, "away": {"grpc+tcp://h:1": "closed"}},
        }
    )


def test_ports_show_their_spec_and_routes_with_texts_escaped() -> None:
    shown = ImportPort(job(), "in")._repr_html_()
    assert "<th>subscription</th><td>kind == &quot;&lt;script&gt;" in shown
    assert "<script>" not in shown
    assert "<td>default/feed/0/out</td><td>x &gt; 1</td><td>drop</td>" in shown
    assert "<div>kind: &lt;b&gt;</div>" in ExportPort(job(), "out")._repr_html_()


def test_a_port_without_routes_has_a_sentence_in_place_of_the_table() -> None:
    assert ImportPort(job(), "other")._repr_html_().endswith("<p>Routes: none.</p>")


def test_a_change_shows_how_many_routes_it_adds_and_cuts() -> None:
    change = Change(3, {"added": [{}, {}], "cut": [], "kept": [{}]}, ImportPort(job(), "in"))
    assert "<caption>Change of import in</caption>" in change._repr_html_()
    assert "<div>added: 2</div><div>cut: 0</div><div>kept: 1</div>" in change._repr_html_()


def test_a_pe_shows_all_its_ports() -> None:
    pe = PE(Mock(), PeKey("default", "alerts", 0), Mock(beat_callbacks=[]), None, {})
    pe.view_cache._fetch_view = lambda: VIEW
    pe._add_import("in")
    pe._add_export("out", None)
    shown = pe._repr_html_()
    assert shown.startswith("<h4>default/alerts/0</h4>")
    assert "ExportPort default/alerts/0/out" in shown
    assert "ImportPort default/alerts/0/in" in shown


def test_an_explanation_is_its_text_for_people_and_its_json_for_programs() -> None:
    answer = {"matched": 0, "text": "default/alerts/0/in\n  kind is <other>", "pairs": []}
    broker = Mock()
    broker.request.return_value.body = answer
    explained = ImportPort(job(broker=lambda: broker), "in").explain("default/feed/0/out")
    broker.request.assert_called_once_with(
        "GET",
        "/explain",
        query={"import": "default/alerts/0/in", "limit": "20", "export": "default/feed/0/out"},
    )
    assert repr(explained) == answer["text"]
    assert explained == answer == Explanation.from_json(answer)
    assert "kind is &lt;other&gt;" in explained._repr_html_()


def test_a_live_view_follows_the_status_until_the_job_stops() -> None:
    rows, stopped, reads = [100], threading.Event(), threading.Semaphore(0)

    def fetch() -> PeStatus:
        reads.release()
        return status(rows[0])

    view = LiveView(fetch, 0.01, stopped)
    (export,) = view.state["exports"]
    assert (export["published"], export["rowsPerSecond"], export["held"]) == (100, 0.0, 5)
    assert export["readers"][0]["lagRows"] == 7
    assert view.state["imports"][0]["lost"] == 3
    assert view.state["away"] == {"grpc+tcp://h:1": "closed"}
    rows[0] = 200
    until(lambda: view.state["exports"][0]["published"] == 200, 10.0, "the new count")
    stopped.set()
    until(lambda: not _threads("live view"), 10.0, "end of the thread")
    while reads.acquire(blocking=False):
        pass
    view.update()
    assert reads.acquire(blocking=False)


def test_a_live_view_computes_the_rate_between_two_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 12.0])
    monkeypatch.setattr("pe_agent.job.notebook.live_view.time.monotonic", lambda: next(clock))
    counts = iter([status(100), status(400)])
    view = LiveView(lambda: next(counts), 3600.0, threading.Event())
    view.update()
    assert view.state["exports"][0]["rowsPerSecond"] == 150.0
    view.close()


def test_an_agent_that_does_not_answer_is_shown_beside_the_last_numbers() -> None:
    answers: list[Any] = [status(100), StreambrokerError("connection refused")]

    def fetch() -> PeStatus:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]

    view = LiveView(fetch, 3600.0, threading.Event())
    view.update()
    assert view.state["error"] == "connection refused"
    assert view.state["exports"][0]["published"] == 100
    view.close()


def test_a_missing_package_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pe_agent.job.notebook.live_view", None)
    pe = PE(Mock(), PeKey("default", "alerts", 0), Mock(beat_callbacks=[]), None, {})
    with pytest.raises(ArgumentError, match="pip install anywidget"):
        pe.live_view()


def _threads(name: str) -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == name]
