"""Declaration of a side input: the source of its rows, and its policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from pe_agent.aligned.plan import Planned, StreamPlan, plan_of
from pe_agent.datasource.schemas import spark_to_arrow
from pe_agent.side.row_functions import as_tuple
from pe_agent.side.tables.store import Table
from streambroker_core.model.durations import FORMS, in_microseconds
from streambroker_core.side.definition import SideInput, SideKind
from streambroker_core.side.errors import SideDefinitionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_DEFINITION_FIELDS: Final = ("name", "kind", "schema", "static")
_POLICIES: Final = tuple(
    one.name for one in fields(SideInput) if one.name not in _DEFINITION_FIELDS
)


@dataclass(frozen=True, kw_only=True)
class Given:
    """A side input without a name yet; made by ``side_map`` and similar functions.

    Attributes:
        source: a stream, a streaming DataFrame or a table.
        kind: the kind of view that functions see.
        settings: attributes of ``SideInput``.
    """

    source: Planned | Table | DataFrame
    kind: SideKind
    settings: Mapping[str, Any] = field(default_factory=dict)

    def plan(self, name: str) -> StreamPlan | None:
        """Return its plan, None for a table; raise SideDefinitionError for other sources."""
        source: Any = self.source
        if isinstance(source, Table):
            return None
        plan = getattr(source, "plan", None)
        if isinstance(plan, StreamPlan):
            if plan.data is None:
                raise SideDefinitionError(
                    name, "a stream of control tuples alone", "give it a stream of rows"
                )
            return replace(plan, key=())
        if not getattr(source, "isStreaming", False):
            raise SideDefinitionError(
                name,
                f"its rows are a {type(source).__name__}, not a stream",
                "make it a table, with TableStore(…).frame(lambda: …)",
            )
        return plan_of(source)

    def define(self, name: str, plan: StreamPlan | None) -> SideInput:
        """Return the definition; raise SideDefinitionError for an unknown or bad setting."""
        unknown = [one for one in self.settings if one not in _POLICIES]
        if unknown:
            raise SideDefinitionError(
                name, f"{unknown[0]} is not a setting", f"there are: {', '.join(_POLICIES)}"
            )
        policies = {**self.settings, "key": as_tuple(self.settings.get("key"))}
        if not isinstance(policies.get("value"), str | None):
            policies["value"] = tuple(policies["value"])
        if isinstance(policies.get("timeout"), str | timedelta):
            micros = in_microseconds(policies["timeout"])
            if micros is None:
                raise SideDefinitionError(
                    name, f"{policies['timeout']!r} is not a valid timeout", FORMS
                )
            policies["timeout"] = micros / 1_000_000
        if plan is None:
            assert isinstance(self.source, Table)  # noqa: S101 - what has no stream
            schema = self.source.schema
        else:
            schema = spark_to_arrow(plan.schema())
            if plan.event_time is not None:
                policies.setdefault("event_time", plan.event_time[0])
        return SideInput(name=name, kind=self.kind, schema=schema, static=plan is None, **policies)


def check_kinds(inputs: Mapping[str, Any]) -> None:
    """Raise SideDefinitionError for a mere source, without the kind that decides how it is seen."""
    for name, given in inputs.items():
        if not isinstance(given, Given):
            raise SideDefinitionError(
                name,
                f"a {type(given).__name__} without a kind, which decides how rows see it",
                f"write {name}=side_map(…, key=…) for one value for each key, side_multimap(…,"
                " key=…) for several, side_singleton(…) for one value, or side_list(…) for all",
            )


def side_singleton(source: Planned | Table | DataFrame, **settings: Any) -> Given:
    """One value that all rows see.

    Args:
        source: an aligned stream, a streaming DataFrame or a table.
        settings: ``value``, ``update`` (``replace``, ``refuse`` or ``latest``), ``ready``,
            ``default``, ``timeout`` and other attributes of ``SideInput``.
    """
    return Given(source=source, kind="singleton", settings=settings)


def side_list(source: Planned | Table | DataFrame, **settings: Any) -> Given:
    """All values, in order of arrival.

    Args:
        source: as for ``side_singleton``.
        settings: as for ``side_singleton``; ``update`` is ``append`` or ``replace``.
    """
    return Given(source=source, kind="list", settings=settings)


def side_map(
    source: Planned | Table | DataFrame, *, key: str | Sequence[str], **settings: Any
) -> Given:
    """One value for each key.

    Args:
        source: as for ``side_singleton``.
        key: the key columns.
        settings: as for ``side_singleton``; ``keyed=True`` stores its rows in the buckets of the
            main rows with the same key.
    """
    return Given(source=source, kind="map", settings={"key": key, **settings})


def side_multimap(
    source: Planned | Table | DataFrame, *, key: str | Sequence[str], **settings: Any
) -> Given:
    """Any number of values for each key.

    Args:
        source: as for ``side_singleton``.
        key: the key columns.
        settings: as for ``side_map``; ``update`` is ``append`` or ``replace``.
    """
    return Given(source=source, kind="multimap", settings={"key": key, **settings})
