"""Importers that have everything and wait, in a process of their own.

``python -m idle_readers {"what": "queries", …}`` holds the readers of as many imports as Spark's
source processes would, ``"what": "agents"`` as many connections as agents that import would have.
It writes ``ready`` once all wait, and answers each line with how often they have called so far.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from typing import Any

import rows
from peer_calls import Importing
from processes import ANSWER, until
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

from pe_agent.agent.imports.peer_agents import WATCH_SECONDS
from pe_agent.datasource.options import Options
from pe_agent.datasource.source import StreambrokerStreamReader
from pe_agent.transport.agent_client import AgentClient

READY = "ready"
SPARKS_PAUSE = 0.01
"""What Spark waits before it asks a source again that had nothing."""
SUBSCRIBES_WAIT = 0.5
_TYPES = {"string": StringType(), "bigint": LongType(), "double": DoubleType()}
_calls: Counter[str] = Counter()
_idle: set[str] = set()


def query(plan: dict[str, Any], port: str) -> None:
    """Be Spark's source process of one query; the rows are not read."""
    columns = [column.split() for column in rows.DDL.split(", ")]
    schema = StructType([StructField(name, _TYPES[kind]) for name, kind in columns])
    options = Options(
        port=port, agent=plan["location"], token=plan["token"], poll_wait=SUBSCRIBES_WAIT
    )
    reader = StreambrokerStreamReader(schema, options)
    offset = reader.initialOffset()
    while True:
        _calls["latestOffset"] += 1
        end = reader.latestOffset(offset, ReadAllAvailable())
        if end == offset and end != reader.initialOffset():
            _idle.add(port)
        offset = end
        time.sleep(SPARKS_PAUSE)


def agent(plan: dict[str, Any], import_: str) -> None:
    """Be an agent that imports: plan once, then watch."""
    importing = Importing(plan["location"], import_, plan["imports"][import_])
    importing.plan({})
    while True:
        _calls["peer.watch"] += 1
        if not importing.watch(WATCH_SECONDS):
            _idle.add(import_)


def _count() -> None:
    """Have all calls of actions counted."""
    call = AgentClient.call

    def counted(self: AgentClient, action: str, **more: Any) -> dict[str, Any]:
        _calls[action] += 1
        return call(self, action, **more)

    AgentClient.call = counted  # type: ignore[method-assign]


def main() -> None:
    """Wait, and say how often was called."""
    plan = json.loads(sys.argv[1])
    ports = list(plan["imports"])
    _count()
    run = query if plan["what"] == "queries" else agent
    for port in ports:
        threading.Thread(target=run, args=(plan, port), daemon=True).start()
    until(lambda: len(_idle) == len(ports), "readers that wait")
    sys.stdout.write(f"{READY}\n")
    sys.stdout.flush()
    for _ in sys.stdin:
        sys.stdout.write(f"{ANSWER}{json.dumps(_calls)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
