"""Rows that a task writes as objects, where they do not fit the stream."""

from __future__ import annotations

import base64
from typing import Any

import pyarrow as pa
import pytest

from pe_agent.transport.rows import object_writer as writer
from pe_agent.transport.rows.object_writer import ObjectWriter, RowsUnfitError
from streambroker_core.wire.agent_rpc.publisher import UploadTarget

SCHEMA = pa.schema([("n", pa.int32()), ("name", pa.string())])


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> ObjectWriter:
    """A writer whose agent has answered with a URL; nothing is sent."""
    arrow = base64.b64encode(SCHEMA.serialize()).decode()
    target = UploadTarget(stream="s", key="k", url="file:///none", arrow=arrow)
    monkeypatch.setattr(writer, "send", lambda *_: target)
    request: Any = None
    return ObjectWriter(request, request, 0.0)


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ({"n": [1], "other": ["a"]}, "'other'"),
        ({"name": ["a"], "n": [1]}, "order differs"),
        ({"n": ["text"], "name": ["a"]}, "column 'n'"),
        ({"n": [1 << 40], "name": ["a"]}, "column 'n'"),
    ],
)
def test_rows_that_do_not_fit_are_refused_with_the_column(
    objects: ObjectWriter, rows: dict[str, Any], named: str
) -> None:
    with pytest.raises(RowsUnfitError, match=f"{named}.*restart it to change those"):
        objects.write(pa.RecordBatch.from_pydict(rows))


def test_rows_of_wider_types_are_converted(objects: ObjectWriter) -> None:
    objects.write(pa.RecordBatch.from_pydict({"n": [1], "name": ["a"]}))  # a bigint
