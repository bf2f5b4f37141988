"""Side inputs that are all tables, joined with main rows in place: one step without state.

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
    """A stream and the tables that its rows are joined with; made by ``SideInputs.stateless``.

    - Rows are mapped in the tasks that have them. A row sees what it would see in an operator with
      state, null keys and defaults included.
    - All tasks of a micro-batch see one version of each table: the newest when its first row is
      joined. Each replay of the micro-batch sees the same version, whatever became of the table.
    - Control tuples of the main stream keep their places; ``SideRefresh`` and ``SideVersion`` pass
      without effect.
    - There are no windows, no order, no waiting, no output ``errors`` or ``late``: what needs them
      is refused.
    - Its checkpoint has no state, and cannot be shared with a query that has state.

    Attributes:
        sides: the definition; what needs state is refused at the end of a chain.
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
            columns: names of the values to add; none for all.
            names: other names for some of them.
            missing: a row without a value gets nulls, or the default; others are refused.
            version: name of a column for the version that the row was joined with.
        """
        made = self.sides.enrich(
            name, on=on, columns=columns, names=names, missing=missing, version=version
        )
        return replace(self, sides=made)

    def explain(self) -> list[str]:
        """Return all settings that apply, defaults included, one sentence for each.

        Raises:
            SideDefinitionError: the definition could never work.
        """
        return self.sides._explain_join(self._define())

    # -- ends of a chain ---------------------------------------------------------------------

    def to_stream(self, *, name: str = NAME, **settings: Any) -> Stream:
        """Return main rows with the added columns.

        Args:
            name: name under which sizes and versions are reported to the job's agent.
            settings: none; those of an operator with state are refused.

        Raises:
            SideDefinitionError: the definition could never work; nothing was started.
        """
        return self._run(None, None, name, settings)

    def map_batches(
        self, function: Function, schema: Columns, *, name: str = NAME, **settings: Any
    ) -> Stream:
        """Call a function on batches of main rows with their views.

        Args:
            function: takes an Arrow batch of main rows, with the added columns, and views by name;
                returns batches, a table or nothing.
            schema: columns of the result.
            name: as for ``to_stream``.
            settings: as for ``to_stream``.

        Raises:
            SideDefinitionError, AlignedError: as for ``to_stream``.
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
            columns: names of the values to add; none for all.
            how: a row whose key has no value gets nulls (``left``), or is left out (``inner``).
            name: as for ``to_stream``.
            settings: as for ``to_stream``.

        Raises:
            SideDefinitionError, AlignedError: as for ``to_stream``.
        """
        join_rows, schema = build_row_joiner(self._define(), view, on, columns, how)
        return self._run(join_rows, schema, name, settings)

    def window(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse windows: always raises SideDefinitionError."""
        raise _stateless_error("window groups rows that are kept in state", "leave it out")

    def apply(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse groups of rows: always raises SideDefinitionError."""
        raise _stateless_error(
            "apply needs all rows of a window, kept in state", "take map_batches"
        )

    def options(self, **settings: Any) -> NoReturn:
        """Refuse options, which set how rows wait: always raises SideDefinitionError."""
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
        joiner = PartitionJoiner(
            join=join,
            function=function,
            tables=cached_tables_for(tables),
            reporter=self.sides._metrics_reporter({}, name),
        )
        return self.sides.main.map_batches(joiner, made)


def _first_name(settings: Mapping[str, Any]) -> str:
    return next(iter(settings), "an option")


def _stateless_error(problem: str, remedy: str) -> SideDefinitionError:
    return SideDefinitionError(MAIN, *needs_state(problem, remedy))
