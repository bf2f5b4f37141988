"""A board like that of a trading desk, with metrics as agents report them."""

from __future__ import annotations

from itertools import count
from typing import Any

import pyarrow as pa

from console.brokers import RunningBroker, export_of, import_of

TRADE = [{"name": "symbol", "type": "string"}, {"name": "price", "type": "double"}]
TRADE += [{"name": "size", "type": "bigint"}]

TRADES_DDL = "`time` timestamp, `symbol` string, `price` double, `size` bigint, `venue` string"
START_US = 1_795_856_400_000_000
"""28 November 2026, 09:00 UTC, in microseconds."""
PRICES = {"VOD": 71.34, "HSBA": 873.1, "AZN": 12_254.0, "BP": 468.55, "RIO": 5_121.0}


def trades(first: int, count: int) -> pa.RecordBatch:
    """Return made-up trades, one each 40 milliseconds; every ninth has no venue."""
    numbers = range(first, first + count)
    symbols = [list(PRICES)[n * 7 % 11 % len(PRICES)] for n in numbers]
    return pa.RecordBatch.from_pydict(
        {
            "time": pa.array([START_US + 40_000 * n for n in numbers], pa.timestamp("us", "UTC")),
            "symbol": symbols,
            "price": [
                round(PRICES[one] * (1 + n * 13 % 17 / 10_000), 2)
                for one, n in zip(symbols, numbers, strict=True)
            ],
            "size": [50 * (1 + n * 5 % 23) for n in numbers],
            "venue": [None if n % 9 == 0 else ("XLON", "CHIX", "TRQX")[n % 3] for n in numbers],
        }
    )


def scene() -> list[dict[str, Any]]:
    """Return the resources of the jobs, next to those of the example."""

    def derived(kind: str, application: str) -> dict[str, Any]:
        return {
            "properties": {"kind": kind},
            "application": {"name": application},
            "schema": TRADE,
        }

    return [
        export_of("enrich", "trades", **derived("enriched", "Pricing")),
        import_of("enrich", "raw", application={"name": "Pricing"}),
        export_of("positions", "out", **derived("position", "Risk")),
        import_of("positions", "in", subscription='kind == "enriched"', filter="size >= 100"),
        import_of("risk", "positions", subscription='kind == "position"'),
        import_of("archive", "all", subscription="has(kind)"),
        import_of("desk", "trades", subscription='kind == "enriched"', filter='symbol == "IBM"'),
    ]


RATES = {
    ("nyse/0/trades", "enrich/0/raw"): 48_000,
    ("nyse/0/trades", "alerts/0/trades"): 2_400,
    ("nyse/0/trades", "archive/0/all"): 51_000,
    ("nyse/0/quotes", "archive/0/all"): 120,
    ("xetra/0/trades", "enrich/0/raw"): 9_500,
    ("xetra/0/trades", "archive/0/all"): 9_500,
    ("enrich/0/trades", "positions/0/in"): 21_000,
    ("enrich/0/trades", "desk/0/trades"): 3_100,
    ("enrich/0/trades", "archive/0/all"): 57_000,
    ("positions/0/out", "risk/0/positions"): 0,
    ("positions/0/out", "archive/0/all"): 800,
}
"""Rows per second of each route."""
WAITING = {("positions", "out"): "default/risk/0/positions"}
AWAY = "default/alerts/0/trades"


class Agents:
    """Agents of all exporters: each call reports what they have sent since the one before."""

    def __init__(self, broker: RunningBroker) -> None:
        self._broker = broker
        self._rounds = count(1)

    def report(self) -> None:
        number = next(self._rounds)
        bodies: dict[str, dict[str, Any]] = {}
        for (exporter, importer), rate in RATES.items():
            job, _, port = exporter.split("/")
            # Rounds differ by a few percent, as they do in life.
            sent = int(rate * (number + 0.06 * ((number * 7 + len(importer)) % 5))) * 2
            reader = {
                "import": f"default/{importer}",
                "reader": "r",
                "alive": f"default/{importer}" != AWAY,
                "delivered": sent,
                "filtered": sent // 9 if "alerts" in importer or "desk" in importer else 0,
                "lagRows": rate // 40,
                "lagSeconds": 1,
                "congestion": 100 if rate == 0 else rate // 2_000,
                "blockedSeconds": 312 if rate == 0 else 0,
                "droppedRows": 0,
                "lostRows": 0,
            }
            export = bodies.setdefault(job, {}).setdefault(port, {"readers": []})
            export["readers"].append(reader)
            if waited := WAITING.get((job, port)):
                export |= {"waitingFor": [waited], "waitingSince": "2026-11-28T05:40:00Z"}
        for job, exports in bodies.items():
            self._broker.change(
                "PUT", f"/job/{job}/pe/0/report", {"exports": exports, "imports": {}}
            )
