"""Stream the flights of 2013 from one Spark job to two others, change things, check every row.

A broker, one exporting and two importing PySpark processes and their agents run on this machine.
Ends by itself; exit code 0 if everything was as computed from the CSV files, else 1.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from flights.children import Failure
from flights.chunks import ALL_FLIGHTS, cut
from flights.scenario import STEPS, Demonstration
from flights.telling import Teller

MAX_ROUNDS = 45


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demonstration; return 0, 1 if something differs, 130 if it was interrupted."""
    options = _options(arguments)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    teller = Teller()
    work = Path(tempfile.mkdtemp(prefix="streambroker-demo-"))
    try:
        _run(options, teller, work)
    except Failure as failure:
        teller.say(f"FAILED: {failure}")
        teller.detail(f"everything is kept in {work}, what the processes said in {work / 'logs'}")
        return 1
    except Exception:
        teller.say(f"FAILED for a reason of its own; everything is kept in {work}")
        raise
    except KeyboardInterrupt:
        teller.say("interrupted; all processes are ended")
        shutil.rmtree(work, ignore_errors=True)
        return 130
    if options.keep:
        teller.say(f"kept: {work}")
    else:
        shutil.rmtree(work)
    teller.say("OK")
    return 0


def _run(options: argparse.Namespace, teller: Teller, work: Path) -> None:
    chunks = cut(options.rows, options.rounds)
    rows = sum(chunk.rows.num_rows for chunk in chunks)
    teller.say(f"{rows:,} rows of flights and weather in {len(chunks)} files, in {work}")
    Demonstration(
        work,
        teller,
        chunks,
        seconds=options.seconds,
        pause=options.pause,
        broken=options.break_a_row,
        traced=options.trace,
    ).run()


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Begin to end everything, which a second signal does not disturb."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rows", type=int, default=ALL_FLIGHTS, help="flights taken, from the top of the file"
    )
    parser.add_argument("--rounds", type=int, default=20, help="files per stream")
    parser.add_argument(
        "--pause", type=float, default=1.0, help="seconds between two rounds of files"
    )
    parser.add_argument("--seconds", type=float, default=400.0, help="give up when it takes longer")
    parser.add_argument("--keep", action="store_true", help="keep the directory of a good run")
    parser.add_argument(
        "--break-a-row",
        action="store_true",
        help="leave one row out of what is exported: the run must fail and name its line",
    )
    parser.add_argument(
        "--trace",
        action="store_true",
        help="let the jobs form a chain, whose traces go to $OTEL_EXPORTER_OTLP_ENDPOINT",
    )
    options = parser.parse_args(arguments)
    if not STEPS <= options.rounds <= MAX_ROUNDS:
        parser.error(
            f"--rounds is from {STEPS}, because every change needs data after it, to"
            f" {MAX_ROUNDS}, because Spark keeps the last 100 batches of a checkpoint"
        )
    if not 10_000 <= options.rows <= ALL_FLIGHTS:
        parser.error(f"--rows is from 10,000 to {ALL_FLIGHTS:,}")
    return options


if __name__ == "__main__":
    sys.exit(main())
