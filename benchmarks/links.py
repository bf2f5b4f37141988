"""Many agents in one process, without rows: the real link to the broker and route table of each.

``python -m links URL PLACE JOB...`` says ``ready`` and then answers one line for each line it gets:
``seen`` with what the agents have applied since, ``newest_version`` with the generation of each of
their imports and when it was the last to come, ``hints on`` and ``hints off`` once the broker has
another address for hints, which with ``off`` is one where nobody listens.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

from pe_agent.agent.agent import Agent
from pe_agent.agent.broker.link import BrokerLink
from pe_agent.transport.tokens import resolve_token
from streambroker_core.model import PeKey
from streambroker_core.wire.broker.view import View

ANSWER = "@@ "
NOWHERE = "127.0.0.1:9"
PORT = "in"


class Linked:
    """One agent's link, and when its route table had each generation of its import.

    Attributes:
        seen: ``[generation, time]`` by the clock that all processes of a machine share.
        newest: likewise, of each import the last.
    """

    def __init__(self, number: int, job: str, url: str, place: Path) -> None:
        home = place / f"home-{job}"
        home.mkdir()
        self.seen: list[tuple[int, float]] = []
        self.newest: dict[str, tuple[int, float]] = {}
        self._hosts = Agent(PeKey.parse(f"default/{job}/0"), home, progress=lambda *_: None)
        # No rows: who holds none would be asked for them each second.
        self._hosts.imports.state.peers.apply_view = lambda _: None  # type: ignore[assignment]
        self._hosts.routes.add_listener(self._note)
        self.link = BrokerLink(
            self._hosts,
            url,
            location="grpc+tcp://127.0.0.1:1",
            instance=f"{number:016x}",
            host="127.0.0.1",
            token=resolve_token(None, None),
        )
        self._ear = self.link._registrar.wanted.hint

    def _note(self, view: View) -> None:
        now = time.perf_counter()
        if PORT in view.imports:
            self.seen.append((view.imports[PORT].generation, now))
        for name, port in view.imports.items():
            if self.newest.get(name, (0, 0.0))[0] != port.generation:
                self.newest[name] = port.generation, now

    def hints(self, on: bool) -> None:
        """Let the broker know where hints go."""
        hint = self._ear if on else NOWHERE
        self.link._registrar.wanted = replace(self.link._registrar.wanted, hint=hint)
        self.link._register()


def main() -> None:
    """Run the agents until there is no more input."""
    url, place, *jobs = sys.argv[1:]
    agents = {job: Linked(n, job, url, Path(place)) for n, job in enumerate(jobs)}
    for agent in agents.values():
        agent.hints(True)
        agent.link.start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        answer: dict[str, object] = {}
        if line.startswith("hints"):
            for agent in agents.values():
                agent.hints(line.strip() == "hints on")
        elif line.startswith("newest"):
            answer = {job: agent.newest for job, agent in agents.items()}
        else:
            answer = {job: agent.seen for job, agent in agents.items()}
        sys.stdout.write(ANSWER + json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
