"""Policies at the exporter's agent: no row, column or value leaves that they withhold."""

from __future__ import annotations

import base64
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pe_agent.agent.exports.batch_reads import SchemaMismatchError, plan_batch_read
from pe_agent.agent.exports.peek import peek
from pe_agent.agent.exports.stream.block_reader import (
    BlockReader,
    LatestTimeRequest,
    ReadRequest,
)
from pe_agent.transport.flight_errors import AgentUnreachableError
from streambroker_core.ledger.plan import PlanRequest
from streambroker_core.model.policies import PolicyDeniedError
from streambroker_core.wire.agent_rpc.job import ExportPeek
from streambroker_core.wire.encoding.fields import Fields
from streambroker_core.wire.encoding.policies import read_policies
from support.agents.exports import READER, Bench, bench, rows

SCHEMA = pa.schema(
    [("n", pa.int64()), ("name", pa.string()), ("secret", pa.string()), ("at", pa.timestamp("us"))]
)
DDL = "`n` bigint, `name` string, `secret` string, `at` timestamp_ntz"
TEST: dict[str, Any] = {
    f"n {sign} {k}": (lambda n, sign=sign, k=k: n > k if sign == ">" else n < k)
    for sign in "<>"
    for k in range(0, 13, 3)
}
"""Filters, and what they say of a row ``n``."""
CONSTANTS = {"n": "7", "name": "x", "secret": "y", "at": "2020-01-01T00:00:00"}
Row = Mapping[str, Any]
COUNTER, BLOCKS = count(), BlockReader()


def table(first: int, count: int) -> pa.RecordBatch:
    numbers = range(first, first + count)
    return pa.RecordBatch.from_pydict(
        {
            "n": list(numbers),
            "name": [f"name {n % 3}" if n % 5 else None for n in numbers],
            "secret": [f"secret {n}" for n in numbers],
            "at": list(numbers),
        },
        schema=SCHEMA,
    )


DATA = table(0, 6).to_pylist() + table(6, 6).to_pylist()


@st.composite
def policies(draw: st.DrawFn) -> dict[str, Any]:
    one = st.fixed_dictionaries(
        {},
        optional={
            "for": st.fixed_dictionaries(
                {},
                optional={
                    "namespace": st.sampled_from(["default", "other"]),
                    "job": st.sampled_from(["alerts", "else"]),
                },
            ),
            "filter": st.sampled_from(sorted(TEST)),
            "columns": st.lists(st.sampled_from(SCHEMA.names), unique=True),
            "mask": st.lists(masks()).map(one_for_each_column),
        },
    ).filter(lambda one: {"filter", "columns", "mask"} & one.keys())
    return {
        "policies": draw(st.lists(one, max_size=4)),
        "policyDefault": draw(st.sampled_from(["allow", "deny"])),
    }


def one_for_each_column(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({mask["column"]: mask for mask in found}.values())


def masks() -> st.SearchStrategy[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"column": n, "with": "null"} for n in SCHEMA.names]
    found += [{"column": n, "with": "constant", "value": v} for n, v in CONSTANTS.items()]
    found += [{"column": "name", "with": "hash"}, {"column": "secret", "with": "hash"}]
    return st.sampled_from(found)


def shown(spec: Mapping[str, Any], who: tuple[str, str] | None) -> list[Row] | None:
    """Return what may leave, by a plain reading of the rules; None if nothing may be asked."""
    applying = [
        one
        for one in spec["policies"]
        if who is None
        or all(
            one.get("for", {}).get(key, value) == value
            for key, value in zip(("namespace", "job"), who, strict=True)
        )
    ]
    if not applying:
        return None if spec["policyDefault"] == "deny" else DATA
    names = [n for n in SCHEMA.names if all(n in p.get("columns", SCHEMA.names) for p in applying)]
    found = [r for r in DATA if all(TEST[p["filter"]](r["n"]) for p in applying if "filter" in p)]
    asked = {n: [m for p in applying for m in p.get("mask", ()) if m["column"] == n] for n in names}
    return [{n: _masked(r[n], n, asked[n]) for n in names} for r in found]


def _masked(value: Any, name: str, asked: Sequence[Mapping[str, Any]]) -> Any:
    kinds = {m["with"] for m in asked}
    if "null" in kinds:
        return None
    if "constant" in kinds:
        at = pa.scalar(CONSTANTS[name]).cast(SCHEMA.field(name).type)
        return at.as_py()
    return sha256(value.encode()).hexdigest() if "hash" in kinds and value is not None else value


def apply(made: Bench, spec: Mapping[str, Any]) -> None:
    made.export.policies.apply(read_policies(Fields(spec), None))


@pytest.fixture(scope="module")
def shared() -> Iterator[Bench]:
    with tempfile.TemporaryDirectory() as folder, bench(Path(folder)) as made:
        made.route()
        for batch in range(2):
            made.publish(batch, table(6 * batch, 3), table(6 * batch + 3, 3), ddl=DDL)
        yield made


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path) as one:
        one.route()
        one.publish(0, rows(0, 4), rows(4, 4))
        yield one


def sent(made: Bench, reader: str, columns: Sequence[str] | None, **more: Any) -> list[Row]:
    asked = ReadRequest(
        reader=reader,
        stream=made.stream,
        pieces=tuple((n, 0, 2) for n in range(2)),
        columns=None if columns is None else tuple(columns),
        **{"filter": None, **more},
    )
    batches = [b for b, _ in BLOCKS.read_batches(made.export.plans, asked)]
    return [row for b in batches for row in (b.to_pylist() or [{}] * b.num_rows)]


@settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    spec=policies(),
    who=st.tuples(st.sampled_from(["default", "other"]), st.sampled_from(["alerts", "else"])),
    filter_=st.none() | st.sampled_from([*sorted(TEST), 'secret == "secret 3"', "!has(name)"]),
    columns=st.none() | st.lists(st.sampled_from(SCHEMA.names), unique=True, min_size=1),
    archived=st.booleans(),
)
def test_no_row_column_or_value_leaves_that_a_policy_withholds(
    shared: Bench,
    spec: dict[str, Any],
    who: tuple[str, str],
    filter_: str | None,
    columns: list[str] | None,
    archived: bool,
) -> None:
    apply(shared, spec)
    import_, reader = f"{who[0]}/{who[1]}/0/trades", f"reader {next(COUNTER)}"
    allowed = shown(spec, who)
    asked: dict[str, Any] = {"reader": reader, "import_": import_, "call": None}
    try:
        if archived:
            request = PlanRequest(**{**READER, **asked, "positions": {}, "once": True})
            plan_batch_read(
                shared.export, request, "latest", filter_=filter_, columns=columns, schema=None
            )
        else:
            left = shared.export.policies.of_import(import_)
            if shared.export.plans.schema_mismatches(filter_, columns, None, left):
                raise SchemaMismatchError("the stream is left out of the plan")
            shared.plan(filter_=filter_, columns=columns, **asked)
        found = sent(shared, reader, columns, filter=filter_)
    except (PolicyDeniedError, SchemaMismatchError) as error:
        reason = str(error)
        names = SCHEMA.names if not allowed else list(allowed[0])
        used = set(re.findall("[a-z]+", (filter_ or "").partition("==")[0])) & {*SCHEMA.names}
        wanted = {*(columns or ())} | used
        assert allowed is None or not allowed or not wanted.issubset(names), reason
        return
    assert allowed is not None
    kept = [r for r in allowed if passes(r, filter_)]
    assert found == [{n: r[n] for n in columns or r} for r in kept]


def passes(row: Row, filter_: str | None) -> bool:
    if filter_ is None:
        return True
    if filter_ in TEST:
        return row["n"] is not None and bool(TEST[filter_](row["n"]))
    return row["name"] is None if "name" in filter_ else row["secret"] == "secret 3"


@settings(deadline=None, max_examples=100)
@given(spec=policies())
def test_a_look_shows_what_all_policies_together_leave(shared: Bench, spec: dict[str, Any]) -> None:
    apply(shared, spec)
    allowed = shown(spec, None)
    request = ExportPeek(export="trades", limit=100, arrow=True)
    try:
        answer = peek(shared.export, request)
    except PolicyDeniedError:
        assert allowed is None
        return
    with pa.ipc.open_stream(base64.b64decode(answer["arrow"])) as stream:
        found = stream.read_all()
    assert allowed is not None
    if found.num_columns:
        assert found.to_pylist() == allowed
    assert (answer.get("policies") is None) == (not spec["policies"])


def restrict(made: Bench, *items: Mapping[str, Any], default: str = "allow") -> None:
    apply(made, {"policies": list(items), "policyDefault": default})


def numbers(made: Bench, asked: ReadRequest) -> list[int]:
    found = BlockReader().read_batches(made.export.plans, asked)
    return [n for b, _ in found for n in b.column("n").to_pylist()]


def read(made: Bench, **more: Any) -> ReadRequest:
    return ReadRequest(
        **{
            "reader": "reader",
            "stream": made.stream,
            "pieces": ((0, 0, 2),),
            "filter": None,
            "columns": None,
            **more,
        }
    )


def test_a_tighter_policy_counts_for_what_is_planned_and_a_looser_one_does_not(
    made: Bench,
) -> None:
    restrict(made, {"filter": "n > 2"})
    made.plan()
    assert numbers(made, read(made)) == [3, 4, 5, 6, 7]
    restrict(made, {"filter": "n > 5"})
    assert numbers(made, read(made)) == [6, 7]
    for looser in ([{"filter": "n > 0"}], []):
        restrict(made, *looser)
        assert numbers(made, read(made)) == [3, 4, 5, 6, 7]
    made.reopen()
    made.route()
    made.replan({made.stream: (0, 1)})
    assert numbers(made, read(made)) == [3, 4, 5, 6, 7], "the plan keeps the policies it had"
    made.publish(1, rows(8, 2))
    made.plan({made.stream: 1})
    assert numbers(made, read(made, pieces=((1, 0, 1),))) == [8, 9]


def test_a_change_in_the_middle_of_a_read_stops_it_before_the_next_block(made: Bench) -> None:
    made.plan()
    reading = BlockReader().read_batches(made.export.plans, read(made))
    assert next(reading)[0].num_rows == 4
    restrict(made, {"mask": [{"column": "n", "with": "null"}]})
    with pytest.raises(AgentUnreachableError, match="policies of the export have changed"):
        next(reading)


def test_a_planned_batch_whose_column_is_withheld_stops_and_names_the_policy(
    made: Bench,
) -> None:
    made.plan(columns=["name"])
    restrict(made, {"columns": ["n", "name"]}, {"columns": ["n"]})
    with pytest.raises(PolicyDeniedError, match=r"policies\[0\] and policies\[1\].*`name`"):
        numbers(made, read(made, columns=("name",)))
    with pytest.raises(PolicyDeniedError, match=r"planned batch cannot be read.*no column 'name'"):
        made.replan({made.stream: (0, 1)}, columns=["name"])


def test_nothing_leaves_under_deny_without_a_policy_for_the_import(made: Bench) -> None:
    made.plan()
    restrict(made, {"for": {"job": "other"}, "columns": ["n"]}, default="deny")
    for ask in (lambda: numbers(made, read(made)), lambda: made.plan({made.stream: 0})):
        with pytest.raises(PolicyDeniedError, match="no policy of the export is for default/ale"):
            ask()


def test_a_read_under_policies_is_never_direct(made: Bench) -> None:
    made.plan()
    restrict(made, {"for": {"job": "alerts"}, "columns": ["n", "name"]})
    assert made.replan({made.stream: (0, 1)}).direct == {}
    assert BlockReader().find_objects(made.export.plans, read(made)) is None


def test_the_latest_time_is_that_of_rows_that_may_be_read(shared: Bench) -> None:
    latest = LatestTimeRequest(column="at", filter=None)
    asked = read(shared, reader="clock", pieces=((0, 0, 2),), latest=latest)
    for policies_, times in (([], [2, 5]), ([{"filter": "n < 4"}], [2, 3])):
        restrict(shared, *policies_)
        shared.plan(reader="clock")
        found = [meta["latest"] for _, meta in BLOCKS.read_batches(shared.export.plans, asked)]
        assert found == times
    restrict(shared, {"columns": ["n"]})
    with pytest.raises(PolicyDeniedError, match="`at`"):
        next(BlockReader().read_batches(shared.export.plans, asked))


def test_rows_that_a_policy_leaves_keep_their_numbers(made: Bench) -> None:
    restrict(made, {"filter": "n > 2"})
    made.plan(filter_="n != 5")
    for filter_, expected in ((None, [3, 0, 1, 2, 3]), ("n != 5", [3, 0, 2, 3])):
        made.plan(filter_=filter_)
        asked = read(made, numbered=True, filter=filter_)
        found = BlockReader().read_batches(made.export.plans, asked)
        assert [n for b, _ in found for n in b.column("_seq").to_pylist()] == expected


def test_withheld_rows_count_as_filtered(made: Bench) -> None:
    restrict(made, {"filter": "n > 2"})
    made.plan()
    made.plan({made.stream: 1})
    counts = made.export.status()["readers"]["reader"]
    assert (counts["delivered"], counts["filtered"]) == (5, 3)


def test_policies_hold_after_a_restart_without_a_view(made: Bench) -> None:
    restrict(made, {"filter": "n > 6"})
    made.plan()
    made.reopen()
    made.plan(reader="another")
    for reader in ("reader", "another"):
        assert numbers(made, read(made, reader=reader)) == [7]


@pytest.mark.parametrize(
    "policy",
    [
        {"filter": "price > 2"},
        {"mask": [{"column": "n", "with": "hash"}]},
        {"mask": [{"column": "n", "with": "constant", "value": "x"}]},
    ],
)
def test_a_policy_that_does_not_fit_the_rows_gives_none(
    made: Bench, policy: dict[str, Any]
) -> None:
    made.plan()
    restrict(made, policy)
    with pytest.raises(PolicyDeniedError, match=r"policies\[0\] of the export do not fit stream"):
        numbers(made, read(made))
