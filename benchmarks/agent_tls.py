"""The agent over TLS against the same agent without, no Spark: rows in and published, and out."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rows
from measure import Figures, Settings, turns
from processes import Agent, Broker

from pe_agent.transport.agent_tls import AgentCertificate, AgentTrust
from pe_agent.transport.broker_trust import AGENT_NAME

PURPOSE = "agent alone over TLS against the same agent without"
SIDES = ("plain", "tls")


class Side:
    """Two agents with a route, both with TLS or both without."""

    def __init__(self, settings: Settings, broker: str, name: str, **tls: Any) -> None:
        self.rows = settings.rows
        self.feed = Agent(settings.place, f"feed-{name}", broker, **tls)
        self.taker = Agent(settings.place, f"taker-{name}", broker, **tls)
        self.feed.export(name, max_bytes=rows.BUFFER)
        self.taker.import_("in", subscription=f'kind == "{name}"', filter=None)
        self.taker.await_route("in")
        self.name, self.batches = name, rows.batches(settings.rows)
        self.published = 0
        self.offset: dict[str, Any] | None = None

    def put(self) -> None:
        """Publish an epoch."""
        self.feed.publish(self.name, self.published, [self.batches])
        self.published += 1

    def get(self) -> None:
        """Plan the next epoch and read it."""
        end = self.taker.plan("in", self.offset, 1)
        found = sum(batch.num_rows for batch in self.taker.read("in", self.offset, end))
        if found != self.rows:
            raise RuntimeError(f"{found} rows came, not {self.rows}")
        self.offset = end

    def warm_up(self) -> None:
        """Open the route and fill the log to what it keeps."""
        self.put()
        self.offset = self.taker.plan("in", None, 1)
        for _ in range(2 * rows.KEPT):
            self.put()
            self.get()

    def end(self) -> None:
        """End both agents."""
        self.taker.end()
        self.feed.end()


def _secured(place: Path) -> dict[str, Any]:
    """Make a CA and a certificate of an agent; return what an :class:`Agent` wants of them."""
    made = {name: place / name for name in ("ca.crt", "ca.key", "tls.crt", "tls.key")}
    new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    new += ["-nodes", "-days", "2"]
    ca = ["-subj", "/CN=ca", "-addext", "basicConstraints=critical,CA:true"]
    own = ["-subj", "/CN=agent", "-addext", f"subjectAltName=DNS:{AGENT_NAME}"]
    own += ["-CA", str(made["ca.crt"]), "-CAkey", str(made["ca.key"])]
    for certificate, more in (("ca", ca), ("tls", own)):
        files = [
            "-out",
            str(made[f"{certificate}.crt"]),
            "-keyout",
            str(made[f"{certificate}.key"]),
        ]
        subprocess.run([*new, *more, *files], check=True, capture_output=True)
    return {
        "certificate": AgentCertificate(chain=made["tls.crt"], key=made["tls.key"]),
        "trust": AgentTrust(made["ca.crt"]),
    }


def run(settings: Settings) -> Figures:
    """Measure."""
    figures, broker = Figures(), Broker(settings.place)
    sides: dict[str, Side] = {}
    try:
        for name in SIDES:
            how = _secured(settings.place) if name == "tls" else {}
            sides[name] = Side(settings, broker.url, name, **how)
        for side in sides.values():
            side.warm_up()
        for round_ in range(1, settings.rounds + 1):
            figures.yardstick()
            for way in ("put", "get"):
                for name in turns(SIDES, round_):
                    _measure(figures, settings, f"{name} {way}", getattr(sides[name], way))
    finally:
        for side in sides.values():
            side.end()
        broker.end()
    figures.ratio("in: TLS / plain", "tls put rows", "plain put rows")
    figures.ratio("out: TLS / plain", "tls get rows", "plain get rows")
    figures.note(
        "put: admission, DoPut into the log, publish; get: plan at the importer's and the"
        " exporter's agent, then DoGet; one client, one stream, all ways over loopback."
    )
    return figures


def _measure(figures: Figures, settings: Settings, name: str, way: Callable[[], None]) -> None:
    began = time.perf_counter()
    way()
    rate = settings.rows / (time.perf_counter() - began)
    figures.add(f"{name} rows", rate / 1e6, "M rows/s")
    figures.add(f"{name} MB", rows.megabytes(rate), "MB/s")
