"""Control tuples through two real agents: packed for operators, in order, once, over kills."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pe_agent.datasource.columns import parse_struct
from pe_agent.datasource.options import Options
from pe_agent.datasource.packer import PACKED_DDL, Packing
from pe_agent.datasource.source import StreambrokerStreamReader
from streambroker_core.control.runtime.packing import by_bucket, unpack
from streambroker_core.control.tuples import Delivery, make_logged_tuple
from streambroker_core.control.tuples.envelope import encode
from support.agents.agents import DDL, SCHEMA, Pair, Publishing, error_code, pair, rows
from support.agents.sources import Run as Plain
from support.processes.waiting import until

PORTS = ("order", "cut", "filtered", "outside", "plain", "kill", "two", "idle", "limit", "cold")
BUCKETS = 4
MOMENTS = {Delivery.BEGIN: 0, Delivery.IMMEDIATE: 1, Delivery.END_WINDOW: 2}


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    latest = {"start": "latest"}  # of the control log, too: other tests have put tuples into it
    only = {"filtered": {"filter": "n % 2 == 0"}, "limit": latest, "idle": latest}
    yield from pair(tmp_path_factory.mktemp("agents"), ports=PORTS, only=only)


class Window:
    """What one batch gives to buckets: rows with their sequences, tuples with their positions."""

    def __init__(self, packed: list[pa.RecordBatch]) -> None:
        self.control: dict[int, list[tuple[int, int, str]]] = {}
        self.rows: dict[int, list[tuple[int, int]]] = {}
        for batch in packed:
            for bucket, one in by_bucket(batch):
                got = unpack(one)
                if got.rows is None:
                    placed = [(MOMENTS[c.delivery], at, c.payload) for at, c in got.control]
                    self.control.setdefault(bucket, []).extend(placed)
                else:
                    seq, n = got.rows.column("_seq").to_pylist(), got.rows.column("n").to_pylist()
                    self.rows.setdefault(bucket, []).extend(zip(seq, n, strict=True))

    @property
    def story(self) -> list[Any]:
        """Rows of all buckets and tuples in order; tuples are the same in every bucket.

        The positions of ``IMMEDIATE`` tuples are among the sequences of the rows. Those of other
        tuples give their order of emission.
        """
        first = self.control.get(0, [])
        assert all(self.control.get(bucket, []) == first for bucket in range(BUCKETS))
        placed: list[tuple[int, int, int, Any]] = [(when, at, 0, what) for when, at, what in first]
        of_rows = MOMENTS[Delivery.IMMEDIATE]
        placed += [(of_rows, seq, 1, n) for of in self.rows.values() for seq, n in of]
        return [what for *_, what in sorted(placed, key=lambda one: one[:3])]


class Run:
    """A query that reads control, without Spark."""

    def __init__(
        self, agents: Pair, port: str, at: dict[str, Any] | None = None, **more: Any
    ) -> None:
        options = {k: more.pop(k) for k in ("frame", "skip_lost") if k in more}
        packing = Packing(columns=DDL, buckets=BUCKETS, key="n", **more)
        importer = agents.importer
        token = str(importer.address["token"])
        self.source = StreambrokerStreamReader(
            parse_struct(PACKED_DDL),
            Options(port, importer.location, token, packing=packing, reconnect=20, **options),
        )
        self.at = at or self.source.initialOffset()
        self.ends: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def open(self) -> Run:
        def opened() -> bool:
            self.at = self.source.latestOffset(self.at, ReadAllAvailable())
            return bool(self.at["last"])

        until(opened, 10, "route open")
        return self

    def next(self) -> bool:
        """Plan a batch; False if there is none now."""
        end = self.source.latestOffset(self.at, ReadAllAvailable())
        if end == self.at:
            return False
        self.ends.append((self.at, end))
        self.at = end
        return True

    def window(self, seconds: float = 10) -> Window:
        """Return the next batch that has something; one that only opens a route has nothing."""

        def found() -> Window | None:
            got = self.again() if self.next() else None
            return got if got is not None and got.story else None

        return until(found, seconds, "a batch")

    def again(self, number: int = -1) -> Window:
        start, end = self.ends[number]
        parts = self.source.partitions(start, end)
        return Window([batch for part in parts for batch in self.source.read(part)])

    def stop(self) -> None:
        self.source.stop()


def publish(agents: Pair, port: str, batch: int, *parts: pa.RecordBatch, **tuples: Any) -> None:
    """Publish a batch; ``tuples`` are ``payload=(place, delivery)``."""
    query = Publishing(agents.exporter, port=port)
    assert query.admit(batch) == {"admitted": True}
    stages = [query.stage(batch, part) for part in parts]
    control = [
        [
            at,
            encode(
                make_logged_tuple(
                    f"q.{batch}", n, type_="mark", text=f'"{payload}"', delivery=Delivery(how)
                )
            ),
        ]
        for n, (payload, (at, how)) in enumerate(tuples.items())
    ]
    agents.exporter.client.call(
        "publisher.publish",
        export=port,
        query=query.query,
        run=query.run,
        batch=batch,
        stages=stages,
        ddl=DDL,
        control=control,
    )


def emit(agents: Pair, port: str, payload: str, **more: Any) -> dict[str, Any]:
    what = {"type": "mark", "payload": payload, **more}
    return agents.exporter.client.call("export.emit", export=port, request=payload, what=what)


def log(agents: Pair, payload: str, **more: Any) -> dict[str, Any]:
    what = {"type": "mark", "payload": payload, **more}
    return agents.importer.client.call("control.append", request=payload, what=what)


def test_tuples_stand_between_the_rows_where_they_were_published(agents: Pair) -> None:
    run = Run(agents, "order").open()
    publish(agents, "order", 0, rows(0, 3), rows(3, 3), a=(1, "IMMEDIATE"), b=(4, "IMMEDIATE"))
    publish(agents, "order", 1, rows(6, 2), c=(0, "IMMEDIATE"), d=(2, "END_WINDOW"))
    story: list[Any] = []
    while len(story) < 12:
        story += run.window().story
    assert story == [0, "a", 1, 2, 3, "b", 4, 5, "c", 6, 7, "d"]
    run.stop()


def test_a_window_ends_with_the_tuple_that_ends_it_and_replays_the_same(agents: Pair) -> None:
    publish(agents, "cut", 0, rows(0, 2))
    publish(agents, "cut", 1, rows(2, 2), end=(2, "END_WINDOW"))
    publish(agents, "cut", 2, rows(4, 2), begin=(0, "BEGIN"))
    run = Run(agents, "cut")
    story = [run.window().story for _ in range(2)]
    assert story == [[0, 1, 2, 3, "end"], ["begin", 4, 5]]
    assert [run.again(n).story for n in (-2, -1)] == story
    merged = Run(agents, "cut", mergeable=("mark",))
    assert merged.window().story == ["begin", 0, 1, 2, 3, 4, 5, "end"]
    merged.stop()
    run.stop()


def test_no_filter_loses_a_tuple_and_rows_keep_their_places(agents: Pair) -> None:
    publish(agents, "filtered", 0, rows(1, 1), nothing=(1, "IMMEDIATE"))
    publish(agents, "filtered", 1, rows(2, 5), mid=(3, "IMMEDIATE"))
    run = Run(agents, "filtered")
    window = run.window()
    assert window.story == ["nothing", 2, 4, "mid", 6]
    run.stop()


def test_a_tuple_from_outside_comes_at_once_and_is_reported_when_it_was_applied(
    agents: Pair,
) -> None:
    publish(agents, "outside", 0, rows(0, 2))
    run = Run(agents, "outside")
    assert run.window().story == [0, 1]
    reported = emit(agents, "outside", "now", delivery="END_WINDOW")
    assert (reported["epoch"], reported["applied"]) == (1, False)
    assert run.window().story == ["now"]

    def applied() -> bool:
        run.next()
        seq = reported["seq"]
        asked = agents.exporter.client.call("export.emitted", export="outside", seq=seq)
        return bool(asked["applied"])

    until(applied, 10, "applied")
    run.stop()


def test_a_reader_without_control_sees_rows_alone(agents: Pair) -> None:
    publish(agents, "plain", 0, rows(0, 2), a=(1, "IMMEDIATE"), b=(2, "END_WINDOW"))
    publish(agents, "plain", 1, rows(2, 2))
    run = Plain(agents.importer, "plain")

    def begun() -> list[int]:
        return run.read(run.plan())

    assert until(begun, 10, "rows") == [0, 1, 2, 3]
    before = run.at
    emit(agents, "plain", "outside")
    for _ in range(20):
        assert run.plan() == before
    publish(agents, "plain", 2, rows(4, 1))
    assert until(begun, 10, "rows") == [4]
    run.stop()


def test_control_is_once_over_kills_on_both_sides(agents: Pair) -> None:
    publish(agents, "kill", 0, rows(0, 2), a=(1, "IMMEDIATE"))
    run = Run(agents, "kill")
    assert run.window().story == [0, "a", 1]
    emit(agents, "kill", "b")
    agents.exporter.restart()
    agents.importer.restart()
    assert run.again().story == [0, "a", 1]
    assert emit(agents, "kill", "b")["seq"] == 0
    publish(agents, "kill", 1, rows(2, 1), c=(1, "END_WINDOW"))
    story: list[Any] = []
    while "c" not in story:
        story += run.window(30).story
    assert story == ["b", 2, "c"]
    run.stop()


def test_the_control_log_is_pinned_with_the_data_and_replays_the_same(agents: Pair) -> None:
    run = Run(agents, "limit", log=True).open()
    publish(agents, "limit", 0, rows(0, 1))
    story = run.window().story
    assert story == [0]
    log(agents, "first", target={"operator": "x"})
    publish(agents, "limit", 1, rows(1, 1))
    while "first" not in story or 1 not in story:
        story += run.window().story
    assert sorted(story, key=str) == [0, 1, "first"]
    before, stories = run.at, [run.again(n).story for n in range(len(run.ends))]
    log(agents, "second")
    agents.importer.restart()
    assert run.window(30).story == ["second"]
    assert run.at["control"] == {k: n + 1 for k, n in before["control"].items()}
    assert [run.again(n).story for n in range(len(run.ends))] == [*stories, ["second"]]
    run.stop()


def test_one_of_two_imports_carries_the_log_also_while_it_is_idle(agents: Pair) -> None:
    agents.importer.client.call(
        "query.begin", query="q2", run="r", exports=[], frames=["f1", "f2"], foreign=False
    )
    busy = Run(agents, "two", frame="f1")
    idle = Run(agents, "idle", frame="f2", log=True).open()
    publish(agents, "two", 0, rows(0, 2))
    assert busy.window().story == [0, 1]
    reported = log(agents, "for both")
    assert idle.window().story == ["for both"]
    assert not busy.next()
    idle.next()
    asked = agents.importer.client.call("control.entry", seq=reported["seq"])
    reader = idle.at["reader"]
    assert {"reader": reader, "applied": True} in asked["readers"]
    busy.stop()
    again = Run(agents, "two", at=busy.at, frame="f1", log=True)
    assert error_code(again.next) == "ControlLogTwice"
    again.stop()
    idle.stop()


def test_a_batch_with_control_alone_opens_a_stream(agents: Pair) -> None:
    query = Publishing(agents.exporter, port="cold")
    query.admit(0)
    agents.exporter.client.call(
        "publisher.publish",
        export="cold",
        query=query.query,
        run=query.run,
        batch=0,
        stages=[],
        ddl=DDL,
        control=[[0, encode(make_logged_tuple("q", 0, type_="mark", text='"alone"'))]],
        arrow=base64.b64encode(SCHEMA.serialize()).decode(),
    )
    run = Run(agents, "cold")
    assert run.window().story == ["alone"]
    run.stop()


def test_what_a_publisher_says_wrongly_is_refused_by_name(agents: Pair) -> None:
    query = Publishing(agents.exporter, port="cold", query="query-1")
    for control, code in (
        ([[3, encode(make_logged_tuple("q", 9, type_="mark", text="1"))]], "ControlInvalid"),
        ([[0, {"v": 99}]], "FormatTooNew"),
        ([["x", {}]], "ControlInvalid"),
    ):

        def call(control: Any = control) -> Any:
            return agents.exporter.client.call(
                "publisher.publish",
                export="cold",
                query=query.query,
                run=query.run,
                batch=7,
                stages=[],
                ddl=DDL,
                control=control,
            )

        assert error_code(call) == code
