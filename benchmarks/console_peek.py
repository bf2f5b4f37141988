"""What ``streambroker peek -f`` costs the agent of an export of 100,000 rows a second."""

from __future__ import annotations

import subprocess
import sys
import time

import cpu
import rows
from measure import Figures, Settings, turns
from processes import Agent, Broker, Family, environment

PURPOSE = "`peek -f` at 100,000 rows/s: processor time of the exporter's agent"
EPOCHS_PER_SECOND = 10
WAYS = ("alone", "peek -f")


class Bench(Family):
    """An export without readers."""

    def __init__(self, settings: Settings) -> None:
        self.seconds = 5.0 if settings.quick else 30.0
        self._batch, self._rows = 0, [rows.batch(0, rows.BATCH_ROWS)]
        super().__init__()
        try:
            self.broker = self.with_(Broker(settings.place))
            self.feed = self.with_(Agent(settings.place, "feed", self.broker.url))
            self.feed.export("out", max_bytes=rows.BUFFER)
            self.feed.publish("out", self._batch, [self._rows])
        except BaseException:
            self.end()
            raise

    def share(self) -> float:
        """Publish at an even rate; return the share of a core that the agent uses."""
        began, before = time.monotonic(), cpu.seconds(self.feed.pid)
        for n in range(int(self.seconds * EPOCHS_PER_SECOND)):
            time.sleep(max(0.0, began + n / EPOCHS_PER_SECOND - time.monotonic()))
            self._batch += 1
            self.feed.publish("out", self._batch, [self._rows])
        return (cpu.seconds(self.feed.pid) - before) / (time.monotonic() - began)

    def peeked(self) -> float:
        """Do so while rows are shown."""
        command = [sys.executable, "-m", "streambroker_operator.cli", "--url", self.broker.url]
        command += ["peek", "feed/0/out", "-f", "-o", "json"]
        with subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL) as peek:
            try:
                found = self.share()
                if peek.poll() is not None:
                    raise RuntimeError(f"peek ended with {peek.returncode}")
                return found
            finally:
                peek.terminate()


def run(settings: Settings) -> Figures:
    """Measure."""
    figures = Figures()
    bench = Bench(settings)
    try:
        for round_ in range(1, settings.rounds + 1):
            figures.yardstick()
            for way in turns(WAYS, round_):
                share = bench.share() if way == "alone" else bench.peeked()
                figures.add(f"{way}: processor of the agent", share, "cores")
            settings.say(f"round {round_} of {settings.rounds} done")
    finally:
        bench.end()
    figures.ratio("peek -f / alone", *(f"{way}: processor of the agent" for way in WAYS[::-1]))
    figures.note(
        f"{EPOCHS_PER_SECOND} epochs a second of {rows.BATCH_ROWS:,} rows, no reader, for"
        f" {bench.seconds:.0f} s each; peek shows up to 1,000 rows a second of them."
    )
    return figures
