"""Rules that an import carries: pinned with the filter that they allow, read again as they were."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pe_agent.agent.exports.stream.block_reader import BlockReader, LatestTimeRequest, ReadRequest
from pe_agent.datasource.packer import ImportPacker, NotTimedError, Packing
from pe_agent.datasource.pinned_rules import PinnedRulesFile
from pe_agent.log import control_file
from pe_agent.transport.messages import BlockMetadata, Ticket
from streambroker.operators import AlignedError, ControlFile
from streambroker_core.cep.operator import PatternRules
from streambroker_core.cep.rules.push_down import TOO_LONG
from streambroker_core.ledger.offset import Offset, PinnedRules
from streambroker_core.wire.agent_rpc.codec import to_json
from streambroker_core.wire.broker import capability
from streambroker_core.wire.broker.view import with_version
from support.agents.exports import Bench as Exporter
from support.agents.exports import bench as exporter
from support.agents.imports import A, B, Bench, answer, bench, plan

KEY = b"k" * 32


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return bench(tmp_path, monkeypatch)


def connect(made: Bench, *exports: str, allowed: bool = True, filter_: str | None = None) -> None:
    """Connect exports that allow filters; of several the last one only if that is so."""
    made.connect(*exports, filter_=filter_)
    view = made.routes.view
    assert view is not None
    routes = tuple(
        replace(
            route,
            capability=capability.sign(
                KEY,
                reader_import="default/alerts/0/in",
                export=str(route.export),
                filter_allowed=allowed or str(route.export) != exports[-1],
                policy="wait",
            ),
        )
        for route in view.imports["in"].routes
    )
    imports = {"in": replace(view.imports["in"], routes=routes)}
    made.routes.apply(with_version(replace(view, imports=imports)))


def rules(next_: int, relevant: str | None = 'n == "a"', why: str = "") -> dict[str, Any]:
    return {"rules": {"log": "file-1", "next": next_, "relevant": relevant, "why": why}}


def filters(made: Bench) -> list[str | None]:
    return [body["filter"] for _, body in made.asked]


def test_rules_and_the_filter_that_they_allow_are_of_one_offset(made: Bench) -> None:
    connect(made, A, filter_="k > 1")
    made.replies[A] = lambda _: answer(plan("s", 0, 1))
    first = made.next(None, **rules(2))["offset"]
    assert first["filter"] == 'n == "a" && k > 1'
    assert first["rules"] == {"log": "file-1", "next": 2, "own": "k > 1", "relevant": 'n == "a"'}
    assert first["v"] == 2
    assert filters(made) == ['n == "a" && k > 1']
    (reader,) = made.host.status()["readers"].values()
    assert reader["rules"] == {"next": 2, "filter": 'n == "a" && k > 1', "why": ""}
    assert reader["pinned"]["filter"] == "k > 1"


def test_new_rules_are_pinned_where_there_is_nothing_to_read(made: Bench) -> None:
    connect(made, A)
    made.replies[A] = lambda _: answer(plan("s", 0, 1))
    made.known[A] = {"s": 1}
    first = made.next(None, **rules(1))["offset"]
    made.replies[A] = lambda _: answer(plan("s", 1, 1))
    second = made.next(first, **rules(2, 'n == "b"'))["offset"]
    assert (second["filter"], second["rules"]["next"]) == ('n == "b"', 2)
    assert second["streams"] == first["streams"]
    assert made.next(second, **rules(2, 'n == "b"'))["offset"] is None
    third = made.next(second, **rules(3, None, "rule r looks at every row"))["offset"]
    assert third["filter"] is None
    (reader,) = made.host.status()["readers"].values()
    assert reader["rules"] == {"next": 3, "filter": None, "why": "rule r looks at every row"}


def test_a_batch_is_read_again_under_the_filter_that_was_planned(made: Bench) -> None:
    connect(made, A)
    made.replies[A] = lambda _: answer(plan("s", 0, 1))
    first = made.next(None, **rules(1))["offset"]
    made.replies[A] = lambda _: {"blocks": {"s": {"0": [[5, 9]]}}, "control": {}}
    (ticket,) = made.cut(None, first, control=True)["slices"]
    assert ticket["filter"] == 'n == "a"'
    assert filters(made)[-1] == 'n == "a"'


def test_nothing_is_left_out_where_an_exporter_allows_no_filter(made: Bench) -> None:
    connect(made, A, B, allowed=False)
    made.replies[A] = made.replies[B] = lambda _: answer()
    first = made.next(None, **rules(1))["offset"]
    assert (first["filter"], first["rules"]["relevant"]) == (None, 'n == "a"')
    assert filters(made) == [None, None]
    (reader,) = made.host.status()["readers"].values()
    assert reader["rules"]["why"] == f"{B} allows no filter"
    connect(made, A, B)
    assert made.next(first, **rules(1))["offset"]["filter"] == 'n == "a"'


def test_a_filter_that_would_be_too_long_is_that_of_the_import(made: Bench) -> None:
    half = " || ".join(f"k == {n}" for n in range(150))
    connect(made, A, filter_=half)
    made.replies[A] = lambda _: answer()
    first = made.next(None, **rules(1, half.replace("k", "m")))["offset"]
    assert first["filter"] == half
    (reader,) = made.host.status()["readers"].values()
    assert TOO_LONG in reader["rules"]["why"]


def test_who_is_held_back_keeps_its_rules_and_takes_a_new_filter_of_the_import(
    made: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(made, A)
    made.replies[A] = lambda _: answer(plan("s", 0, 1))
    first = made.next(None, **rules(1))["offset"]
    connect(made, A, filter_="k > 1")
    turn = type(made.host.queries.begin_call(None, "default/alerts/0/in", "r"))
    monkeypatch.setattr(turn, "blocking_export", lambda _: "default/alerts/0/out")
    made.replies[A] = lambda _: answer(plan("s", 1, 1))
    held = made.next(first, **rules(2, 'n == "b"'))["offset"]
    assert (held["filter"], held["rules"]["next"]) == ('n == "a" && k > 1', 1)


@pytest.mark.compatibility(
    "offset of a reader",
    "without pinned rules it is version 1; with them it is version 2, which older releases refuse",
)
def test_an_offset_with_rules_survives_its_text_and_earlier_releases_refuse_it() -> None:
    one = Offset(reader="r", filter="k > 1 && t", rules=PinnedRules(log="l", next=3, own="k > 1"))
    assert Offset.decode(one.encode()) == one
    assert one.import_filter == "k > 1"
    assert one.encode()["v"] == 2
    assert list(one.encode()) == sorted(one.encode())
    plain = Offset(reader="r", filter="k > 1").encode()
    assert plain["v"] == 1
    assert "rules" not in plain


# -- in the source process -----------------------------------------------------------------------


def send(file: ControlFile, relevant: str | None) -> None:
    file.append(PatternRules(rules={}, relevant=relevant, whole="" if relevant else "why"))


def test_a_source_says_what_the_last_rules_need_and_brings_those_between_two_offsets(
    tmp_path: Path,
) -> None:
    file = ControlFile(tmp_path / "rules")
    send(file, 'n == "a"')
    pinned = PinnedRulesFile(str(file.path))
    asked = to_json(pinned.position(None))
    assert asked == {"log": file.log, "next": 1, "relevant": 'n == "a"', "why": ""}
    one: Any = {**asked, "own": None}
    assert pinned.has_read_all(one)
    assert not pinned.has_read_all(None)
    send(file, None)
    assert not pinned.has_read_all(one)
    behind = pinned.position(one)
    assert pinned.is_last(behind.next)
    two: Any = {**to_json(behind), "own": "k > 1"}
    assert (two["relevant"], two["why"]) == (None, "why")

    rows: list[Ticket] = [{"filter": "k > 1"}, {"filter": 'n == "a" && k > 1'}]
    plain, less, control = pinned.add_rule_slices(one, two, rows, "t")
    assert plain == rows[0]
    assert less == {**rows[1], "latest": {"column": "t", "filter": "k > 1"}}
    assert [at["seq"] for _, at in control["tuples"]] == [1]
    *_, control = pinned.add_rule_slices(None, two, rows, None)
    assert [at["seq"] for _, at in control["tuples"]] == [0, 1]
    assert pinned.add_rule_slices(None, None, rows, "t") == rows
    assert "latest" not in pinned.add_rule_slices(two, two, rows, None)[1]


def test_a_run_up_to_a_limit_has_the_rules_of_its_start(tmp_path: Path) -> None:
    file = ControlFile(tmp_path / "rules")
    send(file, 'n == "a"')
    pinned = PinnedRulesFile(str(file.path))
    pinned.freeze_end()
    send(file, 'n == "b"')
    assert pinned.position(None).relevant == 'n == "a"'


@pytest.mark.parametrize("until_now", [False, True])
def test_many_rules_come_in_several_windows_and_rows_with_the_last_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, until_now: bool
) -> None:
    monkeypatch.setattr(control_file, "WINDOW_LIMITS", (2, 1 << 20))
    file = ControlFile(tmp_path / "rules")
    for number in range(5):
        send(file, f"k == {number}")
    pinned, windows = PinnedRulesFile(str(file.path)), []
    start: Any = None
    if until_now:
        pinned.freeze_end()
    while not pinned.has_read_all(start):
        asked = pinned.position(start)
        end: Any = {**to_json(asked), "own": None}
        (control,) = pinned.add_rule_slices(start, end, [], None)
        seqs = [one["seq"] for _, one in control["tuples"]]
        windows.append((seqs, asked.relevant, pinned.is_last(asked.next)))
        start = end
    assert windows == [
        ([0, 1], "k == 1", False),
        ([2, 3], "k == 3", False),
        ([4], "k == 4", True),
    ]
    assert to_json(pinned.position(start)) == {k: v for k, v in start.items() if k != "own"}


def test_rules_without_rows_are_an_offset_that_moves(made: Bench) -> None:
    connect(made, A)
    made.replies[A] = lambda _: answer()
    first = made.next(None, **rules(2), limit={})["offset"]
    assert made.asked[-1][1]["limit"] == {}
    second = made.next(first, **rules(3))["offset"]
    assert (second["rules"]["next"], made.asked[-1][1]["limit"]) == (3, None)


def test_a_file_that_has_lost_rules_stops_the_batch(tmp_path: Path) -> None:
    file = ControlFile(tmp_path / "rules")
    send(file, None)
    pinned = PinnedRulesFile(str(file.path))
    with pytest.raises(AlignedError, match="planned 2"):
        pinned.add_rule_slices(None, {"log": file.log, "next": 2, "own": None}, [], None)


# -- time of rows that are left out ----------------------------------------------------------------

TIMED = pa.schema([("n", pa.int64()), ("t", pa.timestamp("us", "UTC"))])


@pytest.fixture
def export(tmp_path: Path) -> Iterator[Exporter]:
    with exporter(tmp_path) as one:
        one.route()
        yield one


def test_an_exporter_tells_the_time_of_rows_that_it_does_not_send(
    export: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def block(*rows: tuple[int, int | None]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([{"n": n, "t": t} for n, t in rows], schema=TIMED)

    ddl = "`n` bigint, `t` timestamp"
    batches = [block((1, 5), (2, 9), (3, 4)), block((1, 6), (9, 7)), block((1, None))]
    export.publish(0, *batches, ddl=ddl)
    export.plan(filter_="n == 1")
    blocks, reads = BlockReader(), list[Any]()
    stream = export.export.state.streams[export.stream]
    read_ = stream.read

    def counted(_: Any, block: Any, ddl: str) -> Any:
        reads.append(block)
        return read_(block, ddl)

    monkeypatch.setattr(type(stream), "read", counted)

    def latest(filter_: str | None, asked: bool = True) -> list[Any]:
        read = ReadRequest(
            reader="reader", stream=export.stream, pieces=((0, 0, 3),), filter="n == 1",
            columns=None, latest=LatestTimeRequest(column="t", filter=filter_) if asked else None,
        )  # fmt: skip
        return [
            reported.get("latest", "-")
            for _, reported in blocks.read_batches(export.export.plans, read)
        ]

    assert latest(None) == [9, 7, None]
    assert len(reads) == 3
    assert latest("n < 3") == [9, 6, None]
    assert latest(None) == [9, 7, None]
    assert latest(None, asked=False) == ["-", "-", "-"]
    assert len(reads) == 6


def test_time_is_that_of_all_rows_if_the_ticket_asks_for_it() -> None:
    packing = Packing(columns="n bigint, t timestamp", event_time="t")
    batch = pa.RecordBatch.from_pylist([{"n": 1, "t": 5}], schema=TIMED)
    asked: Ticket = {"part": 0, "before": [0], "latest": {"column": "t", "filter": None}}
    cases: list[tuple[Ticket, BlockMetadata, int | None]] = [
        ({"part": 0, "before": [0]}, {"epoch": 1}, 5),
        (asked, {"epoch": 1, "latest": 9}, 9),
        (asked, {"epoch": 1, "latest": None}, None),
    ]
    for ticket, reported, time in cases:
        packer = ImportPacker(packing, ticket)
        packer.note_time(batch, reported)
        (end,) = packer.finish()
        (found,) = end.column("event_time").cast(pa.int64()).to_pylist()
        assert found == time
    with pytest.raises(NotTimedError, match="push_down"):
        ImportPacker(packing, asked).note_time(batch, {"epoch": 1})
