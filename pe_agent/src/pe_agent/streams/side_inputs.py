"""A stream with side inputs: the steps that combine main rows with their views.

>>> sides = trades.join_side(rates=side_map(rates, key="currency"))  # doctest: +SKIP
>>> sides.enrich("rates", on="currency").to_stream()  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NoReturn, Protocol, TypeVar

from pe_agent.aligned.operator_plan import plan_operator
from pe_agent.aligned.options import OperatorOptions, with_old_settings
from pe_agent.aligned.plan import StreamPlan
from pe_agent.aligned.row_steps import map_batches
from pe_agent.aligned.runtime.hosting import parse_columns
from pe_agent.aligned.timeout_ticks import TickPlan, tick_seconds, tick_source_plan
from pe_agent.datasource.schemas import spark_to_arrow
from pe_agent.job.arguments import Missing
from pe_agent.side.map_partitions import PartitionJoiner
from pe_agent.side.metrics_reporter import SideMetricsReporter
from pe_agent.side.operator import METRICS_OUTPUT, METRICS_SCHEMA, SideOperatorFactory
from pe_agent.side.row_functions import (
    GroupedFunction,
    GroupFunction,
    OwnKeysFunction,
    as_tuple,
    build_row_joiner,
)
from pe_agent.side.tables.cache import cached_tables_for
from pe_agent.side.tables.store import Table
from pe_agent.streams.side_input import Given, check_kinds
from streambroker_core.model.durations import FORMS, Duration, in_microseconds
from streambroker_core.side import Enrich, SideInput, SideJoin, fixed, sliding
from streambroker_core.side.definition import MAIN
from streambroker_core.side.describe import explain
from streambroker_core.side.errors import SideDefinitionError
from streambroker_core.side.join.enrich import enriched_schema
from streambroker_core.side.join.function_calls import Function
from streambroker_core.side.operator import ERROR_SCHEMA, ERRORS, LATE, OUT
from streambroker_core.side.state.layout import build_layout
from streambroker_core.side.validate import needs_state

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pe_agent.datasource.schemas import Columns

NAME: Final = "side_inputs"
_CHOSEN: Final = (
    "This was chosen because all side inputs are tables. Other outputs than `out`, and any option"
    " or window, take an operator with state."
)
_OPTIONS: Final = (
    "order",
    "event_time",
    "lateness",
    "max_waiting_rows",
    "max_waiting_bytes",
)


class _Rows(Protocol):
    def to_df(self) -> DataFrame: ...


Rows = TypeVar("Rows", bound=_Rows)
Made = TypeVar("Made", bound=_Rows)


@dataclass(frozen=True, kw_only=True)
class SideInputs(Generic[Rows, Made]):
    """A stream and its side inputs; made by ``Stream.join_side``.

    ``options``, ``window`` and ``enrich`` return a new object. A chain ends with ``to_df`` or with
    ``to_stream``, ``map_batches``, ``join_view`` or ``apply``, which return the output ``out`` as a
    stream. ``late`` and ``errors`` are its other outputs.

    Where all side inputs are tables and nothing that was chosen needs state, the rows are joined
    as by ``stateless``, and only other outputs take an operator with state.
    """

    main: StreamPlan
    sources: Mapping[str, Given]
    make_rows: Callable[[StreamPlan], Rows]
    make_operator: Callable[..., Made]
    enrichments: tuple[Enrich, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    groups: str = "slots"

    def __post_init__(self) -> None:
        check_kinds(self.sources)

    # -- settings ----------------------------------------------------------------------------

    def options(self, **settings: Any) -> SideInputs[Rows, Made]:
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
        lateness = settings.get("lateness")
        if isinstance(lateness, str | timedelta):
            micros = in_microseconds(lateness)
            if micros is None:
                raise SideDefinitionError(MAIN, f"{lateness!r} is not a valid lateness", FORMS)
            settings["lateness"] = micros / 1_000_000
        return replace(self, settings={**self.settings, **settings})

    def window(self, size: Duration, slide: Duration | None = None) -> SideInputs[Rows, Made]:
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
        missing: Missing | Literal["null", "error", "wait"] | None = None,
        version: str | None = None,
    ) -> SideInputs[Rows, Made]:
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
            on=as_tuple(on),
            columns=tuple(columns),
            names=tuple((names or {}).items()),
            missing=_as_text(missing),
            version=version,
        )
        return replace(self, enrichments=(*self.enrichments, one))

    def stateless(self) -> StatelessInputs[Rows, Made]:
        """Join rows with tables in place: no state, no shuffle, no order, no waiting.

        For side inputs that are all tables. The ends of its chain are ``to_stream``,
        ``to_df``, ``map_batches`` and ``join_view``; see ``StatelessInputs``.
        """
        return StatelessInputs(sides=self)

    def explain(self) -> list[str]:
        """Return all settings that apply, defaults included, one sentence for each.

        Raises:
            SideDefinitionError: the definition could never work.
        """
        without_state = self._without_state(OperatorOptions())
        if without_state is not None:
            return [*without_state.explain(), _CHOSEN]
        return self._explain_join(self._define()[0])

    def _explain_join(self, join: SideJoin) -> list[str]:
        lines = explain(build_layout(join).join)
        for name, given in self.sources.items():
            if isinstance(given.source, Table):
                lines.append(_describe_table(name, given.source))
        return lines

    # -- ends of a chain ---------------------------------------------------------------------

    def to_stream(
        self, *, name: str = NAME, options: OperatorOptions | None = None, **old: Any
    ) -> Made:
        """Return main rows with the added columns.

        Args:
            name: name of the operator, unique in the query and fixed for a checkpoint.
            options: settings of the operator; ``metrics`` adds an output with sizes, versions and
                what rows wait for.
            old: deprecated: settings that are ``options`` now.

        Raises:
            SideDefinitionError, AlignedError: the definition could never work; nothing was started.
        """
        options = with_old_settings(options, old, "to_stream")
        return self._run(None, None, name, options)

    def to_df(self, *, name: str = NAME, options: OperatorOptions | None = None) -> DataFrame:
        """Return the rows of ``to_stream`` as a streaming DataFrame, for one or several queries."""
        return self.to_stream(name=name, options=options).to_df()

    def map_batches(
        self,
        function: Function,
        schema: Columns,
        *,
        own_keys: bool = False,
        name: str = NAME,
        options: OperatorOptions | None = None,
        **old: Any,
    ) -> Made:
        """Call a function on batches of main rows with their views.

        Args:
            function: takes an Arrow batch of main rows of one window, with the added columns, and
                views by name; returns batches, a table or nothing.
            schema: columns of the result.
            own_keys: the function reads maps only by the columns that ``enrich`` waits for, or not
                at all. Then rows that wait for many keys are released together. Otherwise keys are
                released one by one, because each row has to see the map as its key arrives.
            name: as for ``to_stream``.
            options: as for ``to_stream``.
            old: as for ``to_stream``.

        Raises:
            SideDefinitionError, AlignedError: as for ``to_stream``.
        """
        options = with_old_settings(options, old, "map_batches")
        return self._run(OwnKeysFunction(function) if own_keys else function, schema, name, options)

    def apply(
        self,
        function: GroupFunction,
        schema: Columns,
        *,
        name: str = NAME,
        options: OperatorOptions | None = None,
        **old: Any,
    ) -> Made:
        """Call a function once for each key and window, with all rows, when the window has passed.

        Args:
            function: takes the key's values, first instant and end of the window in microseconds,
                the rows, and the views.
            schema: columns of the result.
            name: as for ``to_stream``.
            options: as for ``to_stream``.
            old: as for ``to_stream``.

        Raises:
            SideDefinitionError, AlignedError: as for ``to_stream``; or main rows have no windows.
        """
        grouped = replace(self, settings={**self.settings, "grouped": True})
        options = with_old_settings(options, old, "apply")
        return grouped._run(GroupedFunction(function), schema, name, options)

    def join_view(
        self,
        view: str,
        /,
        *,
        on: str | Sequence[str],
        columns: Sequence[str] = (),
        how: Literal["left", "inner"] = "left",
        missing: Missing | Literal["null", "error", "wait"] | None = None,
        name: str = NAME,
        options: OperatorOptions | None = None,
        **old: Any,
    ) -> Made:
        """Join main rows with a map or multimap: a row for each value of its key.

        Args:
            view: the side input.
            on: main columns, in the order of its key.
            columns: names of the values to add; none for all.
            how: a row whose key has no value gets nulls (``left``), or is left out (``inner``).
            missing: such a row first waits for its key, or does not, or goes to ``errors``; see
                ``enrich``.
            name: as for ``to_stream``.
            options: as for ``to_stream``.
            old: as for ``to_stream``.

        Raises:
            SideDefinitionError, AlignedError: as for ``to_stream``.
        """
        options = with_old_settings(options, old, "join_view")
        wait = Enrich(
            input=view,
            on=as_tuple(on),
            missing=_as_text(missing),
            only_wait=True,
        )
        sides = replace(self, enrichments=(*self.enrichments, wait))
        join, _ = sides._define()
        join_rows, schema = build_row_joiner(join, view, on, columns, how)
        own = all(one.on == join_rows.on for one in join.waits(join.input(view)))
        return sides._run(OwnKeysFunction(join_rows) if own else join_rows, schema, name, options)

    # -- within ------------------------------------------------------------------------------

    def _define(
        self, *, stateless: bool = False, dead_letters: bool = False
    ) -> tuple[SideJoin, dict[str, StreamPlan]]:
        streams: dict[str, StreamPlan] = {}
        inputs: list[SideInput] = []
        for name, given in self.sources.items():
            stream = given.plan(name)
            side = given.define(name, stream)
            refused = "output" if dead_letters and not side.static else side.on_refused
            inputs.append(replace(side, on_refused=refused))
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

    def _without_state(self, options: OperatorOptions) -> StatelessInputs[Rows, Made] | None:
        """Return the join without state; None if something that was chosen needs state."""
        if (
            self.settings
            or options.changed()
            or self.groups != OperatorOptions().groups
            or self.main.event_time is not None
            or self.main.control_frames  # they would not reach the join
            or len(_tables_in(self.sources)) < max(1, len(self.sources))
        ):
            return None
        try:
            build_layout(self._define(stateless=True)[0])
        except SideDefinitionError:
            return None  # with state it may be valid, or else its own error is the right one
        return self.stateless()

    def _run(
        self,
        function: Function | None,
        schema: Columns | None,
        name: str,
        options: OperatorOptions,
    ) -> Made:
        plan_operator = cache(partial(_plan_operator, self, function, schema, name, options))
        without_state = self._without_state(options)
        if without_state is None:
            return self.make_operator(plan_operator())
        plan = without_state._plan(function, schema, name)
        return self.make_operator(plan, plan_operator=plan_operator)


@dataclass(frozen=True, kw_only=True)
class StatelessInputs(Generic[Rows, Made]):
    """A stream and the tables that its rows are joined with; made by ``SideInputs.stateless``.

    - Rows are mapped in the tasks that have them. A row sees what it would see in an operator with
      state, null keys and defaults included.
    - All tasks of a micro-batch see one version of each table: the newest when its first row is
      joined. Each replay of the micro-batch sees the same version, whatever became of the table.
    - Control tuples of the main stream keep their places. ``SideRefresh`` among them is obeyed and
      passed on; ``SideVersion`` passes without effect.
    - There are no windows, no order, no waiting, no output ``errors`` or ``late``: what needs them
      is refused.
    - Its checkpoint has no state, and cannot be shared with a query that has state.

    Attributes:
        sides: the definition; what needs state is refused at the end of a chain.
    """

    sides: SideInputs[Rows, Made]

    def enrich(
        self,
        name: str,
        *,
        on: str | Sequence[str] = (),
        columns: Sequence[str] = (),
        names: Mapping[str, str] | None = None,
        missing: Missing | Literal["null", "error", "wait"] | None = None,
        version: str | None = None,
    ) -> StatelessInputs[Rows, Made]:
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

    def to_stream(self, *, name: str = NAME, **settings: Any) -> Rows:
        """Return main rows with the added columns.

        Args:
            name: name under which sizes and versions are reported to the job's agent.
            settings: none; those of an operator with state are refused.

        Raises:
            SideDefinitionError: the definition could never work; nothing was started.
        """
        return self._run(None, None, name, settings)

    def to_df(self, *, name: str = NAME, **settings: Any) -> DataFrame:
        """Return the rows of ``to_stream`` as a streaming DataFrame, for one or several queries."""
        return self.to_stream(name=name, **settings).to_df()

    def map_batches(
        self, function: Function, schema: Columns, *, name: str = NAME, **settings: Any
    ) -> Rows:
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
    ) -> Rows:
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
    ) -> Rows:
        given = dict(settings)
        options = given.pop("options", None)
        if isinstance(options, OperatorOptions):
            given |= options.changed()
        if given:
            raise _stateless_error(
                f"{_first_name(given)} is a setting of an operator with state", "leave it out"
            )
        return self.sides.make_rows(self._plan(function, schema, name))

    def _plan(self, function: Function | None, schema: Columns | None, name: str) -> StreamPlan:
        join = self._define()
        build_layout(join)
        made = parse_columns(enriched_schema(join) if schema is None else schema)
        tables = _tables_in(self.sides.sources)
        for side in join.inputs:
            tables[side.name].bind_stateless(side)
        joiner = PartitionJoiner(
            join=join,
            function=function,
            tables=cached_tables_for(tables),
            reporter=_metrics_reporter(self.sides.main, {}, name),
        )
        return map_batches(self.sides.main, joiner, made, joiner.on_control)


def _plan_operator(
    sides: SideInputs[Any, Any],
    function: Function | None,
    schema: Columns | None,
    name: str,
    options: OperatorOptions,
) -> StreamPlan:
    join, streams = sides._define(dead_letters=options.dead_letters)
    shape = build_layout(join)
    tables = _tables_in(sides.sources)
    for side in join.inputs:
        if side.name in tables:
            tables[side.name].bind(side)
    make = SideOperatorFactory(
        shape=shape,
        function=function,
        tables=cached_tables_for(tables),
        emits_metrics=options.metrics,
        reporter=_metrics_reporter(sides.main, streams, name),
    )
    schemas = {
        OUT: enriched_schema(join) if schema is None else schema,
        ERRORS: ERROR_SCHEMA,
        LATE: join.schema,
        **({METRICS_OUTPUT: METRICS_SCHEMA} if options.metrics else {}),
    }
    main = _union_control(sides.main, join, streams, tables)
    nulls = True if options.null_keys is None else options.null_keys
    groups = "buckets" if "buckets" in (sides.groups, options.groups) else "slots"
    return plan_operator(
        make,
        {**streams, MAIN: main},
        name=name,
        schemas=schemas,
        options=replace(options, null_keys=nulls, metrics=False, groups=groups),
    )


def _union_control(
    main: StreamPlan, join: SideJoin, streams: Mapping[str, StreamPlan], tables: Mapping[str, Table]
) -> StreamPlan:
    """Return the main stream in union with the control of its tables, and ticks."""
    stores = {table.store.path: table.store for table in tables.values()}
    extra = [store.version_source(main.spark) for store in stores.values()]
    candidates = [join.limit(one) for one in join.inputs]
    candidates += [one.idle_after for one in (main, *streams.values())]
    limits = [one for one in candidates if one is not None]
    if streams or limits:  # even without a limit: setting one later must not add a source
        seconds = tick_seconds(min(limits)) if limits else 0.0
        extra.append(tick_source_plan(main.spark, TickPlan(seconds=seconds, due=0)))
    return main.union(*extra)


def _tables_in(sources: Mapping[str, Given]) -> dict[str, Table]:
    every = ((name, given.source) for name, given in sources.items())
    return {name: source for name, source in every if isinstance(source, Table)}


def _metrics_reporter(
    main: StreamPlan, streams: Mapping[str, StreamPlan], operator: str
) -> SideMetricsReporter | None:
    job = next((one.job for one in (main, *streams.values()) if one.job is not None), None)
    if job is None:
        return None
    job.queries.reports_running = True
    return SideMetricsReporter.for_job(job, operator)


def _describe_table(name: str, table: Table) -> str:
    when = "on request" if table.every is None else f"every {table.every:g} s"
    return f"`{name}` is table {table.name}, checked {when}; version {table.state().version} now."


def _as_text(missing: str | None) -> Any:
    """Return a choice as plain text: state has a digest of it."""
    return None if missing is None else str(missing)


def _first_name(settings: Mapping[str, Any]) -> str:
    return next(iter(settings), "an option")


def _stateless_error(problem: str, remedy: str) -> SideDefinitionError:
    return SideDefinitionError(MAIN, *needs_state(problem, remedy))
