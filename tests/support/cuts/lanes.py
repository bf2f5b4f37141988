"""Pairs of queries without a JVM that run for long over one cast, and what their rows must be."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pe_agent.transport.broker_client import BrokerClient
from streambroker_core.errors import StreambrokerError
from support.cuts import queries
from support.cuts.cast import Cast
from support.spark.feeds import Row, row

FILTERS: Mapping[str, Callable[[Row], bool]] = {
    "price > 10.0": lambda r: r[1] > 10.0,
    'price < 30.0 && name != "name 3"': lambda r: r[1] < 30.0 and r[2] != "name 3",
    "price >= 25.0": lambda r: r[1] >= 25.0,
}
HIGHEST_PRICE = 40.0
POLICIES = [
    {"for": {"job": "alerts"}, "filter": f"price < {HIGHEST_PRICE}"},
    {"mask": [{"column": "name", "with": "constant", "value": "withheld"}]},
]
FOR_EVER = 10**9


@dataclass(frozen=True)
class Nature:
    """How a lane is.

    Attributes:
        pace: seconds between two batches of the exporting query.
        slow: seconds that the importing query stands still after each batch.
        restricted: the export has `POLICIES`.
    """

    name: str
    policy: str
    max_bytes: str
    pace: float
    slow: float
    restricted: bool = False

    def sees(self, fed: Row) -> Row | None:
        """Return a row as the importer may see it; None for a row that is withheld."""
        if not self.restricted:
            return fed
        return (*fed[:2], "withheld") if fed[1] < HIGHEST_PRICE else None


class Lane:
    """One exporting and one importing query."""

    def __init__(self, cast: Cast, nature: Nature) -> None:
        self.cast, self.nature, self.port = cast, nature, nature.name
        self.folder = cast.folder / self.port
        self.importing_log = self.folder / "importing"
        self.exporting, self.importing = cast.roles(
            self.port, batches=FOR_EVER, pace=nature.pace, slow=nature.slow,
            reading={"maxBytesPerBatch": "20000"},
        )  # fmt: skip
        cast.declare(
            self.port,
            policy=nature.policy,
            buffer={"maxBytes": nature.max_bytes},
            filter_=_first(),
            description=f"the stream of the lane {self.port}",
            owner="team-soak",
            **({"policies": POLICIES} if nature.restricted else {}),
        )

    def tend(self) -> None:
        self.exporting.tend()
        self.importing.tend()

    def let_filter(self, text: str) -> None:
        BrokerClient(self.cast.broker.url, "default").request(
            "PUT", f"/job/alerts/pe/0/import/{self.port}/filter", {"filter": text}
        )

    def change_policy(self) -> None:
        """Let the export wait where it drops, and the other way round."""
        broker = BrokerClient(self.cast.broker.url, "default")
        path = f"/job/feed/pe/0/export/{self.port}"
        found = broker.request("GET", path)
        spec = {k: v for k, v in found.body["spec"].items() if k not in ("job", "pe", "port")}
        spec["congestionPolicy"] = "drop" if spec["congestionPolicy"] == "wait" else "wait"
        broker.request("PUT", path, spec, headers={"If-Match": found.headers["etag"]})

    # -- the end -----------------------------------------------------------------------------

    def published(self) -> int:
        return queries.Checkpoint(self.folder / "exporting").last("commits") + 1

    def through(self) -> bool:
        """Whether all that was published is read and acknowledged."""
        if not self.exporting.done:
            return False
        figures = self.figures()
        if figures is None or figures["planned"]:
            return False
        return list(figures["positions"].values()) == [self.published()]

    def figures(self) -> dict[str, Any] | None:
        """Return the reader's figures at the exporter; None while nobody answers."""
        log = queries.Checkpoint(self.importing_log)
        last = log.read("offsets", log.last("offsets"))
        try:
            return self.cast.exporter.reader_status(last["reader"], self.port) if last else None
        except (StreambrokerError, KeyError, OSError):
            return None

    # -- what came of it -----------------------------------------------------------------------

    def check(self) -> dict[str, Any]:
        """Compare row by row; return the counts."""
        figures = self.figures()
        assert figures is not None, self.port
        reached, delivered, lost, batches = 0, 0, 0, 0
        before: int | None = None  # epochs that a full log had dropped before the first read
        counted = 0  # how many of them the reader counts: all, if it was known before they went
        pinned: Counter[str] = Counter()
        for number, (end, read) in enumerate(queries.Checkpoint(self.importing_log).batches()):
            wanted: Counter[tuple[Any, ...]] = Counter()
            for stream, (first, next_) in read.items():
                if before is None:
                    before = reached = first
                    counted = end.dropped.get(stream, (0, 0))[0]
                    assert counted in (0, before)
                assert first >= reached, f"{self.port}: batch {number} reads {first} again"
                lost, reached = lost + first - reached, next_
                passes = FILTERS[str(end.filter)]
                for epoch in range(first, next_):
                    rows = map(self.nature.sees, map(row, queries.lines(epoch)))
                    wanted.update((*r, epoch) for r in rows if r is not None and passes(r))
                pinned[str(end.filter)] += next_ - first
            path = self.folder / "sink" / f"batch-{number}"
            found = Counter((r[0], r[1], r[2], r[4]) for r in json.loads(path.read_text() or "[]"))
            assert found == wanted, f"{self.port}: batch {number} differs"
            delivered, batches = delivered + found.total(), batches + 1
        published = self.published()
        assert reached == published, f"{self.port}: read to {reached} of {published}"
        assert not list((self.folder / "sink").glob("differs-*"))
        assert figures["delivered"] == delivered
        dropped = lost + counted
        assert figures["dropped"] == [dropped, dropped * queries.ROWS_PER_BATCH]
        assert figures["duplicates"] == [0, 0]
        fed = published * queries.ROWS_PER_BATCH
        missed = (lost + (before or 0)) * queries.ROWS_PER_BATCH
        assert fed == delivered + figures["filtered"] + missed
        assert self.nature.policy == "drop" or not missed
        return {
            "published": fed,
            "delivered": delivered,
            "filtered": figures["filtered"],
            "dropped": dropped * queries.ROWS_PER_BATCH,
            "batches": batches,
            "epochs by filter": dict(pinned),
            "lives": [self.exporting.lives, self.importing.lives],
        }


def _first() -> str:
    return next(iter(FILTERS))
