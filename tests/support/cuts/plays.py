"""Rows of the kill table in which somebody is slow, or away for longer than a restart takes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from streambroker_core.ledger.offset import Offset
from support.cuts import queries
from support.cuts.cast import Cast, Play
from support.cuts.points import FEED_AGENT, IMPORTING, Cut

SMALL = MappingProxyType({"maxBytes": "8Ki"})
"""Less than eight batches take."""


class Lagging(Play):
    """The importer, under ``drop``, stands still until the exporter has published everything.

    Nothing is published before the importer's route is open: what it loses is counted from then on.
    """

    policy = "drop"
    buffer = SMALL

    def __init__(self, cast: Cast, step: str, victim: str) -> None:
        super().__init__(cast, step, victim, batches=8)
        if step in IMPORTING:
            self.cut.disarm()

    def _turn(self) -> None:
        super()._turn()
        resume = self.folder / "resume"
        if self.exporting.done and (self.folder / "paused").exists() and not resume.exists():
            if self.step in IMPORTING:
                self.cut = Cut(self.cast.cuts, self.step, 1)
            resume.touch()

    def _may_publish(self) -> bool:
        return self.opened()

    def complete(self, epochs: list[int]) -> bool:
        """Whether some are missing, the others there once, and all that are missing told."""
        log = queries.Checkpoint(self.folder / "importing")
        lost_by_stream = Offset.decode(log.read("offsets", log.last("offsets"))).dropped
        lost = self.batches - len(epochs)
        return (
            lost > 0
            and epochs == sorted(set(epochs))
            and epochs[-1] == self.batches - 1
            and list(lost_by_stream.values()) == [(lost, lost * queries.ROWS_PER_BATCH)]
        )


class Opened(Play):
    """The step is armed, and the first batch published, once the importer has opened the export.

    So it is one of a batch with rows, however late the exporter is.
    """

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.cut.disarm()

    def _may_publish(self) -> bool:
        if not self.opened():
            return False
        self.cut = Cut(self.cast.cuts, self.step)
        return True


class Away(Opened):
    """The importer, its driver and its agent, is killed, and comes back when it is waited for.

    By then its lease has ended, so that it is away and not only slow. Nothing is published before
    it has opened the export: it can miss only what it was waited for.
    """

    def __init__(self, cast: Cast, step: str, victim: str, grace: str = "10m") -> None:
        self.buffer: Mapping[str, str] = {**SMALL, "grace": grace}
        self.back = False
        super().__init__(cast, step, victim, batches=8, reading={"maxBytesPerBatch": "1"})

    def _kill(self, at: int) -> None:
        super()._kill(at)
        self.importing.kill()
        self.cast.importer.kill()

    def _tend(self) -> None:
        if not self.killed or self.back:
            super()._tend()
            return
        self.cast.tend(self.cast.importer)
        self.exporting.tend()
        self.back = self._may_return()

    def _may_return(self) -> bool:
        assert not self.exporting.done, "the exporter did not wait"
        export = self.cast.exporter.export_status(self.port)
        lives = any(reader["alive"] for reader in export["readers"].values())
        waited_for: list[str] = export["waiting_for"]
        return not lives and waited_for == [f"{self.cast.importer.pe}/{self.port}"]


class Lost(Away):
    """The same, but the exporter waits only for its grace; ends with the importer's failure."""

    failure = ""

    def _may_return(self) -> bool:
        return self.exporting.done

    def _through(self) -> bool:
        self._turn()
        self.failure = next((f for f in self.importing.failures if "DataLoss" in f), "")
        return self.exporting.done and bool(self.failure)

    def _ended(self) -> bool:
        return True


class Unreached(Opened):
    """The exporter's agent is killed and stays away until the importing query gives up.

    A query gives up only where it has planned something: without news it waits for ever.
    """

    def __init__(self, cast: Cast, step: str) -> None:
        reading = {"maxBytesPerBatch": "1", "reconnect": "1"}
        super().__init__(cast, step, FEED_AGENT, reading=reading)

    def _tend(self) -> None:
        if not self.killed or self.importing.failures:
            super()._tend()
            return
        self.cast.tend(self.cast.exporter)
        self.importing.tend()
