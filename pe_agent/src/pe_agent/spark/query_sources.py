"""Streams that a query reads: imports of this PE and others, from its plan or its progress.

A classic session has the analysed plan of a frame and of a query. A client of Spark Connect has
only the plan that it sent for a frame. For a query it has the offsets in the progress, which name
the readers of imports.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pe_agent.spark.connect_plans import find_messages
from pe_agent.spark.session import is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True, slots=True)
class Sources:
    """Sources of a query: imports of this PE by their frames, and whether there are other streams.

    With ``stops_at_end`` the query ends when all of them have ended.
    """

    frames: tuple[str, ...] = ()
    has_foreign: bool = False
    stops_at_end: bool = False


@dataclass(frozen=True, slots=True)
class _Stream:
    """A stream that a query reads; ``frame`` is None if it is no import of this PE."""

    frame: str | None = None
    stop_at_end: bool = False


def frame_sources(frame: DataFrame, agent: str) -> Sources:
    """Return the sources of a frame; ``agent`` is the address of the PE's agent."""
    if is_connect(frame.sparkSession):
        reads = (read for read in find_messages(frame, "Read") if read.is_streaming)
        return _combine(_read_stream(read.data_source, agent) for read in reads)
    return _plan_sources(frame._jdf.queryExecution().analyzed(), agent)


def query_sources(
    spark: SparkSession,
    query: StreamingQuery,
    agent: str,
    fetch_readers: Callable[[], Mapping[str, Any]],
) -> Sources | None:
    """Return the sources of a running query; None if they are not known yet.

    ``fetch_readers`` returns the status of the agent's readers, by id.
    """
    if not is_connect(spark):
        classic: Any = query
        return _plan_sources(classic._jsq.streamingQuery().analyzedPlan(), agent)
    progress = query.lastProgress
    if progress is None:
        return None
    readers = fetch_readers()
    return _combine(
        _progress_stream(source["endOffset"], readers) for source in progress["sources"]
    )


def _combine(streams: Iterable[_Stream]) -> Sources:
    found = tuple(streams)
    own = {one.frame: one.stop_at_end for one in found if one.frame is not None}
    foreign = any(one.frame is None for one in found)
    return Sources(tuple(own), foreign, bool(own) and all(own.values()))


def _plan_sources(plan: Any, agent: str) -> Sources:
    leaves = plan.collectLeaves()
    streaming = (s for s in map(leaves.apply, range(leaves.size())) if s.isStreaming())
    return _combine(_leaf_stream(leaf, agent) for leaf in streaming)


def _leaf_stream(leaf: Any, agent: str) -> _Stream:
    if leaf.getClass().getSimpleName() != "StreamingRelationV2":
        return _Stream()
    options = leaf.extraOptions()
    names = ("agent", "frame", "stopAtEnd")
    return _own_stream(leaf.sourceName(), {name: options.get(name) for name in names}, agent)


def _read_stream(source: Any, agent: str) -> _Stream:
    return _own_stream(source.format, dict(source.options), agent)


def _own_stream(format_: str, options: Mapping[str, str | None], agent: str) -> _Stream:
    """Return the stream of an import that ``subscribe`` opened for this PE, else another one."""
    frame = options.get("frame")
    if format_ != "streambroker" or options.get("agent") != agent or frame is None:
        return _Stream()
    return _Stream(str(frame), options.get("stopAtEnd") == "true")


def _progress_stream(offset: str | None, readers: Mapping[str, Any]) -> _Stream:
    try:
        reader = readers[json.loads(offset or "")["reader"]]
    except (ValueError, KeyError, TypeError):  # the offset of another kind of source
        return _Stream()
    return _Stream(reader["frame"], reader["stopAtEnd"])
