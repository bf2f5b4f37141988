"""Side inputs that are all tables, met by main rows where they are: one step without state.

>>> sides = trades.with_side_inputs(rates=side_map(table, key="currency"))  # doctest: +SKIP
>>> sides.stateless().enrich("rates", on="currency").to_stream().to_df()  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from pe_agent.aligned.runtime.hosting import parse_columns
from pe_agent.side.map_partitions import PartitionJoiner
from pe_agent.side.tables.cache import cached_tables_for
from pe_agent.streams.side_inputs import NAME, SideInputs, build_row_joiner
from pe_agent.streams.stream import Stream
from streambroker_core.side.definition import MAIN, SideJoin
from streambroker_core.side.errors import SideDefinitionError
from streambroker_core.side.join.enrich import enriched_schema
from streambroker_core.side.join.joiner import Function
from streambroker_core.side.state.layout import build_layout
from streambroker_core.side.validate import needs_state

if TYPE_CHECKING:
    from pe_agent.datasource.schemas import Columns


@dataclass(frozen=True, kw_only=True)
class StatelessInputs:
    """A stream and the tables that its rows meet; made by ``SideInputs.stateless``.

    Rows are mapped in the tasks that have them. A row sees what it would see in an operator with
    state, null keys and defaults included. All tasks of a micro-batch see one version of each
    table, the newest when the first row met it; so does each replay of the micro-batch, whatever
    has become of the table. Control tuples of the main stream keep their places; ``SideRefresh``
    and ``SideVersion`` among them go on and do nothing here.

    There are no windows, no order, no waiting, no output ``errors`` or ``late``: what needs them
    is refused. A checkpoint has no state of it, and cannot be that of a query that has.

    Attributes:
        sides: the definition; what is not for rows without state is refused at the end of a chain.
    """

    sides: SideInputs

    def enrich(
        self,
        name: str,
        *,
        on: str | Sequence[str] = (),
        columns: Sequence[str] = (),
        names: Mapping[str, str] | None = None,
        missing: Literal["null", "error", "wait"] | None = None,
        version: str | None = None,
    ) -> StatelessInputs:
        """Add columns of a table to each main row.

        Args:
            name: the side input.
            on: main columns, in the order of its key; none for a singleton.
            columns: which of its values; none for all.
            names: other names for some of them.
            missing: a row without a value gets nulls, or the default; others are refused.
            version: a column for the version that the row has met.
        """
        made = self.sides.enrich(
            name, on=on, columns=columns, names=names, missing=missing, version=version
        )
        return replace(self, sides=made)

    def explain(self) -> list[str]:
        """Return all that holds, defaults included, one sentence for each thing.

        Raises:
            SideDefinitionError: it could never work.
        """
        return self.sides._explain_join(self._define())

    # -- ends of a chain ---------------------------------------------------------------------

    def to_stream(self, *, name: str = NAME, **settings: Any) -> Stream:
        """Return main rows with the columns that were added.

        Args:
            name: under which the agent of the job is told sizes and versions.
            settings: none; those of an operator with state are refused.

        Raises:
            SideDefinitionError: it could never work; nothing was started.
        """
        return self._run(None, None, name, settings)

    def map_batches(
        self, function: Function, schema: Columns, *, name: str = NAME, **settings: Any
    ) -> Stream:
        """Call a function on batches of main rows with their views.

        Args:
            function: takes an Arrow batch of main rows, with the columns that were added, and views
                by name; returns batches, a table or nothing.
            schema: columns of what it returns.
            name: as for ``to_stream``.
            settings: as there.

        Raises:
            SideDefinitionError, AlignedError: as there.
        """
        return self._run(function, schema, name, settings)

    def join_view(
        self,
        view: str,
        /,
        *,
        on: str | Sequence[str],
        columns: Sequence[str] = (),
        how: Literal["left", "inner"] = "left",
        name: str = NAME,
        **settings: Any,
    ) -> Stream:
        """Join main rows with a map or multimap: a row for each value of its key.

        Args:
            view: the side input.
            on: main columns, in the order of its key.
            columns: which of its values; none for all.
            how: a row whose key has no value gets nulls, or is left out.
            name: as for ``to_stream``.
            settings: as there.

        Raises:
            SideDefinitionError, AlignedError: as there.
        """
        join_rows, schema = build_row_joiner(self._define(), view, on, columns, how)
        return self._run(join_rows, schema, name, settings)

    def window(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse windows.

        Raises:
            SideDefinitionError: always.
        """
        raise _stateless_error("window cuts rows that are kept in state", "leave it out")

    def apply(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse groups of rows.

        Raises:
            SideDefinitionError: always.
        """
        raise _stateless_error(
            "apply needs all rows of a window, kept in state", "take map_batches"
        )

    def options(self, **settings: Any) -> NoReturn:
        """Refuse options: they say how rows wait, and in which order.

        Raises:
            SideDefinitionError: always.
        """
        raise _stateless_error(
            f"{_first_name(settings)} is for rows that wait", "leave options out"
        )

    # -- within ------------------------------------------------------------------------------

    def _define(self) -> SideJoin:
        return self.sides._define(stateless=True)[0]

    def _run(
        self,
        function: Function | None,
        schema: Columns | None,
        name: str,
        settings: Mapping[str, Any],
    ) -> Stream:
        if settings:
            raise _stateless_error(
                f"{_first_name(settings)} is a setting of an operator with state", "leave it out"
            )
        join = self._define()
        build_layout(join)
        made = parse_columns(enriched_schema(join) if schema is None else schema)
        tables = self.sides._tables()
        for side in join.inputs:
            tables[side.name].bind_stateless(side)
        meeting = PartitionJoiner(
            join=join,
            function=function,
            tables=cached_tables_for(tables),
            reporter=self.sides._metrics_reporter({}, name),
        )
        return self.sides.main.map_batches(meeting, made)


def _first_name(settings: Mapping[str, Any]) -> str:
    return next(iter(settings), "an option")


def _stateless_error(problem: str, remedy: str) -> SideDefinitionError:
    return SideDefinitionError(MAIN, *needs_state(problem, remedy))
