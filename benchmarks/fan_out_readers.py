"""Readers that plan each epoch of their imports, in a process of their own.

``python -m fan_out_readers {"location": …, "token": …, "ports": […]}`` has a thread for each
import. It writes an answer with the number of an epoch once all have planned that.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import sys
import threading
from collections import Counter
from typing import Any

import rows
from processes import ANSWER

from pe_agent.transport.agent_client import AgentClient
from pe_agent.transport.flight_errors import AgentUnreachableError

STACK_BYTES = 512 << 10
WAIT_SECONDS = 20.0


class Readers:
    """Counts how many readers have planned each epoch."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._plan = plan
        self._lock = threading.Lock()
        self._planned: Counter[int] = Counter()

    def start(self) -> None:
        """Start the readers."""
        for port in self._plan["ports"]:
            threading.Thread(target=self._read, args=(port,), daemon=True).start()

    def _read(self, port: str) -> None:
        client = AgentClient(self._plan["location"], self._plan["token"])
        session, offset, epoch = secrets.token_hex(8), None, 0
        named = {"import": port}
        while True:
            planned = None
            with contextlib.suppress(AgentUnreachableError):  # asked again, as a source does
                planned = client.call(
                    "reader.next",
                    session=session,
                    start=offset,
                    max_bytes=1,
                    wait=WAIT_SECONDS,
                    timeout=3 * WAIT_SECONDS,
                    columns=rows.SCHEMA.names,
                    limit=None,
                    **named,
                )["offset"]
            if planned is not None:
                offset, epoch = planned, epoch + 1
                self._note(epoch)

    def _note(self, epoch: int) -> None:
        with self._lock:
            self._planned[epoch] += 1
            if self._planned[epoch] == len(self._plan["ports"]):
                sys.stdout.write(f"{ANSWER}{epoch}\n")
                sys.stdout.flush()


def main() -> None:
    """Read until the process is ended."""
    threading.stack_size(STACK_BYTES)
    Readers(json.loads(sys.argv[1])).start()
    threading.Event().wait()


if __name__ == "__main__":
    main()
