"""What the command line reads, and how it shows figures, events, forecasts and failures."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from streambroker_client import events as cli_events
from streambroker_client.errors import broker_error
from streambroker_client.events import Event, follow_events, read_events
from streambroker_core.errors import StreambrokerError, pointer_lines
from streambroker_core.wire.reports.route_states import route_state
from streambroker_operator.cli.commands import get, top
from streambroker_operator.cli.commands.diagnose import read_pair
from streambroker_operator.cli.io import errors, options, terminal
from streambroker_operator.cli.io.targets import Target, item_names, read_targets
from streambroker_operator.cli.output.changes import colour_forecast
from streambroker_operator.cli.output.table import Table, render_items
from support.brokers.commands import ROUTE

NOON = datetime(2026, 1, 2, 12, 0, 0, tzinfo=UTC)
QUIET = {
    **{name: 0 if value is None else value for name, value in ROUTE.items()},
    "waitingSince": None,
    "alive": True,
    "ended": False,
    "readToEnd": False,
    "storage": None,
    "age": 1,
}
UPLOADS: dict[str, Any] = {"bytes": 5 << 20, "seconds": 75, "failing": False, "superseded": False}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


# ---- words -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "targets"),
    [
        ([], [Target(kinds=("exports", "imports", "pes", "routes"))]),
        (["EX"], [Target(kinds=("exports",))]),
        (["im,ex,im"], [Target(kinds=("imports", "exports"))]),
        (["pe", "feed/0"], [Target(kinds=("pes",), name="feed/0")]),
        (["ex", "a", "b"], [Target(kinds=("exports",), name=n) for n in ("a", "b")]),
        (["ex", "export/a"], [Target(kinds=("exports",), name="a")]),
        (["import/0/trades"], [Target(kinds=("exports", "imports"), name="import/0/trades")]),
        (["export", "import/0/trades"], [Target(kinds=("exports",), name="import/0/trades")]),
        (["export/import/0/trades"], [Target(kinds=("exports",), name="import/0/trades")]),
        (["lab/feed/0/p"], [Target(kinds=("exports", "imports"), name="lab/feed/0/p")]),
        (["im", "feed", "0", "p"], [Target(kinds=("imports",), name="feed/0/p")]),
    ],
)
def test_words_name_resources(words: list[str], targets: list[Target]) -> None:
    assert read_targets(words) == targets


@pytest.mark.parametrize("words", [["export", "feed", "0"], ["exprot"], ["a/b"], ["x/y/z/w/v"]])
def test_words_that_name_nothing_are_wrong_usage(words: list[str]) -> None:
    with pytest.raises(errors.UsageError):
        read_targets(words)


@pytest.mark.parametrize(
    ("words", "pair"),
    [
        (["a"], {"imports": "a"}),
        (["a", "b"], {"imports": "a", "exports": "b"}),
        (["export", "b"], {"exports": "b"}),
        (["export", "b", "a"], {"exports": "b", "imports": "a"}),
        (["ex/b", "im/a"], {"exports": "ex/b", "imports": "im/a"}),
        (["a", "0", "p", "b"], {"imports": "a/0/p", "exports": "b"}),
        (["export/0/p"], {"imports": "export/0/p"}),
    ],
)
def test_words_name_what_is_explained(words: list[str], pair: dict[str, str]) -> None:
    assert read_pair(words) == pair


def test_a_route_is_named_by_its_ends_with_and_without_namespace() -> None:
    assert item_names("routes", ROUTE) == [
        "default/feed/0/trades:default/alerts/0/trades",
        "default/feed/0/trades",
        "default/alerts/0/trades",
        "feed/0/trades",
        "alerts/0/trades",
    ]


# ---- failures --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("Usage", 2),
        ("UrlInvalid", 2),
        ("BrokerUnavailable", 4),
        ("NotSynced", 4),
        ("UnknownPort", 1),
        ("NotYours", 1),
    ],
)
def test_a_failure_has_the_exit_code_of_its_kind(code: str, exit_code: int) -> None:
    assert errors.exit_code(broker_error(0, code, "x")) == exit_code


def test_a_remedy_for_requests_is_reported_as_one_for_commands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    errors.print_error(
        broker_error(403, "NotYours", "It reads lab: choose it with ?namespace=, or go.")
    )

    assert "choose it with -n, or go." in capsys.readouterr().err


def test_a_failure_is_one_line_whatever_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    errors.print_error(broker_error(422, "Bad", "two\nlines and \x1b[31mcolour."))

    assert capsys.readouterr().err == "streambroker: Bad: two lines and �[31mcolour.\n"


def test_a_failure_that_users_can_mend_says_how(capsys: pytest.CaptureFixture[str]) -> None:
    errors.print_error(broker_error(401, "TokenMissing", "This broker wants a token."))

    assert "--token-file, or set STREAMBROKER_TOKEN" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "position", "lines"),
    [
        ("a = 1", {"line": 1, "column": 3}, ["  a = 1", "    ^"]),
        ("a &&\n\tb = 1", {"line": 2, "column": 4}, ["   b = 1", "     ^"]),
        ("a ==", {"line": 1, "column": 5}, ["  a ==", "      ^"]),
        ("a", {"line": 2, "column": 1}, []),
        ("a", {"line": "1", "column": 1}, []),
        ("a", None, []),
        (None, {"line": 1, "column": 1}, []),
    ],
)
def test_a_caret_stands_under_the_place(text: Any, position: Any, lines: list[str]) -> None:
    assert pointer_lines(text, position) == lines


def test_only_the_expression_that_a_refusal_is_about_is_shown() -> None:
    error = broker_error(422, "FilterInvalid", "x", position={"line": 1, "column": 1})
    about = errors.with_expression(error, {"subscription": "s", "filter": "f"})
    other = errors.with_expression(broker_error(409, "PortTaken", "x"), {"filter": "f"})

    assert about.problem["text"] == "f"
    assert "text" not in other.problem


def test_what_is_far_from_everything_is_not_guessed() -> None:
    assert errors.did_you_mean("exprots", ["exports", "imports"]) == " Did you mean 'exports'?"
    assert errors.did_you_mean("zebra", ["exports", "imports"]) == ""


@pytest.mark.parametrize("text", ["two words", "new\nline", "naïve"])
def test_a_token_that_cannot_be_sent_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMBROKER_TOKEN", text)
    with pytest.raises(errors.UsageError, match="STREAMBROKER_TOKEN"):
        options._read_token(None)


# ---- text ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0s"), (59.9, "59s"), (60, "1m"), (7_199, "1h"), (86_400 * 3, "3d")],
)
def test_a_time_is_shown_in_its_largest_unit(seconds: float, text: str) -> None:
    assert terminal.format_duration(seconds) == text


@pytest.mark.parametrize(
    ("moment", "text"),
    [("2026-01-02T11:58:00.123456Z", "1m"), ("yesterday", "-"), (None, "-"), ("", "-")],
)
def test_an_age_is_counted_from_a_moment(moment: str | None, text: str) -> None:
    assert terminal.format_age(moment, NOON) == text


def test_colour_is_for_terminals_and_only_without_no_color(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    seen = terminal.paint("x", "red", Terminal())
    piped = terminal.paint("x", "red", io.StringIO())
    monkeypatch.setenv("TERM", "dumb")
    dumb = terminal.paint("x", "red", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    unwanted = terminal.paint("x", "red", Terminal())

    assert seen == "\x1b[31mx\x1b[0m"
    assert [piped, dumb, unwanted] == ["x", "x", "x"]


def test_what_others_wrote_cannot_steer_the_terminal() -> None:
    item = {
        "metadata": {"name": "n", "namespace": "default"},
        "spec": {"job": "j", "pe": 0, "port": "p", "subscription": 'a == "\x1b]0;title\x07"'},
    }

    assert "\x1b" not in render_items("imports", [item], "table")


def test_what_a_forecast_quotes_cannot_steer_the_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdout", Terminal())
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    reported = "  ! import x: FilterInvalid: found `\x1b]0;title\x07`\n0 added"
    line = colour_forecast(reported).splitlines()[0]

    assert line == "\x1b[31m  ! import x: FilterInvalid: found `�]0;title�`\x1b[0m"


def test_a_table_keeps_at_least_the_widths_it_is_given() -> None:
    table = Table[tuple[str, str]](
        {"A": lambda row: row[0], "B": lambda row: row[1]}, least={"A": 4, "B": 1}
    )

    assert table.text([]) == "A     B\n"


def test_names_are_addresses() -> None:
    item = {"namespace": "lab", "job": "feed", "pe": 3, "location": None}

    assert render_items("pes", [item], "name") == "pe/feed/3\n"
    assert render_items("exports", [], "name") == ""


# ---- forecasts -------------------------------------------------------------------------------


def test_the_lines_of_a_forecast_have_the_colours_of_their_signs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdout", Terminal())
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    lines = colour_forecast(
        "  + a\n  - b\n  ~ c\n  ! d\n  ? e\n1 added", "nothing was applied"
    ).splitlines()

    assert [line[2:4] for line in lines] == ["32", "31", "33", "31", "33", "ad"]
    assert lines[-1] == "1 added; nothing was applied"


# ---- figures ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("figures", "state"),
    [
        ({"age": None}, "unknown"),
        ({"age": 91, "waiting": True}, "stale"),
        ({"waiting": True, "alive": False}, "waits"),
        ({"alive": False, "rowsPerSecond": 5}, "away"),
        ({"alive": False, "lagEpochs": 1, "ended": True, "readToEnd": False}, "away"),
        ({"alive": False, "ended": True, "readToEnd": True}, "ended"),
        ({"ended": True, "readToEnd": True}, "ended"),
        ({"lagEpochs": 1, "ended": True, "readToEnd": False}, "flows"),
        ({"age": 91, "readToEnd": True}, "stale"),
        ({"lagEpochs": 1, "stalledSeconds": 90}, "stalled"),
        ({"lagEpochs": 1, "stalledSeconds": 90, "bytesPerSecond": None}, "stalled"),
        ({"lagEpochs": 1, "stalledSeconds": 89}, "flows"),
        ({"lagEpochs": 1, "stalledSeconds": 90, "bytesPerSecond": 1}, "flows"),
        ({"lagEpochs": 1, "stalledSeconds": 90, "waiting": True}, "waits"),
        ({"lagEpochs": 1, "stalledSeconds": 90, "alive": False}, "away"),
        ({"lagEpochs": 1, "stalledSeconds": None}, "flows"),
        ({"rowsPerSecond": 5}, "flows"),
        ({"lagEpochs": 1}, "flows"),
        ({"rowsPerSecond": None}, "idle"),
        ({}, "idle"),
    ],
)
def test_a_route_is_in_one_state(figures: dict[str, Any], state: str) -> None:
    assert route_state({**QUIET, **figures}) == state


@pytest.mark.parametrize(
    ("figures", "cells"),
    [
        (
            {},
            ["0%", "0", "0", "0", "0", "0", "0s", "0s", "0s", "0", "0", "0", "-", "-", "no", "1s"],
        ),
        (
            {
                "rowsPerSecond": 1.26,
                "bytesPerSecond": 2_048,
                "lagEpochs": 12_345,
                "lagRows": 10**7,
                "lagBytes": 1_536,
                "lagSeconds": 61,
                "congestion": 42,
                "blockedSeconds": 7,
                "throttledSeconds": 90,
                "filteredRows": 1_000,
                "droppedRows": 10**6,
                "lostRows": 3,
                "storage": UPLOADS,
            },
            [
                *("42%", "1.3", "2.0Ki", "12,345", "10,000,000", "1.5Ki", "1m", "7s"),
                *("1m", "1,000", "1,000,000", "3", "1m", "5.0Mi", "no", "1s"),
            ],
        ),
        (
            {"rowsPerSecond": 1234.5, "lagBytes": 5 << 30, "age": 75.0, "ended": True},
            [
                *("0%", "1,234", "0", "0", "0", "5.0Gi", "0s", "0s", "0s", "0", "0", "0"),
                *("-", "-", "yes", "1m"),
            ],
        ),
    ],
)
def test_figures_are_shown_short(figures: dict[str, Any], cells: list[str]) -> None:
    row = [cell({**QUIET, **figures}) for cell in top.COLUMNS.values()]
    assert [row[1], *row[5:-1]] == cells
    assert [text for cell in top.COLUMNS.values() if (text := cell(ROUTE)) != "-"] == [
        *("unknown", ROUTE["export"], ROUTE["import"], "wait"),
    ]


def test_a_route_of_a_broker_that_does_not_say_it_has_no_end() -> None:
    older = {k: v for k, v in QUIET.items() if k not in ("ended", "readToEnd", "storage")}

    assert route_state(older) == "idle"
    assert [top.COLUMNS[name](older) for name in ("ENDED", "STORE", "TO STORE")] == ["-"] * 3


@pytest.mark.parametrize(
    ("uploads", "text"),
    [
        ({}, "1m"),
        ({"failing": True}, "fails"),
        ({"superseded": True}, "fails"),
    ],
)
def test_how_far_uploads_are_is_shown_in_a_word(uploads: dict[str, Any], text: str) -> None:
    assert top.COLUMNS["STORE"]({**QUIET, "storage": {**UPLOADS, **uploads}}) == text


def test_uploads_have_columns_where_an_export_has_object_storage() -> None:
    routes = [QUIET, {**QUIET, "storage": UPLOADS}]
    for namespace, shown in ((None, {"STORE", "TO STORE"}), ("default", {"STORE"})):
        tables = (top.route_lines(some, namespace=namespace) for some in (routes[:1], routes))
        without, with_uploads = (set(re.split(" {2,}", lines[0])) for lines in tables)
        assert with_uploads - without == shown


def test_who_waits_is_shown_on_a_narrow_terminal_with_long_names() -> None:
    route = {**QUIET, "export": "e" * 60, "import": "i" * 60, "waiting": True}

    assert "waits" in top.render_screen(top.TopSnapshot([route]), "http://b", "", 80, 24, NOON)


def test_the_table_that_is_printed_once_fits_120_columns() -> None:
    uploads = {**UPLOADS, "failing": True}
    figures: dict[str, Any] = {
        "rowsPerSecond": 850_000,
        "lagRows": 1_500_000,
        "droppedRows": 12_000,
    }
    figures |= {"storage": uploads}
    names = {"export": "default/airports/0/departures", "import": "default/delays/0/departures"}
    lines = top.route_lines([{**QUIET, **figures, **names}], namespace="default")

    assert max(map(len, lines)) <= 120
    assert "  airports/0/departures  delays/0/departures  " in lines[1]
    assert len(top.route_lines([{**QUIET, **figures, **names}])[0]) > 150


def test_routes_that_somebody_waits_for_come_first() -> None:
    states: list[dict[str, Any]] = [
        {**QUIET, "import": "idle"},
        {**QUIET, "import": "slow", "waiting": True, "lagBytes": 5},
        {**ROUTE, "import": "unknown"},
        {**QUIET, "import": "slower", "waiting": True, "lagBytes": 50},
        {**QUIET, "import": "away", "alive": False},
        {**QUIET, "import": "ended", "alive": False, "readToEnd": True},
    ]
    ordered = sorted(states, key=top._SORT_KEYS["state"])
    by_lag = sorted(states, key=top._SORT_KEYS["lag"])

    assert [r["import"] for r in ordered] == ["slower", "slow", "away", "idle", "ended", "unknown"]
    assert [r["import"] for r in by_lag][:2] == ["slower", "slow"]


def test_a_picture_is_no_larger_than_the_terminal() -> None:
    routes = [{**QUIET, "import": f"default/alerts/0/p{n}"} for n in range(50)]
    picture = top.render_screen(
        top.TopSnapshot(routes), "http://b", "note " * 30, 60, 12, NOON
    ).split("\n")
    small = top.render_screen(top.TopSnapshot(routes), "http://b", "", 10, 2, NOON).split("\n")

    assert len(picture) == 11
    assert max(map(len, picture)) == 60
    assert picture[-1] == "… 43 more"
    assert len(small) == 1
    assert top.render_screen(top.TopSnapshot([]), "http://b", "", 80, 24, NOON).endswith(
        "\nno routes"
    )


# ---- events ----------------------------------------------------------------------------------


def test_an_event_stream_is_read_as_the_standard_says() -> None:
    lines = [
        b"id: s.4\n",
        b"retry: 1000\n",
        b"\n",
        b": still here\n",
        b"\n",
        b"id: s.5\r\n",
        b"event: export\r\n",
        b'data: {"type":"ADDED",\r\n',
        b'data: "object":{"a":1}}\r\n',
        b"\r\n",
        b"event: pe\n",
        b"data: not json\n",
        b"\n",
        b"event: cut off\n",
    ]

    assert list(read_events(lines)) == [
        Event(name="", id="s.4"),
        Event(name="export", data={"type": "ADDED", "object": {"a": 1}}, id="s.5"),
        Event(name="pe"),
    ]


def resource(uid: str, level: int = 0) -> dict[str, Any]:
    return {"metadata": {"uid": uid}, "spec": {"level": level}}


def test_a_broker_that_refuses_to_be_followed_is_not_asked_again() -> None:
    class Refusing:
        def open(self, *_: object, **__: object) -> Any:
            raise broker_error(403, "NotYours", "Not yours.")

    caller: Any = Refusing()
    with pytest.raises(StreambrokerError):
        next(follow_events(caller, "lab", print))


def test_a_stream_that_breaks_before_its_first_id_begins_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Breaking:
        def open(self, *_: object, **__: object) -> Any:
            return contextlib.nullcontext(breaking(b""))

    monkeypatch.setattr(cli_events, "RETRY_S", 0.0)
    caller: Any = Breaking()
    events = follow_events(caller, "default", print)

    assert [next(events).name for _ in range(2)] == ["reset", "reset"]


class Flaky:
    """A broker that is away for a while; each answer is a stream of one event that breaks."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def open(self, *_: object, last: str, **__: object) -> Any:
        self.asked.append(last)
        if len(self.asked) in (2, 3):
            raise broker_error(0, "BrokerUnavailable", "No broker answers.")
        number = len(self.asked)
        return contextlib.nullcontext(breaking(f"id: s.{number}\nevent: pe\n\n".encode()))


def breaking(text: bytes) -> Iterator[bytes]:
    yield from text.splitlines(keepends=True)
    raise ConnectionResetError("gone")


def test_a_broker_that_is_away_is_waited_for_and_asked_for_what_was_missed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli_events, "RETRY_S", 0.0)
    flaky = Flaky()
    caller: Any = flaky
    events = follow_events(caller, "default", get._report_away)
    found = [next(events) for _ in range(3)]

    assert [event.name for event in found] == ["reset", "pe", "pe"]
    assert flaky.asked == ["", "s.1", "s.1", "s.1"]
    assert capsys.readouterr().err == (
        "streambroker: BrokerUnavailable: No broker answers. Trying again.\n"
    )
