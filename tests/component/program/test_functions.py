"""The original's functions: each code of each, over a real broker and a real agent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

import pytest

from pe_agent import functions
from pe_agent.functions import Known, Outcome
from pe_agent.job import port_client as broker_calls
from pe_agent.job.ports import Change
from support.brokers.lossy_proxy import Cutter
from support.processes.ports import free_port
from support.processes.programs import SECONDS, World

NAMES = [{"applicationName": "market.Feed", "streamId": "nyse"}]
PROPERTIES = {"kind": "alert", "level": 2}
SOON = 9.0
"""Seconds, on a busy machine; less than what a lost answer is waited for."""


@dataclass(frozen=True)
class Setter:
    """One setting function with what it needs.

    Attributes:
        spec: of a port that it suits.
        good: a value it takes, and how the getter shows that.
        bad: values that it refuses before anybody is asked.
        part: of the port's address, where the value is.
    """

    kind: str
    call: Callable[..., Outcome]
    get: Callable[..., Known[Any]]
    spec: dict[str, Any]
    good: tuple[Any, Any]
    other: Any
    bad: tuple[Any, ...]
    part: str
    body: Callable[[Any], Any]


SETTERS = {
    "subscription": Setter(
        "import",
        functions.set_import_subscription,
        functions.get_import_subscription,
        {"subscription": 'kind == "trade"', "filter": "price > 1.0"},
        ('kind == "quote"', 'kind == "quote"'),
        'kind == "other"',
        ("kind ==", "a = 5", 5, None),
        "subscription",
        lambda value: {"subscription": value},
    ),
    "filter": Setter(
        "import",
        functions.set_import_filter,
        functions.get_import_filter,
        {"subscription": 'kind == "trade"', "filter": "price > 1.0"},
        ("price>20.0", "price > 20.0"),
        "price > 30.0",
        ("price >", "price > 1 &&", 5, object()),
        "filter",
        lambda value: {"filter": value},
    ),
    "streams": Setter(
        "import",
        functions.set_import_streams,
        functions.get_import_streams,
        {"streams": [{"streamId": "old"}], "filter": "price > 1.0"},
        (NAMES, NAMES),
        [{"streamId": "other"}],
        ([{"streamId": 5}], [{}], [{"streamId": "x", "more": "y"}], 5, None, [5]),
        "streams",
        lambda value: {"streams": value},
    ),
    "properties": Setter(
        "export",
        functions.set_export_properties,
        functions.get_export_properties,
        {"properties": {"kind": "old"}},
        ([("kind", "alert", "rstring"), ("level", "2", "int64")], PROPERTIES),
        {"kind": "other"},
        ([("a", "x", "int64")], {"a b": 1}, {"a": [1, "x"]}, 5, None),
        "properties",
        lambda value: value,
    ),
}
every_setter = pytest.mark.parametrize("setter", SETTERS.values(), ids=SETTERS)


def shown(known: Known[Any]) -> tuple[Any, int, bool]:
    return known.value, known.code, known.stale


def followed(own: World) -> dict[str, str]:
    """Declare a port for each setter; return their names once the agent follows them."""
    return {
        name: own.followed(setter.kind, own.declare(setter.kind, **setter.spec))
        for name, setter in SETTERS.items()
    }


# ---- setters: 0, 1, 2 --------------------------------------------------------------------------


@every_setter
def test_0_the_change_is_accepted_durable_and_shown(world: World, setter: Setter) -> None:
    port = world.declare(setter.kind, **setter.spec)
    outcome = setter.call(world.pe, port, setter.good[0])

    assert outcome == 0, outcome.message
    assert (outcome.accepted, outcome.generation, outcome.reason) == (True, 2, "")
    assert set(outcome.routes) == {"kept", "added", "cut"}
    assert world.generation(f"{setter.kind}/{port}") == 2
    assert shown(setter.get(world.pe, port)) == (setter.good[1], 0, False)


@every_setter
def test_0_a_change_to_what_is_already_so_changes_nothing(world: World, setter: Setter) -> None:
    port = world.declare(setter.kind, **setter.spec)
    generations = [setter.call(world.pe, port, setter.good[0]).generation for _ in range(2)]
    assert generations == [2, 2]


@every_setter
def test_1_no_such_port(world: World, setter: Setter) -> None:
    begun = time.monotonic()
    for port in ("nobody", "", "a/b", "../x", "x?y", cast(Any, None), cast(Any, 5)):
        outcome = setter.call(world.pe, port, setter.good[0])
        assert (outcome, outcome.accepted, outcome.generation) == (1, False, None), port
        assert outcome.message
        assert shown(setter.get(world.pe, port)) == (None, 1, False)
    assert time.monotonic() - begun < SOON


@every_setter
def test_1_a_port_of_the_other_direction(world: World, setter: Setter) -> None:
    other = "export" if setter.kind == "import" else "import"
    spec: dict[str, Any] = {"properties": {}} if other == "export" else {"subscription": "a == 1"}
    port = world.declare(other, **spec)

    assert setter.call(world.pe, port, setter.good[0]) == 1
    assert shown(setter.get(world.pe, port)) == (None, 1, False)
    assert world.generation(f"{other}/{port}") == 1


def test_1_an_import_by_name_has_no_subscription_and_one_by_subscription_no_names(
    world: World,
) -> None:
    by_name = world.declare("import", streams=NAMES)
    by_subscription = world.declare("import", subscription="a == 1")
    outcome = functions.set_import_subscription(world.pe, by_name, "a == 2")

    assert (outcome, outcome.reason) == (1, "WrongKind")
    assert shown(functions.get_import_subscription(world.pe, by_name)) == (None, 1, False)
    assert shown(functions.get_import_streams(world.pe, by_subscription)) == (None, 1, False)
    assert shown(functions.get_import_streams(world.pe, by_name)) == (NAMES, 0, False)


def test_1_an_export_by_name_has_no_properties(world: World) -> None:
    port = world.declare("export", streamId="nyse-trades")
    outcome = functions.set_export_properties(world.pe, port, PROPERTIES)

    assert (outcome, outcome.reason) == (1, "WrongKind")
    assert shown(functions.get_export_properties(world.pe, port)) == (None, 1, False)


@every_setter
def test_2_what_cannot_be_read_changes_nothing(world: World, setter: Setter) -> None:
    port = world.declare(setter.kind, **setter.spec)
    for value in setter.bad:
        outcome = setter.call(world.pe, port, value)
        assert (outcome, outcome.accepted) == (2, False), (value, outcome.message)
        assert outcome.message, value
    assert setter.call(world.pe, port, setter.good[0], wait="yes") == 2
    assert setter.call(world.pe, port, setter.bad[0], timeout=10**400) == 2
    for timeout in (cast(Any, "soon"), float("nan"), 0, -1.0):
        assert setter.call(world.pe, port, setter.good[0], timeout=timeout) == 2

    assert world.generation(f"{setter.kind}/{port}") == 1


def test_2_a_filter_that_fits_no_connected_export(world: World) -> None:
    world.declare("export", properties={"only": 1}, schema=[{"name": "n", "type": "bigint"}])
    port = world.declare("import", subscription="only == 1")
    outcome = functions.set_import_filter(world.pe, port, "nobody > 1")

    assert (outcome, outcome.reason) == (2, "FilterInvalid")
    assert "nobody" in outcome.message
    assert shown(functions.get_import_filter(world.pe, port)) == ("", 0, False)


def test_2_more_properties_than_an_export_may_have(world: World) -> None:
    port = world.declare("export", properties={"kind": "old"})
    many = {f"p{n}": n for n in range(2000)}
    outcome = functions.set_export_properties(world.pe, port, many)

    assert (outcome, outcome.reason) == (2, "PropertyInvalid")
    assert shown(functions.get_export_properties(world.pe, port)) == ({"kind": "old"}, 0, False)


def test_nothing_is_shown_as_empty(world: World) -> None:
    port = world.declare("import", onCongestion="drop")
    assert shown(functions.get_import_subscription(world.pe, port)) == ("", 0, False)
    assert shown(functions.get_import_filter(world.pe, port)) == ("", 0, False)
    assert shown(functions.get_import_streams(world.pe, port)) == ([], 0, False)
    export = world.declare("export", properties={})
    assert shown(functions.get_export_properties(world.pe, export)) == ({}, 0, False)


def test_setting_a_subscription_keeps_the_filter_and_the_scope(world: World) -> None:
    port = world.declare("import", **SETTERS["filter"].spec, applicationScope="Own")
    assert functions.set_import_subscription(world.pe, port, "a == 1") == 0
    spec = world.ask("GET", f"import/{port}").body["spec"]

    assert (spec["filter"], spec["applicationScope"]) == ("price > 1.0", "Own")


def test_the_answer_lists_routes_kept_added_and_cut_with_the_reason(world: World) -> None:
    first = world.declare("export", properties={"route": 1, "all": 1})
    second = world.declare("export", properties={"route": 2, "all": 1})
    port = world.declare("import", subscription="route == 1")
    to_other = functions.set_import_subscription(world.pe, port, "route == 2")
    to_both = functions.set_import_subscription(world.pe, port, "all == 1")

    def ends(outcome: Outcome, word: str) -> list[str]:
        return sorted(r["export"].rpartition("/")[2] for r in outcome.routes[word])

    assert [ends(to_other, w) for w in ("kept", "added", "cut")] == [[], [second], [first]]
    assert to_other.routes["cut"][0]["reason"] == "SubscriptionFalse"
    assert [ends(to_both, w) for w in ("kept", "added", "cut")] == [[second], [first], []]


@pytest.mark.filterwarnings("ignore:PE.* is deprecated:DeprecationWarning")
def test_the_functions_are_deprecated_methods_of_the_pe(world: World) -> None:
    port = world.declare("import", subscription="a == 1")
    assert world.pe.set_import_filter(port, "price > 1.0") == 0
    assert world.pe.get_import_filter(port).value == "price > 1.0"


# ---- setters: 3 --------------------------------------------------------------------------------


def test_3_the_broker_is_away_and_the_last_known_value_is_stale(own: World) -> None:
    ports = followed(own)
    for name, setter in SETTERS.items():
        assert setter.call(own.pe, ports[name], setter.good[0]) == 0
    own.broker.kill()
    for name, setter in SETTERS.items():
        begun = time.monotonic()
        outcome = setter.call(own.pe, ports[name], setter.other)

        assert (outcome, outcome.accepted, outcome.reason) == (3, False, "BrokerUnavailable"), name
        assert shown(setter.get(own.pe, ports[name])) == (setter.good[1], 3, True), name
        assert time.monotonic() - begun < SOON

    own.broker = own.broker.restart()
    for name, setter in SETTERS.items():
        assert shown(setter.get(own.pe, ports[name])) == (setter.good[1], 0, False), name
        assert own.generation(f"{setter.kind}/{ports[name]}") == 2


def test_3_neither_broker_nor_agent_answers_and_the_job_goes_on(own: World) -> None:
    ports = followed(own)
    first = {name: setter.get(own.pe, ports[name]) for name, setter in SETTERS.items()}
    own.broker.kill()
    own.process.stop(end_agent=True)

    for name, setter in SETTERS.items():
        assert setter.call(own.pe, ports[name], setter.good[0]) == 3, name
        assert shown(setter.get(own.pe, ports[name])) == (first[name].value, 3, True), name
        unknown = setter.get(own.pe, "never-heard-of")
        assert shown(unknown) == (None, 3, True)
        assert unknown.message


@every_setter
def test_3_a_broker_that_never_was_there(world: World, setter: Setter) -> None:
    for url in (f"http://127.0.0.1:{free_port()}", None):
        pe = world.pe_of(url)
        outcome = setter.call(pe, "never-declared", setter.good[0])
        assert (outcome, outcome.accepted) == (3, False)
        known = setter.get(pe, "never-declared")
        assert shown(known) == (None, 3, True)
        assert known.message


@every_setter
def test_3_a_broker_that_hangs_does_not_hold_a_getter_for_long(
    world: World, setter: Setter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_calls, "READ_SECONDS", 0.3)
    port = world.followed(setter.kind, world.declare(setter.kind, **setter.spec))
    value = setter.get(world.pe, port).value
    hung = Cutter(world.broker.url)
    hung.hung = True
    begun = time.monotonic()
    known = setter.get(world.pe_of(hung.url), port)
    took = time.monotonic() - begun
    hung.close()

    assert shown(known) == (value, 3, True)
    assert took < SOON


@every_setter
def test_3_a_broker_that_hangs_holds_a_setter_no_longer_than_its_timeout(
    world: World, setter: Setter
) -> None:
    port = world.declare(setter.kind, **setter.spec)
    hung = Cutter(world.broker.url)
    hung.hung = True
    begun = time.monotonic()
    outcome = setter.call(world.pe_of(hung.url), port, setter.good[0], timeout=0.5)
    took = time.monotonic() - begun
    hung.close()

    assert (outcome, outcome.accepted) == (3, False)
    assert "it is not known whether the change was made" in outcome.message
    assert took < SOON


@every_setter
def test_3_a_change_whose_answer_never_comes_is_not_known_to_be_done(
    world: World, setter: Setter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_calls, "RETRY_LOST_SECONDS", 0.5)
    port = world.declare(setter.kind, **setter.spec)
    cutter = Cutter(world.broker.url)
    cutter.cuts = 1000
    outcome = setter.call(world.pe_of(cutter.url), port, setter.good[0])
    cutter.close()

    assert (outcome, outcome.accepted) == (3, False)
    assert "it is not known whether the change was made" in outcome.message
    assert cutter.lost >= 2
    assert shown(setter.get(world.pe, port)) == (setter.good[1], 0, False)
    assert world.generation(f"{setter.kind}/{port}") == 2


@every_setter
@pytest.mark.parametrize("status", [200, 404, 500, 502])
def test_3_what_answers_is_not_the_broker(world: World, setter: Setter, status: int) -> None:
    class Stranger(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(status)
            self.send_header("Content-Length", "5")
            self.end_headers()
            self.wfile.write(b"hello")

        do_GET = do_PUT = answer  # noqa: N815 - the names of the server

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Stranger) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        pe = world.pe_of(f"http://127.0.0.1:{server.server_port}")
        outcome, known = setter.call(pe, "any", setter.good[0]), setter.get(pe, "any")
        server.shutdown()

    assert (outcome, outcome.accepted) == (3, False)
    assert outcome.message
    assert shown(known) == (None, 3, True)


# ---- the answer is lost, the change is made ----------------------------------------------------


@every_setter
def test_a_change_counts_once_although_its_answer_was_lost(world: World, setter: Setter) -> None:
    port = world.declare(setter.kind, **setter.spec)
    cutter = Cutter(world.broker.url)
    cutter.cuts = 2
    outcome = setter.call(world.pe_of(cutter.url), port, setter.good[0])
    cutter.close()

    assert (outcome, outcome.generation, outcome.accepted) == (0, 2, True)
    assert cutter.lost == 2
    assert world.generation(f"{setter.kind}/{port}") == 2
    assert shown(setter.get(world.pe, port)) == (setter.good[1], 0, False)


@every_setter
def test_the_repetition_of_a_lost_change_does_not_undo_what_somebody_did_meanwhile(
    world: World, setter: Setter
) -> None:
    port = world.declare(setter.kind, **setter.spec)
    cutter = Cutter(world.broker.url)
    cutter.cuts = 1
    cutter.on_cut = lambda: world.ask(
        "PUT", f"{setter.kind}/{port}/{setter.part}", setter.body(setter.other)
    )
    outcome = setter.call(world.pe_of(cutter.url), port, setter.good[0])
    cutter.close()

    assert (outcome, outcome.generation) == (0, 2)
    assert world.generation(f"{setter.kind}/{port}") == 3
    assert setter.get(world.pe, port).value == setter.other


def test_a_lost_answer_is_given_again_by_a_broker_that_was_killed(own: World) -> None:
    port = own.declare("import", subscription="a == 1")
    cutter = Cutter(own.broker.url)
    cutter.cuts = 1

    def kill_and_restart() -> None:
        own.broker.kill()
        own.broker = own.broker.restart()

    cutter.on_cut = kill_and_restart
    outcome = functions.set_import_filter(own.pe_of(cutter.url), port, "price > 5.0")
    cutter.close()

    assert (outcome, outcome.generation) == (0, 2)
    assert own.generation(f"import/{port}") == 2


def test_each_change_has_a_name_of_its_own_which_its_repetitions_share(world: World) -> None:
    port = world.declare("import", subscription="a == 1")
    cutter = Cutter(world.broker.url)
    pe = world.pe_of(cutter.url)
    cutter.cuts = 1
    functions.set_import_filter(pe, port, "price > 1.0")
    functions.set_import_filter(pe, port, "price > 1.0")
    functions.get_import_filter(pe, port)
    cutter.close()
    ids = [
        next((x for x in r.split(b"\r\n") if x.lower().startswith(b"request-id:")), None)
        for r in cutter.requests
    ]

    assert ids[0] == ids[1]
    assert ids[0] is not None
    assert ids[2] not in (None, ids[0])
    assert ids[3] is None


def test_a_change_that_never_reached_the_broker_is_not_tried_for_long(world: World) -> None:
    begun = time.monotonic()
    outcome = functions.set_import_filter(
        world.pe_of(f"http://127.0.0.1:{free_port()}"), "any", "price > 1.0"
    )
    assert outcome == 3
    assert time.monotonic() - begun < SOON


def test_what_the_job_declared_is_waited_for(own: World) -> None:
    own.broker.kill()
    spec = {"subscription": "a == 1"}
    own.process.client.call("declare", kind="import", port="late", spec=spec, redeclare=False)
    own.broker = own.broker.restart()
    outcome = functions.set_import_filter(own.pe, "late", "price > 1.0")

    assert (outcome, outcome.generation) == (0, 2), outcome.message


# ---- wait=programmed ---------------------------------------------------------------------------


@every_setter
def test_programmed_is_when_the_agent_follows(world: World, setter: Setter) -> None:
    port = world.followed(setter.kind, world.declare(setter.kind, **setter.spec))
    outcome = setter.call(world.pe, port, setter.good[0], wait="programmed", timeout=SECONDS)
    known = world.pe.view_cache.port_in_view(setter.kind, port)

    assert outcome == 0
    assert known is not None
    assert known["generation"] == outcome.generation == 2


def test_3_an_agent_that_answers_what_nobody_understands_does_not_raise_into_the_job(
    own: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = followed(own)

    def of_another_release(_: Change) -> bool:
        raise KeyError("readers")

    monkeypatch.setattr(Change, "applied", of_another_release)
    for name, setter in SETTERS.items():
        outcome = setter.call(own.pe, ports[name], setter.good[0], wait="programmed", timeout=1.0)

        assert (outcome, outcome.accepted, outcome.reason) == (3, True, "NotApplied"), name


def test_3_accepted_but_not_programmed_in_time(own: World) -> None:
    ports = followed(own)
    own.process.stop(end_agent=True)
    for name, setter in SETTERS.items():
        outcome = setter.call(own.pe, ports[name], setter.good[0], wait="programmed", timeout=1.0)

        assert (outcome, outcome.accepted, outcome.generation) == (3, True, 2), name
        assert outcome.reason == "NotApplied"
        assert own.generation(f"{setter.kind}/{ports[name]}") == 2
