"""Joins main rows with whole static tables, without state, ordering or waiting.

For operators whose side inputs are all static tables. The caller chooses the version of each. A row
sees the same content as in an operator with state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa

from streambroker_core.side.definition import SideJoin
from streambroker_core.side.join.enrich import add_columns
from streambroker_core.side.join.function_calls import Function, call_function
from streambroker_core.side.join.views import Views, make_view
from streambroker_core.side.state.stores import Content


def build_views(join: SideJoin, versions: Mapping[str, tuple[str, Content]]) -> Views:
    """Return the views of the chosen versions (name, content) by side input."""
    views = {}
    for side in join.inputs:
        version, content = versions[side.name]
        views[side.name] = make_view(side, content, version)
    return Views(views, None)


def join_rows(
    join: SideJoin, function: Function | None, batch: pa.RecordBatch, views: Views
) -> Iterator[pa.RecordBatch]:
    """Yield the result of main rows joined with their views.

    The definition was checked, and the batch has exactly its columns. Without a function only
    columns are added.

    Raises:
        SideError: the function returned something other than rows.
    """
    for enrich in join.enrich:
        batch = add_columns(enrich, join.input(enrich.input), batch, views).batch
    yield from call_function(function, batch, views)
