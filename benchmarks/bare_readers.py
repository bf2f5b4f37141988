"""Readers of an export without Spark: a process in which each thread plans and reads an import.

``python -m bare_readers {"location": …, "token": …, "ports": […], "epochs": n}``; it writes
``ready``, reads when a line comes, and answers with the rows and bytes that came.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from processes import ANSWER, Reader

from pe_agent.transport.agent_client import AgentClient

READY = "ready"


def read(plan: dict[str, Any], port: str) -> tuple[int, int]:
    """Read an import's epochs, one after the other; return rows and bytes."""
    reader = Reader(AgentClient(plan["location"], plan["token"]))
    count = size = 0
    offset: dict[str, Any] | None = None
    for _ in range(plan["epochs"]):
        end = reader.plan(port, offset, 1)
        for batch in reader.read(port, offset, end):
            count += batch.num_rows
            size += batch.nbytes
        offset = end
    return count, size


def main() -> None:
    """Read once for each line of input."""
    plan = json.loads(sys.argv[1])
    with ThreadPoolExecutor(len(plan["ports"])) as pool:
        sys.stdout.write(f"{READY}\n")
        sys.stdout.flush()
        sys.stdin.readline()
        came = list(pool.map(lambda port: read(plan, port), plan["ports"]))
    answer = {"rows": sum(c for c, _ in came), "bytes": sum(b for _, b in came)}
    sys.stdout.write(f"{ANSWER}{json.dumps(answer)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
