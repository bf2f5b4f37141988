"""What a bad reader of an export takes from the others, against a good one of the same rate."""

from __future__ import annotations

import json
import sys
import threading
import time

import mixed_readers
import rows
from measure import Figures, Settings, turns
from processes import ANSWER, Agent, Broker, Child, Family

PURPOSE = "isolation: a slow, a silent and a fleeting reader, against good ones of the same rate"
GOOD = 4
PROCESSES = 2
PAIRS = (("slow", "sparse"), ("silent", "nobody"), ("fleeting", "good"))
POLICIES = {
    "drop": {"maxBytes": rows.BUFFER},
    "wait": {"maxBytes": "8Gi", "maxAge": "1s"},
}
"""Under ``wait`` the buffer has room: the bad one keeps what it has not read, nobody waits."""
GRACE = 1.0
EPOCH_ROWS = 100_000
PART = 10
"""The slow one's speed is this part of a good one's."""


class Bench(Family):
    """An export for each policy, five imports of it, and who publishes."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.seconds = 1.5 if settings.quick else 5.0
        self.batches = rows.batches(EPOCH_ROWS)
        self.batch = dict.fromkeys(POLICIES, 0)
        self.pace = 1.0
        super().__init__()
        try:
            self.broker = self.with_(Broker(settings.place))
            self.feed = self.with_(Agent(settings.place, "feed", self.broker.url))
            self.taker = self.with_(Agent(settings.place, "taker", self.broker.url))
            for policy, buffer in POLICIES.items():
                self.feed.export(
                    policy,
                    buffer={**buffer, "grace": f"{GRACE:.0f}s"},
                    congestionPolicy=policy,
                )
                for port in self.ports(policy):
                    self.taker.import_(port, subscription=f'kind == "{policy}"', start="latest")
                for port in self.ports(policy):
                    self.taker.await_route(port)
        except BaseException:
            self.end()
            raise

    @staticmethod
    def ports(policy: str) -> list[str]:
        """Return the imports: those of the good ones, and of the one to be judged."""
        return [f"{policy}-{n}" for n in range(GOOD + 1)]

    def _publish(self, port: str, until: float) -> None:
        while time.monotonic() < until:
            self.feed.publish(port, self.batch[port], [self.batches])
            self.batch[port] += 1

    def _child(self, kind: str, ports: list[str]) -> Child:
        client = self.taker.client
        plan = {
            "location": client.location,
            "token": client.token,
            "ports": ports,
            "kind": kind,
            "pace": self.pace,
        }
        command = [sys.executable, "-m", "mixed_readers", json.dumps(plan)]
        return Child(command, self.settings.place / "readers.log")

    def measure(self, policy: str, kind: str) -> tuple[float, float]:
        """Let all read while rows come; return the rows/s of the good ones, and of the other."""
        *good, other = self.ports(policy)
        children: list[Child] = []
        try:
            children += (self._child("good", good[n::PROCESSES]) for n in range(PROCESSES))
            children.append(self._child(kind, [other]))
            for child in children:
                child.line(mixed_readers.READY)
            until = time.monotonic() + self.seconds
            publishing = threading.Thread(target=self._publish, args=(policy, until))
            publishing.start()
            for child in children:
                assert child.process.stdin is not None
                child.process.stdin.write(f"{self.seconds}\n")
                child.process.stdin.flush()
            *came, (others,) = (json.loads(child.line(ANSWER)) for child in children)
            publishing.join()
        finally:
            for child in children:
                child.end()
        time.sleep(2 * GRACE)  # what the bad one has kept goes
        return sum(map(sum, came)) / self.seconds, others / self.seconds


def run(settings: Settings) -> Figures:
    """Measure; round 0 warms up and is left out."""
    figures = Figures()
    bench = Bench(settings)
    kinds = tuple(dict.fromkeys(kind for pair in PAIRS for kind in pair))
    variants = [f"{policy}, {kind}" for policy in POLICIES for kind in kinds]
    try:
        bench.pace = bench.measure("drop", "good")[1] / PART
        for round_ in settings.turns:
            figures.yardstick() if round_ else None
            for variant in turns(variants, round_):
                policy, _, kind = variant.partition(", ")
                good, other = bench.measure(policy, kind)
                if round_:
                    figures.add(f"{variant}: rows of the others", good / 1e6, "M rows/s")
                    figures.add(f"{variant}: rows of it", other / 1e6, "M rows/s")
            settings.say(f"round {round_} of {settings.rounds} done")
    finally:
        bench.end()
    for policy in POLICIES:
        for bad, instead in PAIRS:
            over, under = (f"{policy}, {kind}: rows of the others" for kind in (bad, instead))
            figures.ratio(f"{policy}: the others beside {bad} / beside {instead}", over, under)
    figures.note(
        f"one export without Spark, epochs of {EPOCH_ROWS:,} rows as fast as they can be published"
        f" for {bench.seconds:.0f} s, {GOOD} good readers in {PROCESSES} processes and one beside"
        " them, all on the same cores."
    )
    figures.note(
        f"slow: takes {bench.pace:,.0f} rows/s, a tenth of what a good one got at the beginning,"
        " the rest of its slice under way; sparse: as many, whole epochs at once, and passes those"
        " behind; silent: has rows sent and takes none; nobody: the same rate, none; fleeting:"
        " breaks off its connection each second; good: as the others."
    )
    return figures
