"""The ports of a running PE: getters that never raise, setters that raise typed errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from pe_agent import functions
from pe_agent.functions import Outcome
from pe_agent.job.agent.agent_process import AgentProcess
from pe_agent.job.ports import ExportPort, ImportPort
from pe_agent.transport.broker_client import pe_path
from streambroker_client.errors import (
    BrokerUnavailableError,
    ChangeRefusedError,
    UnknownPortError,
    WrongKindError,
)
from streambroker_core.errors import FilterError, PropertyError, SubscriptionError
from support.agents.agents import Publishing, Reading, rows
from support.brokers.lossy_proxy import Cutter
from support.processes.ports import free_port
from support.processes.programs import SECONDS, World
from support.processes.waiting import until

NAMES = [{"applicationName": "market.Feed", "streamId": "nyse"}]
PROPERTIES = {"kind": "alert", "level": 2}
FILTERED = {"subscription": 'kind == "trade"', "filter": "price > 1.0"}


def test_the_ports_getters_never_raise_and_say_when_they_are_stale(own: World) -> None:
    name = own.followed("import", own.declare("import", **FILTERED))
    by_name = own.followed("import", own.declare("import", streams=NAMES))
    export = own.followed("export", own.declare("export", properties=PROPERTIES))
    port, named = ImportPort(own.pe.context, name), ImportPort(own.pe.context, by_name)
    exported = ExportPort(own.pe.context, export)

    def values() -> tuple[Any, ...]:
        return port.filter, port.subscription, named.streams, exported.properties, port.routes

    held: tuple[Any, ...] = ("price > 1.0", 'kind == "trade"', NAMES, PROPERTIES, [])
    assert (values(), port.stale, exported.stale) == (held, False, False)
    own.broker.kill()
    assert (values(), port.stale, exported.stale) == (held, True, True)
    own.process.stop(end_agent=True)
    assert (values(), port.stale, exported.stale) == (held, True, True)
    own.broker = own.broker.restart()
    until(lambda: (values(), port.stale) == (held, False), SECONDS, "values of the broker")
    own.ask("PUT", f"import/{name}/filter", {"filter": "price > 2.0"})
    assert port.stale


def test_a_port_of_which_nothing_is_known_has_no_values(world: World) -> None:
    port, export = ImportPort(world.pe.context, "nobody"), ExportPort(world.pe.context, "nobody")
    assert (port.filter, port.subscription, port.streams, port.routes) == (None, None, [], [])
    assert (export.properties, export.routes) == (None, [])
    assert port.stale
    assert export.stale


def test_a_change_is_known_to_the_port_before_the_agent_has_it(own: World) -> None:
    name = own.followed("import", own.declare("import", **FILTERED))
    port = ImportPort(own.pe.context, name)
    own.process.stop(end_agent=True)
    port.set_filter("price > 7.0")

    assert port.filter == "price > 7.0"
    assert port.subscription == 'kind == "trade"'
    assert not port.stale


def test_the_ports_setters_raise_typed_errors(world: World) -> None:
    port = ImportPort(world.pe.context, world.declare("import", streams=NAMES))
    nobody = ImportPort(world.pe.context, "nobody")
    export = ExportPort(world.pe.context, world.declare("export", streamId="by-name"))
    away = ImportPort(world.pe_of(f"http://127.0.0.1:{free_port()}").context, "any")
    world.declare("export", properties={"typed": 1}, schema=[{"name": "n", "type": "bigint"}])
    unfit = ImportPort(world.pe.context, world.declare("import", subscription="typed == 1"))
    cases: list[tuple[type[Exception], Callable[[], object]]] = [
        (SubscriptionError, lambda: port.set_subscription("a ==")),
        (FilterError, lambda: port.set_filter("a ==")),
        (PropertyError, lambda: export.set_properties({"a b": 1})),
        (UnknownPortError, lambda: nobody.set_filter("a == 1")),
        (UnknownPortError, lambda: nobody.set_streams(NAMES)),
        (WrongKindError, lambda: export.set_properties({"a": 1})),
        (WrongKindError, lambda: port.set_subscription("a == 1", keep_kind=True)),
        (ChangeRefusedError, lambda: unfit.set_filter("nobody == 1")),
        (ChangeRefusedError, lambda: port.set_streams([{"stream": "x"}])),
        (BrokerUnavailableError, lambda: away.set_filter("a == 1")),
    ]
    for error, call in cases:
        with pytest.raises(error):
            call()


def test_a_policy_counts_once_although_its_answer_was_lost(world: World) -> None:
    name = world.declare("export", properties=PROPERTIES)
    cutter = Cutter(world.broker.url)
    cutter.cuts = 1
    change = ExportPort(world.pe_of(cutter.url).context, name).set_congestion_policy("drop")
    cutter.close()

    assert change.generation == 2
    assert world.ask("GET", f"export/{name}").body["spec"]["congestionPolicy"] == "drop"


def test_a_filter_is_programmed_once_every_living_reader_has_informed_the_exporters(
    own: World,
) -> None:
    feed = own.agent_of("feed", own.broker.url)
    try:
        path = f"{pe_path('feed', 0)}/export/trades"
        schema = [{"name": "n", "type": "bigint"}, {"name": "name", "type": "string"}]
        own.direct.request("PUT", path, {"properties": {"kind": "trade"}, "schema": schema})
        own.ask("PUT", "import/trades", {"subscription": 'kind == "trade"', "start": "earliest"})
        until(lambda: own.pe.view_cache.port_in_view("import", "trades"), SECONDS, "the import")
        until(lambda: _exported(feed), SECONDS, "the export")
        Publishing(cast(Any, feed)).publish(0, rows(0, 5))
        reading = Reading(cast(Any, own.process))
        end = reading.end(None, SECONDS)

        def change(timeout: float) -> Outcome:
            return functions.set_import_filter(
                own.pe, "trades", "n > 2", wait="programmed", timeout=timeout
            )

        early = change(0.5)
        assert (early, early.accepted, early.reason) == (3, True, "NotApplied")

        def pinned() -> bool:
            nonlocal end
            end = reading.next(end, wait=0.1).get("offset") or end
            return bool(end["filter"] == "n > 2")

        until(pinned, SECONDS, "the filter in the reader's offset")
        assert change(SECONDS) == 0
    finally:
        feed.stop(end_agent=True)


def _exported(process: AgentProcess) -> bool:
    view: dict[str, Any] | None = process.client.call("view")["view"]
    return view is not None and "trades" in view["exports"]
