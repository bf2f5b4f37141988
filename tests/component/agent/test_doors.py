"""What an agent refuses, and that nothing happens then."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from pe_agent.agent.exports.read_grant import pass_for
from pe_agent.agent.state.store import Store
from pe_agent.transport.agent_client import AgentClient
from pe_agent.transport.flight_errors import AgentRefusedError
from streambroker_core.ledger.offset import VERSION
from streambroker_core.wire.broker import capability
from support.agents.agents import (
    AgentProcess,
    Pair,
    Publishing,
    Reading,
    error_code,
    export_view,
    pair,
    rows,
)
from support.processes.waiting import until

PORTS = (
    "trades",
    "closed",
    "planned",
    "sessions",
    "moving",
    "cut",
    "later",
    "revoked",
    "ids",
    "grace",
    "wide",
)


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    only = {"closed": {"allow_filter": False}}
    for both in pair(tmp_path_factory.mktemp("doors"), ports=PORTS, only=only):
        Publishing(both.exporter).publish(0, rows(0, 3))
        Publishing(both.exporter, port="closed").publish(0, rows(0, 3))
        yield both


def plan(agents: Pair, token: str | None, port: str = "trades", **changes: Any) -> dict[str, Any]:
    """Ask the exporter for a plan as another agent would."""
    body = {
        "export": f"{agents.exporter.pe}/{port}",
        "import": f"{agents.importer.pe}/{port}",
        "reader": "stranger",
        "capability": token,
        "policy": "wait",
        "start": "earliest",
        "known": False,
        "positions": {},
        "limit": None,
        "budget": 1 << 20,
        "lease": 5.0,
        "filter": None,
        "columns": None,
        **changes,
    }
    return AgentClient(agents.exporter.location).call("peer.plan", **body)


def signed(agents: Pair, port: str = "trades", key: bytes | None = None, **changes: Any) -> str:
    terms: dict[str, Any] = {
        "reader_import": f"{agents.importer.pe}/{port}",
        "export": f"{agents.exporter.pe}/{port}",
        "filter_allowed": False,
        "policy": "wait",
        **changes,
    }
    return capability.sign(key or agents.exporter.key, **terms)


def test_a_missing_capability_opens_nothing(agents: Pair) -> None:
    assert error_code(lambda: plan(agents, None)) == "CapabilityInvalid"
    assert "stranger" not in agents.exporter.export_status()["readers"]


@pytest.mark.parametrize(
    "changes",
    [
        {"key": b"another agent's key"},
        {"key": bytes(1)},
        {"reader_import": "default/thief/0/trades"},
        {"export": "default/feed/0/closed"},
    ],
    ids=["forged", "guessed", "foreign import", "foreign export"],
)
def test_a_capability_that_is_not_for_this_opens_nothing(
    agents: Pair, changes: dict[str, Any]
) -> None:
    token = signed(agents, **changes)
    assert error_code(lambda: plan(agents, token)) == "CapabilityInvalid"
    assert "stranger" not in agents.exporter.export_status()["readers"]


def test_a_damaged_capability_opens_nothing(agents: Pair) -> None:
    token = signed(agents)
    for broken in (token[:-1], token.replace(".", ""), "x" * 5000, "."):
        assert error_code(plan, agents, broken) == "CapabilityInvalid"
    assert plan(agents, token, reader="friend")["routed"]


def test_a_filter_where_none_is_allowed_is_refused(agents: Pair) -> None:
    token = signed(agents, "closed")
    filtered: dict[str, Any] = {"filter": "n > 1", "port": "closed"}
    assert error_code(lambda: plan(agents, token, **filtered)) == "FilterForbidden"
    assert plan(agents, token, "closed", reader="known")["routed"]
    again = {**filtered, "reader": "known", "known": True}
    assert error_code(lambda: plan(agents, token, **again)) == "FilterForbidden"


def test_a_capability_without_filter_opens_no_filtered_route(agents: Pair) -> None:
    code = error_code(plan, agents, signed(agents), reader="new", filter="n > 1")
    assert code == "FilterForbidden"
    assert plan(agents, signed(agents, filter_allowed=True), reader="new", filter="n > 1")["routed"]


def test_only_who_has_its_pass_renews_or_ends_a_readers_lease(agents: Pair) -> None:
    shown = plan(agents, signed(agents), reader="leased")["pass"]
    client, export = AgentClient(agents.exporter.location), f"{agents.exporter.pe}/trades"
    own, thief = f"{agents.importer.pe}/trades", "default/thief/0/trades"

    def alive() -> bool:
        return bool(agents.exporter.reader_status("leased")["alive"])

    def watch(import_: str, token: str | None, pass_: str | None = shown) -> dict[str, Any]:
        imports = {import_: {"capability": token, "readers": {"leased": pass_}}}
        asked = {export: {"heads": None, "imports": imports}}
        answer = client.call("peer.watch", exports=asked, wait=0, lease=50.0)
        reported: dict[str, Any] = answer["exports"][export]
        return reported

    def leave(import_: str, pass_: str | None = shown) -> None:
        body: dict[str, Any] = {"export": export, "reader": "leased", "import": import_}
        client.call("peer.leave", **{**body, "pass": pass_})

    leave(thief)
    leave(own, None)
    assert alive()
    leave(own)
    until(lambda: not alive(), 30, "the reader has left")
    assert watch(thief, None)["code"] == watch(own, None, None)["code"] == "NotRouted"
    assert not alive()
    assert watch(own, None) == {"heads": None, "ended": False}
    assert alive()
    assert watch(thief, signed(agents))["code"] == "CapabilityInvalid"
    leave(own)
    assert watch(own, signed(agents), None)["heads"]
    assert alive(), "a capability that counts is enough"


def test_a_long_poll_is_refused_to_who_holds_neither_a_plan_nor_a_capability(
    agents: Pair,
) -> None:
    shown = plan(agents, signed(agents), reader="holds")["pass"]
    export, import_ = f"{agents.exporter.pe}/trades", f"{agents.importer.pe}/trades"

    def watch(
        token: str | None, readers: Any, *, wait: float = 30.0, **more: Any
    ) -> tuple[dict[str, Any], float]:
        imports = {import_: {"capability": token, "readers": readers}}
        asked: dict[str, Any] = {export: {"heads": None, "imports": imports}}
        began = time.monotonic()
        client = AgentClient(agents.exporter.location)
        reported = client.call("peer.watch", exports={**asked, **more}, wait=wait, lease=60.0)
        found: dict[str, Any] = reported["exports"][export]
        return found, time.monotonic() - began

    for token, readers in (
        (None, {}),
        (None, {"holds": None}),
        (None, ["holds"]),
        (signed(agents, key=b"forged"), {}),
        (None, {"stranger": "f" * 64}),
    ):
        reported, seconds = watch(token, readers)
        assert reported["code"] in ("NotRouted", "CapabilityInvalid")
        assert seconds < 15
    assert watch(None, {"holds": shown}, wait=1.0)[1] > 0.9
    other: dict[str, Any] = {f"{export}-{n}": {"heads": None, "imports": {}} for n in range(256)}
    assert error_code(lambda: watch(signed(agents), {}, **other)) == "BodyInvalid"


def test_what_other_agents_ask_is_never_larger_than_a_quarter_of_a_mebibyte(agents: Pair) -> None:
    token = signed(agents)
    for size, code in ((200 << 10, "ok"), (256 << 10, "BodyInvalid")):
        asked = partial(plan, agents, token, reader="large", schema="x" * size)
        if code == "ok":
            assert error_code(asked) == "SchemaInvalid"
        else:
            assert error_code(asked) == code
    for action in ("peer.replan", "peer.watch", "peer.leave", "peer.where", "peer.plan"):
        assert _raw(agents, action, b'{"x": "' + b"x" * (256 << 10) + b'"}') == "BodyInvalid"


def test_a_reader_of_one_import_is_no_reader_of_another(agents: Pair) -> None:
    assert plan(agents, signed(agents), reader="mine")["routed"]
    thief: dict[str, Any] = {"reader": "mine", "import": "default/thief/0/trades"}
    assert error_code(lambda: plan(agents, None, **thief)) == "NotRouted"


def test_an_agent_without_key_takes_no_capability(agents: Pair, tmp_path: Any) -> None:
    bare = AgentProcess(tmp_path / "bare", "feed")
    bare.write_routes(export_view(agents.exporter, agents.importer.pe, agents.how))
    try:
        bare.start()
        token = signed(agents, key=b"\0")
        empty = capability.sign(
            b"",
            reader_import=f"{agents.importer.pe}/trades",
            export=f"{agents.exporter.pe}/trades",
            filter_allowed=True,
            policy="wait",
        )
        lone = Pair(bare, agents.importer, agents.how)
        for shown in (token, empty):
            assert error_code(plan, lone, shown) == "CapabilityInvalid"
    finally:
        bare.kill()


def test_epochs_that_are_not_planned_are_not_sent(agents: Pair) -> None:
    publisher = Publishing(agents.exporter, port="planned")
    reader = Reading(agents.importer, port="planned")
    publisher.publish(0, rows(0, 3))
    end = reader.end(None)
    (ticket,) = reader.slices(None, end)
    assert len(reader.batches(ticket)) == 1
    publisher.publish(1, rows(3, 3))
    for changes in (
        {"pieces": [[1, 0, 1]]},
        {"reader": "stranger"},
        {"stream": "no such stream"},
        {"export": f"{agents.exporter.pe}/trades"},
        {"grant": None},
        {"grant": ticket["grant"][:-1] + ("0" if ticket["grant"][-1] != "0" else "1")},
    ):
        assert error_code(lambda c=changes: reader.batches({**ticket, **c})) == "GrantInvalid"
    reader.next(end)
    assert error_code(lambda: reader.batches(ticket)) == "NotPlanned"


def test_a_ticket_outlives_its_capability_and_a_restart_and_ends_with_grace(agents: Pair) -> None:
    agents.plumb(only={**agents.how.only, "grace": {"grace": 6.0}})
    agents.importer.restart()
    agents.exporter.restart()
    publisher = Publishing(agents.exporter, port="grace")
    publisher.publish(0, rows(0, 3))
    export, import_ = f"{agents.exporter.pe}/grace", f"{agents.importer.pe}/grace"
    known = plan(agents, signed(agents, "grace"), "grace", reader="away", lease=3.0)
    stream = known["planned"][0]["stream"]
    asked: dict[str, Any] = {"export": export, "import": import_, "reader": "away"}
    asked |= {"filter": None, "columns": None, "stream": stream}
    expired = signed(agents, "grace", expires=1)
    again = replan(agents, asked, 0, 1, capability=expired)
    ticket = {**asked, "pieces": [[0, 0, 1]], "grant": again["grant"]}
    reading = Reading(agents.exporter)

    def read() -> int:
        ticket["location"] = agents.exporter.location
        return sum(batch.num_rows for batch in reading.batches(ticket))

    assert read() == 3
    agents.exporter.restart()
    assert read() == 3
    until(lambda: error_code_or_none(read) == "NotPlanned", 30, "grace is over")
    replan(agents, asked, 0, 1, capability=expired)
    assert read() == 3


def test_a_ticket_that_names_blocks_which_do_not_exist_is_refused(agents: Pair) -> None:
    reader = Reading(agents.importer)
    end = reader.end(None)
    (ticket,) = reader.slices(None, end)
    for piece in ([0, 0, 99], [0, -1, 1]):
        broken = {**ticket, "pieces": [piece]}
        assert error_code(reader.batches, broken) == "NotPlanned"
    for wrong in (["a", 0, 1], [0]):
        broken = {**ticket, "pieces": [wrong]}
        assert error_code(reader.batches, broken) == "BodyInvalid"
    columns = {**ticket, "columns": ["nothing"]}
    assert error_code(lambda: reader.batches(columns)) == "GrantInvalid"


@pytest.mark.parametrize("port", ["closed", "trades"])
def test_a_ticket_that_differs_from_the_plan_in_filter_or_columns_is_refused(
    agents: Pair, port: str
) -> None:
    reader = Reading(agents.importer, port=port)
    (ticket,) = reader.slices(None, reader.end(None))
    for changes in ({"filter": "n < 3"}, {"columns": ["n"]}, {"columns": ["name", "n"]}):
        assert error_code(reader.batches, {**ticket, **changes}) == "GrantInvalid"
    assert reader.batches(ticket)
    figures = agents.exporter.reader_status(ticket["reader"], port)
    assert (figures["filter"], figures["filtered"]) == (None, 0)


@pytest.mark.parametrize("action", ["status", "publisher.admit", "reader.next", "declare"])
def test_a_wrong_token_does_nothing(agents: Pair, action: str) -> None:
    for token in ("", "guess"):
        client = AgentClient(agents.exporter.location, token)
        assert error_code(client.call, action) == "TokenWrong"


def test_rows_without_token_are_not_taken(agents: Pair) -> None:
    command = {"export": "trades", "query": "q", "run": "r", "batch": 9, "ddl": ""}
    batch = rows(0, 1)
    client = AgentClient(agents.exporter.location, "guess")
    assert error_code(lambda: client.put(command, batch.schema, [batch])) == "TokenWrong"


@pytest.mark.parametrize(
    "body",
    [b"", b"not json", b"[1]", b"\xff\xfe", b"nul\0", b"3", b"[" * 100_000],
    ids=["empty", "text", "list", "bytes", "zero", "number", "deep"],
)
def test_a_body_that_is_no_json_object_is_refused_and_the_agent_lives(
    agents: Pair, body: bytes
) -> None:
    assert _raw(agents, "status", body) == "BodyInvalid"
    assert agents.exporter.status()["pe"] == agents.exporter.pe


def test_an_oversized_body_is_refused(agents: Pair) -> None:
    body = json.dumps({"token": "x" * (17 << 20)}).encode()
    assert _raw(agents, "status", body) == "TokenWrong"
    assert _raw(agents, "status", body, known=True) == "BodyInvalid"
    batch = {"export": "ghost", "query": "q", "run": "r", "batch": 0, "stages": [], "ddl": None}
    passed_on = json.dumps({**batch, "control": ["x" * (17 << 20)]}).encode()
    assert _raw(agents, "publisher.publish", passed_on, known=True) == "UnknownPort"
    assert _raw(agents, "publisher.publish", body * 4, known=True) == "BodyInvalid"


def test_an_oversized_ticket_is_refused_before_it_is_parsed(agents: Pair) -> None:
    reading = Reading(agents.importer)
    large = {"location": agents.exporter.location, "more": "x" * (17 << 20)}
    with pytest.raises(AgentRefusedError, match="bytes; at most 16777216 are read"):
        reading.batches(large)


def test_a_caller_of_the_release_before_has_the_token_in_its_request(agents: Pair) -> None:
    token = agents.exporter.address["token"]
    assert _raw(agents, "nothing", json.dumps({"token": token}).encode()) == "BodyInvalid"
    asked = {"token": token, "export": "trades"}
    assert _raw(agents, "publisher.admit", json.dumps(asked).encode()) == "BodyInvalid"
    large = {**asked, "more": "x" * (256 << 10)}
    assert _raw(agents, "publisher.admit", json.dumps(large).encode()) == "TokenWrong"


def test_an_unknown_action_is_refused_by_name(agents: Pair) -> None:
    assert error_code(lambda: agents.exporter.client.call("format.disk")) == "BodyInvalid"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"export": "trades"},
        {"export": ["trades"], "query": 1, "run": 2, "batch": "x"},
        {"export": "trades", "query": None, "run": {}, "batch": [], "ddl": 5, "renewed": "x"},
    ],
)
def test_fields_that_are_missing_or_wrong_are_reported(agents: Pair, body: dict[str, Any]) -> None:
    code = error_code(lambda: agents.exporter.client.call("publisher.publish", **body))
    assert code in ("BodyInvalid", "UnknownPort")


def test_a_plan_that_is_refused_for_its_fields_makes_no_reader(agents: Pair) -> None:
    body: dict[str, Any] = {
        "export": "trades",
        "import": "any",
        "reader": "reader-of-wrong-fields",
        "lease": 5,
        "positions": {},
    }
    for wrong in ({"limit": {"s": "two"}}, {"positions": {"s": -1}}, {"start": "yesterday"}):
        for action in ("peer.plan", "peer.replan"):
            call = partial(agents.exporter.client.call, action, **{**body, **wrong})
            assert error_code(call) == "BodyInvalid"
    assert "reader-of-wrong-fields" not in json.dumps(agents.exporter.status())


def test_an_export_that_nobody_declared_is_refused_with_a_remedy(agents: Pair) -> None:
    publisher = Publishing(agents.exporter, port="ghost")
    assert error_code(lambda: publisher.admit(0)) == "UnknownPort"
    foreign = Publishing(agents.exporter, port="default/other/0/trades")
    assert error_code(lambda: foreign.admit(0)) == "UnknownPort"


def test_rows_that_were_not_admitted_are_refused(agents: Pair) -> None:
    publisher = Publishing(agents.exporter, query="nobody")
    assert error_code(lambda: publisher.stage(7, rows(0, 1))) == "NotAdmitted"


def test_two_living_processes_with_one_checkpoint_are_distinguished(agents: Pair) -> None:
    one = Reading(agents.importer, port="sessions", session="one")
    two = Reading(agents.importer, port="sessions", session="two")
    offset = one.open()
    busy = two.next(offset)["busy"]
    assert 0 < busy["seconds"] <= 5
    assert two.next(offset, renewals=busy["renewals"])["busy"]["renewals"] == busy["renewals"]
    call = agents.importer.client.call
    assert call("reader.renew", reader=offset["reader"], session="one") == {"renewed": True}
    assert call("reader.renew", reader=offset["reader"], session="two") == {"renewed": False}
    code = error_code(lambda: two.next(offset, renewals=busy["renewals"]))
    assert code == "ReaderInUse"


def test_a_process_takes_over_from_one_that_left(agents: Pair) -> None:
    one = Reading(agents.importer, port="moving", session="one")
    two = Reading(agents.importer, port="moving", session="two")
    offset = one.open()
    assert "busy" in two.next(offset)
    call = agents.importer.client.call
    call("reader.leave", reader=offset["reader"], session="two")
    assert "busy" in two.next(offset)
    call("reader.leave", reader=offset["reader"], session="one")
    assert "busy" not in two.next(offset)


def test_an_offset_of_a_newer_release_is_refused_by_name(agents: Pair) -> None:
    reader = Reading(agents.importer)
    offset = reader.open()
    assert error_code(lambda: reader.next({**offset, "v": VERSION + 1})) == "OffsetInvalid"
    assert error_code(lambda: reader.next({"topic": {"0": 1}})) == "OffsetInvalid"


def error_code_or_none(do: Callable[[], object]) -> str | None:
    try:
        do()
    except AgentRefusedError as error:
        return error.code
    return None


def _raw(agents: Pair, action: str, body: bytes, *, known: bool = False) -> str:
    client = flight.FlightClient(agents.exporter.location)
    token = agents.exporter.address["token"]
    headers = [(b"authorization", f"Bearer {token}".encode())] if known else []
    options = flight.FlightCallOptions(headers=headers)
    try:
        list(client.do_action(flight.Action(action, pa.py_buffer(body)), options))
    except flight.FlightError as error:
        return str(json.loads(error.extra_info)["code"])
    finally:
        client.close()
    raise AssertionError("the agent took it")


def replan(
    agents: Pair, ticket: dict[str, Any], first: int, next_: int, **changes: Any
) -> dict[str, Any]:
    """Register a plan of the reader of a ticket again, as its agent would, without capability."""
    same = {name: ticket[name] for name in ("export", "import", "reader", "filter", "columns")}
    same["pass"] = pass_for(
        agents.exporter.address["token"], ticket["export"], ticket["import"], ticket["reader"]
    )
    ranges = {ticket["stream"]: [first, next_]}
    body = {**same, "positions": {}, "ranges": ranges, "lease": 5.0, **changes}
    return AgentClient(agents.exporter.location).call("peer.replan", **body)


def cut(agents: Pair, port: str, reader: str) -> None:
    """Restart the exporter as one that has heard that a route is cut."""
    agents.exporter.kill()
    store = Store(agents.exporter.home / "state.sqlite")
    unrouted = "UPDATE readers SET state = json_set(state, '$.routed', json('false')) WHERE id = ?"
    store.write(unrouted, reader)
    store.close()
    agents.plumb(only={**agents.how.only, port: {"connected": False}})
    agents.exporter.start()


def test_who_has_a_readers_pass_gets_nothing_new_and_acknowledges_nothing_and_its_id_is_nothing(
    agents: Pair,
) -> None:
    publisher = Publishing(agents.exporter, port="ids")
    publisher.publish(0, rows(0, 3))
    reader = Reading(agents.importer, port="ids")
    end = reader.end(None)
    (ticket,) = reader.slices(None, end)
    publisher.publish(1, rows(3, 3))

    positions = {ticket["stream"]: 1}
    stolen = {"reader": ticket["reader"], "known": True, "positions": positions}
    columns = ticket["columns"]
    refused = error_code(lambda: plan(agents, None, "ids", columns=columns, **stolen))
    assert refused == "CapabilityInvalid"
    nameless = partial(replan, agents, ticket, 0, 1, **{"pass": None})
    assert error_code(nameless) == "CapabilityInvalid"
    assert error_code(lambda: replan(agents, ticket, 1, 2, positions=positions)) == "NotRouted"
    replan(agents, ticket, 0, 1, positions=positions)
    known = agents.exporter.reader_status(ticket["reader"], "ids")
    assert known["positions"] == {ticket["stream"]: 0}
    assert known["delivered"] == 0
    assert len(reader.batches(ticket)) == 1
    assert plan(agents, signed(agents, "ids"), "ids", columns=columns, **stolen)["planned"]


def test_a_cut_reader_reads_what_it_has_planned_and_nothing_new(agents: Pair) -> None:
    publisher = Publishing(agents.exporter, port="cut")
    publisher.publish(0, rows(0, 3))
    reader = Reading(agents.importer, port="cut")
    end = reader.end(None)
    (ticket,) = reader.slices(None, end)
    cut(agents, "cut", ticket["reader"])
    publisher.publish(1, rows(3, 3))

    positions = {ticket["stream"]: 2}
    assert error_code(lambda: replan(agents, ticket, 0, 2)) == "NotRouted"
    assert error_code(lambda: replan(agents, ticket, 1, 2, positions=positions)) == "NotRouted"
    later = {**ticket, "pieces": [[1, 0, 1]]}
    assert error_code(lambda: reader.batches(later)) == "GrantInvalid"
    assert error_code(lambda: replan(agents, ticket, 0, 1, **{"pass": None})) == "CapabilityInvalid"
    replan(agents, ticket, 0, 1)
    assert len(reader.batches(ticket)) == 1


def test_where_filters_are_forbidden_later_only_the_planned_one_is_read_on(agents: Pair) -> None:
    Publishing(agents.exporter, port="later").publish(0, rows(0, 3))
    agents.plumb(only={**agents.how.only, "later": {"filter": "n > 0"}})
    agents.importer.restart()
    reader = Reading(agents.importer, port="later")
    (ticket,) = reader.slices(None, reader.end(None))
    agents.plumb(only={**agents.how.only, "later": {"allow_filter": False}})
    agents.exporter.restart()
    assert error_code(lambda: replan(agents, ticket, 0, 1, filter="n > 1")) == "FilterForbidden"
    replan(agents, ticket, 0, 1)
    assert [b.num_rows for b in reader.batches(ticket)] == [2]


def test_a_lossy_plan_tells_what_is_gone_and_another_one_stops(agents: Pair) -> None:
    """The reader comes from a log that is lost, and another query has published since."""
    behind: dict[str, Any] = {
        "reader": "bereft",
        "known": True,
        "own": ["lost"],
        "positions": {"lost": 5},
        "last": ["query-0", 3],
    }
    assert error_code(lambda: plan(agents, signed(agents), **behind)) == "DataLoss"
    answer = plan(agents, signed(agents), lossy=True, **behind)
    assert answer["gone"] == ["lost"]
    assert [(p["from"], p["lost"]) for p in answer["planned"]] == [(0, [1, None])]
    ranges = {"lost": [3, 5], answer["planned"][0]["stream"]: [0, 1]}
    ticket = {
        "export": f"{agents.exporter.pe}/trades",
        "import": f"{agents.importer.pe}/trades",
        "reader": "bereft",
        "filter": None,
        "columns": None,
        "stream": "lost",
    }
    again: dict[str, Any] = {"ranges": ranges, "lossy": True, "capability": signed(agents)}
    reported = replan(agents, ticket, 0, 0, **again)
    assert reported["gone"] == {"lost": [[3, 5, None]]}
    assert [list(epochs) for epochs in reported["blocks"].values()] == [[], ["0"]]
    stopped = {**again, "lossy": False}
    assert error_code(lambda: replan(agents, ticket, 0, 0, **stopped)) == "DataLoss"


def test_a_revoked_import_reads_nothing_more_not_even_what_it_has_planned(agents: Pair) -> None:
    Publishing(agents.exporter, port="revoked").publish(0, rows(0, 3))
    reader = Reading(agents.importer, port="revoked")
    (ticket,) = reader.slices(None, reader.end(None))
    assert reader.batches(ticket)
    agents.exporter.kill()
    agents.plumb(only={**agents.how.only, "revoked": {"revoked": ("default/alerts",)}})
    agents.exporter.start()
    assert error_code(lambda: reader.batches(ticket)) == "Revoked"
    assert error_code(lambda: replan(agents, ticket, 0, 1)) == "Revoked"
    token = signed(agents, "revoked")
    assert error_code(lambda: plan(agents, token, "revoked")) == "Revoked"


def test_a_refusal_that_names_hundreds_of_columns_travels_whole_and_is_no_absent_agent(
    agents: Pair,
) -> None:
    columns = [f"column_number_{n}_of_a_wide_stream" for n in range(400)]
    schema = pa.schema([(c, pa.int64()) for c in columns])
    ddl = ", ".join(f"`{c}` bigint" for c in columns)
    wide = Publishing(agents.exporter, port="wide", ddl=ddl)
    wide.publish(0, pa.RecordBatch.from_pydict({c: [1] for c in columns}, schema=schema))

    assert wide.admit(1) == {"admitted": True}
    narrow = pa.RecordBatch.from_pydict({"other": [1]}, schema=pa.schema([("other", pa.int64())]))
    with pytest.raises(AgentRefusedError) as refused:
        wide.stage(1, narrow)
    assert refused.value.code == "SchemaMismatch"
    assert all(c in str(refused.value) for c in columns)

    reader = Reading(agents.importer, port="wide", columns=["nothing"])
    offset: dict[str, Any] | None = None

    def why() -> str | None:
        nonlocal offset
        offset = reader.next(offset)["offset"] or offset
        if offset is None:
            return None
        reported = agents.importer.status()["imports"]
        found: str | None = reported["readers"][offset["reader"]]["refused"].get(
            f"{agents.exporter.pe}/wide"
        )
        return found if not reported["away"] else None

    assert all(c in until(why, 20, "the export refuses the columns") for c in columns)
