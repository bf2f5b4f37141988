"""A stream with side inputs: the steps that combine main rows with their views.

>>> sides = trades.with_side_inputs(rates=side_map(rates, key="currency"))  # doctest: +SKIP
>>> sides.enrich("rates", on="currency").to_stream()  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from pe_agent.aligned.timeout_ticks import TickPlan, tick_seconds, tick_stream
from pe_agent.datasource.schemas import spark_to_arrow
from pe_agent.side.metrics_reporter import SideMetricsReporter
from pe_agent.side.operator import FIGURES_SCHEMA, METRICS_OUTPUT, SideOperatorFactory
from pe_agent.side.tables.cache import cached_tables_for
from pe_agent.side.tables.store import Table
from pe_agent.streams.operator_stream import OperatorStream, control_aware
from pe_agent.streams.side_input import Given
from pe_agent.streams.stream import Stream
from streambroker_core.model.durations import Duration
from streambroker_core.side import Enrich, SideInput, SideJoin, Views, fixed, sliding
from streambroker_core.side.definition import MAIN
from streambroker_core.side.describe import explain
from streambroker_core.side.errors import SideDefinitionError
from streambroker_core.side.join.enrich import enriched_schema
from streambroker_core.side.join.joiner import Function, Result
from streambroker_core.side.operator import ERROR_SCHEMA, ERRORS, LATE, OUT
from streambroker_core.side.state.layout import build_layout

if TYPE_CHECKING:
    from pe_agent.datasource.schemas import Columns
    from pe_agent.streams.stateless_side_inputs import StatelessInputs

NAME: Final = "side_inputs"
_OPTIONS: Final = (
    "order",
    "event_time",
    "lateness",
    "max_waiting_rows",
    "max_waiting_bytes",
)

GroupFunction = Callable[[tuple[Any, ...], tuple[int, int], pa.RecordBatch, Views], Result]
"""Called with key, window, rows and views."""


@dataclass(frozen=True, kw_only=True)
class SideInputs:
    """A stream and its side inputs; made by ``Stream.with_side_inputs``.

    ``options``, ``window`` and ``enrich`` return a new object. A chain ends with ``to_stream``,
    ``map_batches``, ``join_view`` or ``apply``, which return the output ``out`` as a stream.
    ``late`` and ``errors`` are its other outputs. These methods take the settings of
    ``aligned.control_aware``.
    """

    main: Stream
    sources: Mapping[str, Given]
    enrichments: tuple[Enrich, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    # -- settings ----------------------------------------------------------------------------

    def options(self, **settings: Any) -> SideInputs:
        """Set how rows are ordered, and how many may wait.

        Args:
            settings: ``order``, ``event_time`` (of a stream behind an operator; else that of
                ``with_watermark``), ``lateness``, ``max_waiting_rows``, ``max_waiting_bytes``: as
                in ``SideJoin``.

        Raises:
            SideDefinitionError: there is no such option.
        """
        for name in settings:
            if name not in _OPTIONS:
                raise SideDefinitionError(
                    MAIN, f"{name} is not an option", f"there are: {', '.join(_OPTIONS)}"
                )
        return replace(self, settings={**self.settings, **settings})

    def window(self, size: Duration, slide: Duration | None = None) -> SideInputs:
        """Cut main rows into windows of event time.

        Args:
            size: seconds, or a duration such as ``10 seconds``.
            slide: from one window to the next; None for ``size``.
        """
        windows = fixed(size) if slide is None else sliding(size, slide)
        return replace(self, settings={**self.settings, "windows": windows})

    def enrich(
        self,
        name: str,
        *,
        on: str | Sequence[str] = (),
        columns: Sequence[str] = (),
        names: Mapping[str, str] | None = None,
        missing: Literal["null", "error", "wait"] | None = None,
        version: str | None = None,
    ) -> SideInputs:
        """Add columns of a side input to each main row.

        Args:
            name: the side input.
            on: main columns, in the order of its key; none for a singleton.
            columns: names of the values to add; none for all.
            names: other names for some of them.
            missing: a row without a value gets nulls, goes to ``errors``, or waits for its key.
                None: for a map or multimap that is a stream the row waits for ``timeout``, by
                default 60 s; then it gets nulls, and is also in ``late``. If the content is
                complete, as that of a table is, it gets nulls at once.
            version: name of a column for the version that the row was joined with.
        """
        one = Enrich(
            input=name,
            on=_as_tuple(on),
            columns=tuple(columns),
            names=tuple((names or {}).items()),
            missing=missing,
            version=version,
        )
        return replace(self, enrichments=(*self.enrichments, one))

    def stateless(self) -> StatelessInputs:
        """Join rows with tables in place: no state, no shuffle, no order, no waiting.

        For side inputs that are all tables. The ends of its chain are ``to_stream``,
        ``map_batches`` and ``join_view``; see ``StatelessInputs``.
        """
        from pe_agent.streams.stateless_side_inputs import StatelessInputs

        return StatelessInputs(sides=self)

    def explain(self) -> list[str]:
        """Return all settings that apply, defaults included, one sentence for each.

        Raises:
            SideDefinitionError: the definition could never work.
        """
        join, _ = self._define()
        return self._explain_join(join)

    def _explain_join(self, join: SideJoin) -> list[str]:
        lines = explain(build_layout(join).join)
        for name, given in self.sources.items():
            if isinstance(given.source, Table):
                lines.append(_describe_table(name, given.source))
        return lines

    # -- ends of a chain ---------------------------------------------------------------------

    def to_stream(self, *, figures: bool = False, **settings: Any) -> OperatorStream:
        """Return main rows with the added columns.

        Args:
            figures: add an output ``figures``: sizes and versions, and what rows wait for.
            settings: as for ``aligned.control_aware``: ``name``, ``buckets``, ``order_by`` …

        Raises:
            SideDefinitionError, AlignedError: the definition could never work; nothing was started.
        """
        return self._run(None, None, figures, settings)

    def map_batches(
        self,
        function: Function,
        schema: Columns,
        *,
        own_keys: bool = False,
        figures: bool = False,
        **settings: Any,
    ) -> OperatorStream:
        """Call a function on batches of main rows with their views.

        Args:
            function: takes an Arrow batch of main rows of one window, with the added columns, and
                views by name; returns batches, a table or nothing.
            schema: columns of the result.
            own_keys: the function reads maps only by the columns that ``enrich`` waits for, or not
                at all. Then rows that wait for many keys are released together. Otherwise keys are
                released one by one, because each row has to see the map as its key arrives.
            figures: as for ``to_stream``.
            settings: as for ``to_stream``.

        Raises:
            SideDefinitionError, AlignedError: as for ``to_stream``.
        """
        return self._run(
            OwnKeysFunction(function) if own_keys else function, schema, figures, settings
        )

    def apply(
        self,
        function: GroupFunction,
        schema: Columns,
        *,
        figures: bool = False,
        **settings: Any,
    ) -> OperatorStream:
        """Call a function once for each key and window, with all rows, when the window has passed.

        Args:
            function: takes the key's values, first instant and end of the window in microseconds,
                the rows, and the views.
            schema: columns of the result.
            figures: as for ``to_stream``.
            settings: as for ``to_stream``.

        Raises:
            SideDefinitionError, AlignedError: as for ``to_stream``; or main rows have no windows.
        """
        grouped = replace(self, settings={**self.settings, "grouped": True})
        return grouped._run(_GroupedFunction(function), schema, figures, settings)

    def join_view(
        self,
        view: str,
        /,
        *,
        on: str | Sequence[str],
        columns: Sequence[str] = (),
        how: Literal["left", "inner"] = "left",
        missing: Literal["null", "error", "wait"] | None = None,
        figures: bool = False,
        **settings: Any,
    ) -> OperatorStream:
        """Join main rows with a map or multimap: a row for each value of its key.

        Args:
            view: the side input.
            on: main columns, in the order of its key.
            columns: names of the values to add; none for all.
            how: a row whose key has no value gets nulls (``left``), or is left out (``inner``).
            missing: such a row first waits for its key, or does not, or goes to ``errors``; see
                ``enrich``.
            figures: as for ``to_stream``.
            settings: as for ``to_stream``.

        Raises:
            SideDefinitionError, AlignedError: as for ``to_stream``.
        """
        wait = Enrich(input=view, on=_as_tuple(on), missing=missing, only_wait=True)
        sides = replace(self, enrichments=(*self.enrichments, wait))
        join, _ = sides._define()
        join_rows, schema = build_row_joiner(join, view, on, columns, how)
        own = all(one.on == join_rows.on for one in join.waits(join.input(view)))
        return sides._run(
            OwnKeysFunction(join_rows) if own else join_rows, schema, figures, settings
        )

    # -- within ------------------------------------------------------------------------------

    def _define(self, *, stateless: bool = False) -> tuple[SideJoin, dict[str, Stream]]:
        streams: dict[str, Stream] = {}
        inputs: list[SideInput] = []
        for name, given in self.sources.items():
            stream = given.stream(name)
            inputs.append(given.define(name, stream))
            if stream is not None:
                streams[name] = stream
        options = dict(self.settings)
        if self.main.event_time is not None and not stateless:
            options.setdefault("event_time", self.main.event_time[0])
        join = SideJoin(
            schema=spark_to_arrow(self.main.schema()),
            inputs=tuple(inputs),
            enrich=self.enrichments,
            key=self.main.key,
            stateless=stateless,
            **options,
        )
        return join, streams

    def _run(
        self,
        function: Function | None,
        schema: Columns | None,
        emits_metrics: bool,
        settings: Mapping[str, Any],
    ) -> OperatorStream:
        join, streams = self._define()
        shape = build_layout(join)
        tables = self._tables()
        for side in join.inputs:
            if side.name in tables:
                tables[side.name].bind(side)
        make = SideOperatorFactory(
            shape=shape,
            function=function,
            tables=cached_tables_for(tables),
            emits_metrics=emits_metrics,
            reporter=self._metrics_reporter(streams, str(settings.get("name", NAME))),
        )
        schemas = {
            OUT: enriched_schema(join) if schema is None else schema,
            ERRORS: ERROR_SCHEMA,
            LATE: join.schema,
            **({METRICS_OUTPUT: FIGURES_SCHEMA} if emits_metrics else {}),
        }
        main = self._union_control(join, streams, tables)
        operator_settings: dict[str, Any] = {"name": NAME, "null_keys": True, **settings}
        return control_aware(make, {**streams, MAIN: main}, schemas=schemas, **operator_settings)

    def _tables(self) -> dict[str, Table]:
        every = ((name, given.source) for name, given in self.sources.items())
        return {name: source for name, source in every if isinstance(source, Table)}

    def _metrics_reporter(
        self, streams: Mapping[str, Stream], operator: str
    ) -> SideMetricsReporter | None:
        every = (self.main, *streams.values())
        job = next((one.job for one in every if one.job is not None), None)
        if job is None:
            return None
        job.queries.reports_running = True
        return SideMetricsReporter.for_job(job, operator)

    def _union_control(
        self, join: SideJoin, streams: Mapping[str, Stream], tables: Mapping[str, Table]
    ) -> Stream:
        """Return the main stream in union with the control of its tables, and ticks."""
        stores = {table.store.path: table.store for table in tables.values()}
        extra = [store.stream(self.main.spark) for store in stores.values()]
        candidates = [join.limit(one) for one in join.inputs]
        candidates += [one.idle_after for one in (self.main, *streams.values())]
        limits = [one for one in candidates if one is not None]
        if streams or limits:  # even without a limit: setting one later must not add a source
            seconds = tick_seconds(min(limits)) if limits else 0.0
            extra.append(tick_stream(self.main.spark, TickPlan(seconds=seconds, due=0)))
        return reduce(lambda one, other: one.union(other), extra, self.main)


@dataclass(frozen=True)
class _GroupedFunction:
    function: GroupFunction

    def __call__(self, batch: pa.RecordBatch, views: Views) -> Result:
        assert views.window is not None  # noqa: S101 - rows are grouped by windows
        return self.function(views.key, views.window, batch, views)


@dataclass(frozen=True)
class OwnKeysFunction:
    """Wrapper of a function that reads maps only by the keys for which rows wait."""

    function: Function
    own_keys: ClassVar[bool] = True

    def __call__(self, batch: pa.RecordBatch, views: Views) -> Result:
        """Call the function."""
        return self.function(batch, views)


@dataclass(frozen=True)
class RowJoiner:
    """Joins main rows with a map or multimap: each row once for each value of its key."""

    name: str
    on: tuple[str, ...]
    fields: tuple[str, ...]
    is_multimap: bool
    is_inner: bool

    def __call__(self, batch: pa.RecordBatch, views: Views) -> pa.RecordBatch:
        """Join a batch."""
        columns = (batch.column(name) for name in self.on)
        known, added = views[self.name].columns(*columns, names=self.fields)
        if self.is_multimap:
            rows, places = self._join_indices(added[0])
            batch = batch.take(rows)
            added = [one.flatten().take(places) for one in added]
        elif self.is_inner:
            batch, added = batch.filter(known), [one.filter(known) for one in added]
        for name, column in zip(self.fields, added, strict=True):
            batch = batch.append_column(name, column)
        return batch

    def _join_indices(self, lists: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Return the index of the main row of each joined row, and of its value or null."""
        rows = pc.cast(pc.list_parent_indices(lists), pa.int64())
        places = pa.array(range(len(rows)), pa.int64())
        if self.is_inner:
            return rows, places
        empty = pc.equal(pc.list_value_length(lists), 0)
        lacking = pc.cast(pc.indices_nonzero(empty), pa.int64())
        rows = pa.concat_arrays([rows, lacking])
        order = pc.sort_indices(rows)
        places = pa.concat_arrays([places, pa.nulls(len(lacking), pa.int64())])
        return rows.take(order), places.take(order)


def build_row_joiner(
    join: SideJoin,
    name: str,
    on: str | Sequence[str],
    columns: Sequence[str],
    how: str,
) -> tuple[RowJoiner, pa.Schema]:
    """Return the function that joins main rows with a side input, and the columns of its rows.

    Raises:
        SideDefinitionError: the join could never work.
    """
    side = join.input(name)
    # An enrichment with the same arguments runs the same checks.
    one = Enrich(input=name, on=_as_tuple(on), columns=tuple(columns))
    build_layout(replace(join, enrich=(*join.enrich, one)))
    if side.kind not in ("map", "multimap") or how not in ("left", "inner"):
        raise SideDefinitionError(
            name,
            f"a {side.kind} is joined as `{how}`",
            "use a map or a multimap, and left or inner; else enrich or map_batches",
        )
    fields = tuple(columns) or side.fields
    join_rows = RowJoiner(name, _as_tuple(on), fields, side.many, is_inner=how == "inner")
    added = [side.schema.field(one) for one in fields]
    return join_rows, pa.schema([*enriched_schema(join), *added])


def _as_tuple(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _describe_table(name: str, table: Table) -> str:
    when = "on request" if table.every is None else f"every {table.every:g} s"
    return f"`{name}` is table {table.name}, checked {when}; version {table.state().version} now."
