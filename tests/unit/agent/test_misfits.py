"""Which streams a reader cannot read, as the exporter's agent tells it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from pe_agent.agent.exports.stream.export_stream import ExportStream
from pe_agent.agent.exports.stream.row_filter import schema_mismatch
from pe_agent.log.commit import Committer
from pe_agent.log.log import StreamLog
from support.agents.exports import IMPORT, bench, rows

DDL = "`line` bigint, `price` double"


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[ExportStream]:
    """A stream of two columns."""
    committer = Committer()
    stream = ExportStream(
        "s",
        log=StreamLog.open(tmp_path, committer=committer),
        query="q",
        ddl=DDL,
        schema=pa.schema([("line", pa.int64()), ("price", pa.float64())]),
        segment_bytes=1 << 20,
    )
    yield stream
    stream.log.close()
    committer.close()


@pytest.mark.parametrize(
    ("filter_", "columns", "schema"),
    [
        (None, None, None),
        ("price > 1.0", ("line",), "line bigint"),
        ("line == 1", ("price", "line"), "`price` double, `line` BIGINT NOT NULL"),
    ],
)
def test_a_reader_of_some_columns_with_equal_types_fits(
    stream: ExportStream, filter_: str | None, columns: tuple[str, ...] | None, schema: str | None
) -> None:
    assert schema_mismatch(stream, filter_, columns, schema) is None


@pytest.mark.parametrize(
    ("filter_", "columns", "schema", "why"),
    [
        (None, ("line", "prize"), None, "no column 'prize'"),
        (None, ("line",), "line string", "is bigint in the export, but string is wanted"),
        ("prize > 1.0", None, None, "did you mean `price`"),
        ('line == "1"', None, None, "filter does not fit"),
    ],
)
def test_a_reader_that_does_not_fit_learns_why(
    stream: ExportStream,
    filter_: str | None,
    columns: tuple[str, ...] | None,
    schema: str | None,
    why: str,
) -> None:
    reported = schema_mismatch(stream, filter_, columns, schema)

    assert reported is not None
    assert why in reported


def test_a_stream_that_does_not_fit_holds_a_reader_up_until_it_has_no_more_for_it(
    tmp_path: Path,
) -> None:
    with bench(tmp_path) as made:
        made.export.set_routes({IMPORT: "wait", "other": "wait"})
        made.publish(0, rows(0, 1))
        first = made.stream
        made.plan(reader="behind")
        made.plan({first: 1})
        assert made.export.plans.blocks_reader("reader", first), "it goes on"
        made.export.publisher.finish(query="q", run="r")
        assert not made.export.plans.blocks_reader("reader", first)
        assert made.export.plans.blocks_reader("behind", first), "it has an epoch for that one"
        made.export.set_schema_policy("none")
        made.publish(1, rows(1, 1), ddl="`n` string, `name` string")
        second = made.stream
        assert not made.export.plans.blocks_reader("reader", first), (
            "the other one is its successor"
        )
        assert made.export.plans.blocks_reader("reader", second)
        made.export.publisher.finish(query="q", run="r")
        assert made.export.plans.blocks_reader("reader", second)
        made.plan({first: 1, second: 1})
        assert not made.export.plans.blocks_reader("reader", second)
        assert not made.export.plans.blocks_reader("reader", "forgotten")
