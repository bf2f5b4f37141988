"""Cause each fault that has an alert, really; compare the alerts of a real Prometheus.

``python tests/alert_drill.py --minutes 40``: all faults begin at once, each with agents or a broker
of its own. Each alert has to fire once, for the labels of its fault, and no other one may. With
fewer minutes, only what is due by then has to fire.
"""

from __future__ import annotations

import argparse
import functools
import math
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from support.agents import agents
from support.alerts import streams
from support.alerts.brokers import Brokers
from support.alerts.drill import Drill
from support.alerts.prometheus import Prometheus
from support.clusters import replicas
from support.clusters.api_server import running_api_server
from support.clusters.programs import assets
from support.processes import jobs

LOOK_SECONDS = 5.0
WHOLE_MINUTES = 39.0
"""From so many on there is time for all alerts."""
ABSENT_SECONDS = 390.0
"""What the end has for the alert of brokers that are all gone."""


def say(text: str) -> None:
    sys.stdout.write(f"drill: {time.strftime('%H:%M:%S')} {text}\n")
    sys.stdout.flush()


def await_alerts(drill: Drill, end: float) -> None:
    """Report what fires, until all has fired that is due before the end."""
    seen: set[object] = set()
    while time.time() < end:
        fired = drill.prometheus.fired()
        for one in fired:
            if (one.alert, one.labels, one.begin) not in seen:
                say(f"{one.alert} fires {dict(one.labels)}")
            seen.add((one.alert, one.labels, one.begin))
        if not drill.pending(fired, math.inf):
            return
        drill.over.wait(LOOK_SECONDS)


def run(folder: Path, minutes: float, chosen: str) -> list[str]:
    """Run the drill; print a table, and return what went wrong."""
    with ExitStack() as stack:
        prometheus = stack.enter_context(Prometheus(folder / "prometheus").running())
        drill = Drill(folder, prometheus, stack)
        stack.callback(drill.over.set)
        end = time.time() + minutes * 60.0
        api = stack.enter_context(running_api_server(assets(), folder / "cluster"))
        brokers = Brokers(drill, api)
        first, *others = brokers.causes()
        causes: list[Callable[[], None]] = [first]
        causes += [functools.partial(cause, drill) for cause in streams.FAULTS]
        causes += others
        for cause in causes:
            if chosen in str(cause):
                begun = len(drill.faults)
                try:
                    cause()
                except AssertionError as error:
                    drill.problems.append(f"{cause}: {error}")
                    say(drill.problems[-1])
                for fault in drill.faults[begun:]:
                    say(f"caused: {fault.what}")
        if minutes >= WHOLE_MINUTES and not chosen:
            await_alerts(drill, end - ABSENT_SECONDS)
            brokers.kill_all()
        await_alerts(drill, end)
        table, wrong = drill.compare(prometheus.fired(), time.time())
        for row in table:
            say(" | ".join(row))
        return wrong


def main() -> int:
    """Run; print what went wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=40.0)
    parser.add_argument("--only", default="", help="the faults with this in their function's name")
    parser.add_argument("--keep", action="store_true", help="keep all files")
    options = parser.parse_args()
    agents.START_SECONDS = jobs.START_SECONDS = math.inf
    replicas.START_SECONDS = 300.0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
    folder = Path(tempfile.mkdtemp(prefix="streambroker-drill-"))
    say(f"{options.minutes:g} minutes, files in {folder}")
    wrong = run(folder, options.minutes, options.only)
    for each in wrong:
        say(f"WRONG: {each}")
    if not options.keep and not wrong:
        shutil.rmtree(folder, ignore_errors=True)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
