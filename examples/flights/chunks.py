"""The tables cut into files, one per port and round, and released round by round."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from flights.tables import flights_table, weather_table

ALL_FLIGHTS = 336_776
AIRPORTS = {"ewr": "EWR", "jfk": "JFK", "lga": "LGA"}
WEATHER_PORT = "weather"


@dataclass(frozen=True)
class Chunk:
    """The rows of one file, as the CSV has them.

    Attributes:
        port: export port that will publish it.
        round: number of the round that it is released in.
        rows: every column of the CSV, and ``line``.
    """

    port: str
    round: int
    rows: pa.Table

    @property
    def name(self) -> str:
        """Name of the file, without its ending."""
        return f"{self.port}-{self.round:03}"


def cut(rows: int, rounds: int) -> list[Chunk]:
    """Cut flights and weather into one chunk per port and round.

    Args:
        rows: flights taken, from the top of the file; weather is taken in proportion.
        rounds: number of rounds.
    """
    flights, weather = flights_table(), weather_table()
    hours = max(rounds, weather.num_rows * rows // flights.num_rows)
    tables = {WEATHER_PORT: weather.slice(0, hours)}
    flights = flights.slice(0, rows)
    for port, airport in AIRPORTS.items():
        tables[port] = flights.filter(pc.equal(flights["origin"], airport))
    return [
        Chunk(port, number, table.slice(begin, end - begin))
        for number in range(rounds)
        for port, table in tables.items()
        for begin, end in [
            (table.num_rows * number // rounds, table.num_rows * (number + 1) // rounds)
        ]
    ]


class Feeder:
    """Moves files into the watched directories, a round at a time, as far as it is allowed to.

    Args:
        work: the demonstration's directory.
        chunks: all chunks; their files are written at once.
        pause: seconds between two rounds.
        broken: leave one row out of one file, which the checks then must notice.
    """

    def __init__(self, work: Path, chunks: list[Chunk], *, pause: float, broken: bool) -> None:
        self.rounds = 1 + max(chunk.round for chunk in chunks)
        self.released = 0
        self._work, self._chunks, self._pause = work, chunks, pause
        self._allowed = 0
        self._news = threading.Condition()
        self._ended = threading.Event()
        (work / "ready").mkdir()
        for chunk in chunks:
            self._write(chunk, broken)
        self._thread = threading.Thread(target=self._feed, daemon=True, name="feeder")
        self._thread.start()

    def _write(self, chunk: Chunk, broken: bool) -> None:
        rows = chunk.rows
        if chunk.round == 0:
            (self._work / "released" / chunk.port).mkdir(parents=True)
        if broken and chunk.name == "ewr-000":
            rows = rows.slice(0, rows.num_rows - 1)
        pq.write_table(rows, self._work / "ready" / f"{chunk.name}.parquet")

    def allow(self, rounds: int) -> None:
        """Release this many rounds more, in the background."""
        with self._news:
            self._allowed = min(self.rounds, self._allowed + rounds)
            self._news.notify_all()

    def allow_all(self) -> None:
        """Release all the rest, in the background."""
        self.allow(self.rounds)

    def stop(self) -> None:
        """Release nothing more."""
        self._ended.set()
        with self._news:
            self._news.notify_all()
        self._thread.join(10.0)

    def _feed(self) -> None:
        while self.released < self.rounds and not self._ended.is_set():
            with self._news:
                if self.released >= self._allowed:
                    self._news.wait(1.0)
                    continue
            for chunk in self._chunks:
                if chunk.round == self.released:
                    ready = self._work / "ready" / f"{chunk.name}.parquet"
                    os.utime(ready)
                    ready.rename(self._work / "released" / chunk.port / ready.name)
            self.released += 1
            self._ended.wait(self._pause)
