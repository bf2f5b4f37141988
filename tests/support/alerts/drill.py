"""Faults that are caused at the same time, and the alerts that they have to fire."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from support.alerts.prometheus import Firing, Prometheus

SLACK_SECONDS = 150.0
"""By how much an alert may be late: metrics follow the fault, and machines are slow."""

FAILURES = 10
"""Failures without a success between them after which a deed is given up."""


@dataclass(frozen=True)
class Alert:
    """An alert with the labels that it has to have; ``reason``: why it follows another fault."""

    name: str
    labels: Mapping[str, str]
    seconds: float
    reason: str = ""

    @property
    def key(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        return f"Streambroker{self.name}", tuple(sorted(self.labels.items()))


@dataclass(frozen=True)
class Fault:
    """What was caused, when, and which alerts have to fire for it."""

    what: str
    began: float
    alerts: Sequence[Alert]


@dataclass
class Drill:
    """Faults that run until the end of ``stack``."""

    folder: Path
    prometheus: Prometheus
    stack: ExitStack
    faults: list[Fault] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def own(self, name: str) -> Path:
        """Make a folder for the files of one fault."""
        folder = self.folder / name
        folder.mkdir(parents=True)
        return folder

    def began(self, what: str, *alerts: Alert) -> None:
        """Note that a fault was caused just now."""
        self.faults.append(Fault(what, time.time(), alerts))

    def often(
        self, seconds: float, deed: Callable[[], object], over: threading.Event | None = None
    ) -> None:
        """Do something again and again until the end; it may fail now and then, as a busy machine.

        If it has failed for long, that is an error of the whole drill.
        """
        over = over or self.over

        def run() -> None:
            failures = 0
            while failures < FAILURES and not over.wait(seconds):
                try:
                    deed()
                    failures = 0
                except Exception as error:
                    failures += 1
                    if failures == FAILURES and not over.is_set():
                        self.problems.append(f"{deed}: {error!r}")

        thread = threading.Thread(target=run, daemon=True)
        thread.start()

    def compare(self, fired: Sequence[Firing], until: float) -> tuple[list[list[str]], list[str]]:
        """Return a table of the faults' alerts, and what differs from what had to fire."""
        table, wrong, expected = list[list[str]](), [*self.problems], set()
        for fault in self.faults:
            for alert in fault.alerts:
                expected.add(alert.key)
                times = [one for one in fired if (one.alert, one.labels) == alert.key]
                due = fault.began + alert.seconds + SLACK_SECONDS
                after = f"{times[0].begin - fault.began:.0f} s" if times else "-"
                note = f" (also: {alert.reason})" if alert.reason else ""
                table.append([alert.name, _shown(alert.key[1]), after, f"{fault.what}{note}"])
                if not times and due <= until:
                    wrong.append(f"{alert.key} has not fired for: {fault.what}")
                if times and times[0].begin > due:
                    wrong.append(f"{alert.key} has fired only after {after}")
                if not all(self.prometheus.interrupted(one) for one in times[:-1]):
                    wrong.append(f"{alert.key} has fired {len(times)} times: {times}")
        extra = {(one.alert, one.labels) for one in fired} - expected
        return table, wrong + [f"{key} has fired without a fault" for key in sorted(extra)]

    def pending(self, fired: Sequence[Firing], until: float) -> list[Alert]:
        """Return the alerts that have not fired yet, and are due before a time."""
        done = {(one.alert, one.labels) for one in fired}
        return [
            alert
            for fault in self.faults
            for alert in fault.alerts
            if alert.key not in done and fault.began + alert.seconds + SLACK_SECONDS <= until
        ]


def _shown(labels: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{name}={value}" for name, value in labels)
