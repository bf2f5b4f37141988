"""Old functions of streams, for one more release, with their old arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pe_agent.aligned.options import OperatorOptions
from pe_agent.aligned.plan import plan_of
from pe_agent.streams import sql_patterns
from pe_agent.streams.old_methods import split_settings
from pe_agent.streams.stream import OperatorStream, PatternStream, Stream, apply
from streambroker_core.errors import AlignedError

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame


def control_aware(
    operator: Callable[[], Any], inputs: Stream | Mapping[str, Stream], **settings: Any
) -> OperatorStream:
    """Deprecated: use ``streambroker.apply``."""
    arguments, options = split_settings(settings)
    return apply(operator, inputs, **arguments, options=options)


def pattern(stream: Stream | DataFrame, pattern: Any, **settings: Any) -> PatternStream:
    """Deprecated: use ``Stream.match``. Matches are JSON."""
    settings = {"output": "json", **settings}
    return _timed_stream(stream, settings).match(pattern, **_split_buckets(settings))


def pattern_processors(stream: Stream | DataFrame, rules: Any, **settings: Any) -> PatternStream:
    """Deprecated: use ``Stream.match_rules``. Matches are JSON."""
    new_names = {"control": "control_file", "tell": "on_outcomes"}
    renamed = {new_names.get(name, name): value for name, value in settings.items()}
    renamed = {"output": "json", **renamed}
    return _timed_stream(stream, renamed).match_rules(rules, **_split_buckets(renamed))


def _split_buckets(settings: dict[str, Any]) -> dict[str, Any]:
    buckets = settings.pop("buckets", None)
    return {**settings, "options": OperatorOptions(buckets=buckets, groups="buckets")}


def _timed_stream(source: Stream | DataFrame, settings: dict[str, Any]) -> Stream:
    """Return a stream with the setting ``watermark`` applied and removed."""
    stream = Stream(plan_of(source))
    watermark = settings.pop("watermark", None)
    if watermark is None:
        return stream
    if settings.get("event_time") is None:
        raise AlignedError("a watermark without an event time: name it with event_time=.")
    return stream.with_watermark(settings["event_time"], watermark)


def sql(
    text: str,
    tables: Mapping[str, Stream | DataFrame],
    factories: Mapping[str, Any] | None = None,
    *,
    control: str | Path | None = None,
    buckets: int | None = None,
    **settings: Any,
) -> Stream:
    """Deprecated: use ``streambroker.patterns.sql``. Matches of a dynamic statement are JSON."""
    settings = {"output": "json", **settings}
    options = OperatorOptions(buckets=buckets, groups="buckets")
    if "tell" in settings:
        settings["on_outcomes"] = settings.pop("tell")
    return sql_patterns.sql(
        text, tables, factories, control_file=control, options=options, **settings
    )


def __getattr__(name: str) -> Any:
    """Import a class or value that is only renamed."""
    if name == "Processors":
        from pe_agent.cep.query_rules import QueryRules

        return QueryRules
    if name == "FIGURES_SCHEMA":
        from pe_agent.side.operator import METRICS_SCHEMA

        return METRICS_SCHEMA
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
