"""The door: which benchmarks, how much, where to."""

from __future__ import annotations

import argparse
import importlib
import json
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from measure import Figures, Settings, load, machine, table
from peer_jars import PeerMissingError

NAMES = (
    "agent_alone",
    "agent_tls",
    "spark_to_agent",
    "agent_to_spark",
    "observed",
    "spark_connect",
    "spark_to_spark",
    "spark_to_spark_stored",
    "spark_to_kafka_to_spark",
    "fan_out",
    "many_readers",
    "fan_out_thousand",
    "isolation",
    "latency",
    "latency_alone",
    "idle",
    "scaling",
    "change_to_route",
    "polling",
    "log_append",
    "object_storage",
    "explain",
    "console_page",
    "console_many",
    "console_peek",
    "control",
    "micro_batch",
    "aligned",
    "aligned_by_row",
    "aligned_control",
    "aligned_state",
    "matching",
    "cep",
    "cep_rules",
    "cep_peer",
    "cep_spark",
    "cep_pushed",
    "side",
    "side_joins",
    "side_changes",
    "side_waits",
    "cold_start",
    "feed",
    "cluster_start",
    "cluster",
)
LONG = ("cluster_rest", "log_recovery", "side_joins_10m")
"""Those that are measured only where they are named."""
RESULTS = Path(__file__).parent / "results"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmarks that are asked for; returns the exit code."""
    parser = argparse.ArgumentParser(prog="benchmarks", description="Measure against peers.")
    parser.add_argument(
        "names",
        nargs="*",
        metavar="name",
        help="which, or a group: console is all console_…; all but the long ones by default",
    )
    parser.add_argument("--list", action="store_true", help="say what each one measures")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of a micro-batch")
    parser.add_argument("--quick", action="store_true", help="1 round, few rows: does it run?")
    parser.add_argument("--json", type=Path, default=RESULTS / "latest.json", metavar="FILE")
    parser.add_argument("--directory", type=Path, help="disk to write to; default: temporary")
    options = parser.parse_args(arguments)
    modules = {name: importlib.import_module(name) for name in (*NAMES, *LONG)}
    if options.list:
        for name, module in modules.items():
            sys.stdout.write(f"{name:16} {module.PURPOSE}\n")
        return 0
    chosen = list[str]()
    for name in options.names or NAMES:
        group = [one for one in modules if one.startswith(f"{name}_")]
        if name not in modules and not group:
            parser.error(f"there is no benchmark {name!r}; --list names them")
        chosen += [name] if name in modules else group
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))  # children too
    results: dict[str, Any] = {"machine": machine(), "benchmarks": {}}
    for name in chosen:
        results["benchmarks"][name] = _measure(modules[name], options)
        _write(results, options.json)
    return 0


def _measure(module: Any, options: argparse.Namespace) -> dict[str, Any]:
    def say(text: str) -> None:
        sys.stderr.write(f"{datetime.now().astimezone():%H:%M:%S} {module.__name__}: {text}\n")

    rounds, count = (1, 100_000) if options.quick else (options.rounds, options.rows)
    began, before = time.monotonic(), load()
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="bench-") as place:
        settings = Settings(
            rounds=rounds, rows=count, quick=options.quick, place=Path(place), say=say
        )
        say(f"{rounds} rounds, load {before[0]}")
        try:
            figures = module.run(settings)
        except PeerMissingError as missing:
            figures = Figures()
            figures.note(f"NOT MEASURED: {missing}")
            say(str(missing))
    return {
        "purpose": module.PURPOSE,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "rounds": rounds,
        "rows": count,
        "seconds": round(time.monotonic() - began, 1),
        "load": {"before": before, "after": load()},
        **figures.encode(),
    }


def _write(results: dict[str, Any], path: Path) -> None:
    """Write the figures so far as JSON and as text, and print those of the last benchmark."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=2) + "\n")
    parts = [_text(name, found) for name, found in results["benchmarks"].items()]
    head = ", ".join(f"{name} {value}" for name, value in results["machine"].items())
    path.with_suffix(".txt").write_text("\n\n".join([f"Machine: {head}", *parts]) + "\n")
    sys.stdout.write(parts[-1] + "\n\n")
    sys.stdout.flush()


def _text(name: str, found: dict[str, Any]) -> str:
    loads = found["load"]
    lines = [
        f"{name}: {found['purpose']}",
        f"  {found['rounds']} rounds, {found['rows']:,} rows, {found['seconds']} s, load"
        f" {loads['before'][0]} before, {loads['after'][0]} after; median [least .. greatest]",
        *table(found["figures"]),
        *(f"  - {note}" for note in found["notes"]),
    ]
    return "\n".join(lines)
