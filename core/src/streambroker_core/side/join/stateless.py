"""Main rows that meet whole tables, and nothing else: no state, no order, nothing waits.

For an operator whose side inputs are all static tables. Somebody else says which version of each
holds; what a row sees of it is what it sees in an operator with state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa

from streambroker_core.side.definition import SideJoin
from streambroker_core.side.join.enrich import add_columns
from streambroker_core.side.join.joiner import Function, iter_batches
from streambroker_core.side.join.views import Views, make_view
from streambroker_core.side.state.input_state import Content


def build_views(join: SideJoin, versions: Mapping[str, tuple[str, Content]]) -> Views:
    """Return what rows see.

    Args:
        join: the definition.
        versions: name and content of the version that holds, of each side input.
    """
    found = {}
    for side in join.inputs:
        version, content = versions[side.name]
        found[side.name] = make_view(side, content, version)
    return Views(found, None)


def join_rows(
    join: SideJoin, function: Function | None, batch: pa.RecordBatch, views: Views
) -> Iterator[pa.RecordBatch]:
    """Give what becomes of main rows that meet their views.

    Args:
        join: the definition, checked.
        function: called after columns were added; None for enriching alone.
        batch: main rows, with exactly the columns of the definition.
        views: what they see.

    Raises:
        SideError: the function gave something else than rows.
    """
    for enrich in join.enrich:
        batch = add_columns(enrich, join.input(enrich.input), batch, views).batch
    if not batch.num_rows:
        return
    for rows in iter_batches(batch if function is None else function(batch, views)):
        if rows.num_rows:
            yield rows
