"""Two streaming queries as Spark runs them, without a JVM.

The product's source and sink classes are called in Spark's order, with a checkpoint.
A query is a process that may be killed at any moment and started again from its checkpoint:
``offsets/N`` is written before batch N begins, ``commits/N`` after its sink has committed. A task
gets pickled copies, runs in a process of its own, and is tried four times.
"""

from __future__ import annotations

import json
import pickle
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from pe_agent.datasource import sink
from pe_agent.datasource.source import StreambrokerDataSource
from streambroker_core.ledger.offset import Offset, ranges
from support.processes.forks import Fork, ForkFailedError
from support.spark.feeds import row

COLUMNS = StructType().add("line", "long").add("price", "double").add("name", "string")
WHENCE = StructType().add("job", "string").add("port", "string").add("stream", "string")
WHENCE.add("epoch", "long")
Range = tuple[int, int]
ROWS, BLOCKS, TASKS = 10, 2, 2
ROWS_PER_BATCH = ROWS * BLOCKS * TASKS
ATTEMPTS = 4


def lines(batch: int) -> range:
    """Return the numbers of the rows of an exporter's batch."""
    return range(batch * ROWS_PER_BATCH, (batch + 1) * ROWS_PER_BATCH)


class Checkpoint:
    """The two logs of a query, each entry whole or not there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("offsets", "commits"):
            (folder / name).mkdir(parents=True, exist_ok=True)

    def read(self, log: str, batch: int) -> Any:
        """Return an entry, None if it was not written."""
        path = self.folder / log / str(batch)
        return json.loads(path.read_text()) if path.exists() else None

    def write(self, log: str, batch: int, entry: object) -> None:
        whole(self.folder / log / str(batch), entry)

    def last(self, log: str) -> int:
        """Return the number of the last entry, -1 before the first."""
        return max((int(f.name) for f in (self.folder / log).glob("[0-9]*")), default=-1)

    def batches(self, log: str = "commits") -> Iterator[tuple[Offset, dict[str, Range]]]:
        """Yield for each batch in a log of an importing query its offset, and what it reads."""
        start = Offset()
        for number in range(self.last(log) + 1):
            end = Offset.decode(self.read("offsets", number))
            yield end, ranges(start, end)
            start = end

    def query_id(self) -> str:
        """Return what stays with the checkpoint."""
        path = self.folder / "metadata"
        if not path.exists():
            whole(path, str(uuid.uuid4()))
        return str(json.loads(path.read_text()))


def whole(path: Path, entry: object) -> None:
    """Write a file so that nobody sees half of it."""
    hidden = path.with_name(f".{path.name}.{uuid.uuid4()}")
    hidden.write_text(json.dumps(entry))
    hidden.rename(path)


class Query:
    """What both queries have in common."""

    def __init__(self, plan: dict[str, Any], role: str) -> None:
        self.plan_ = plan
        self.checkpoint = Checkpoint(Path(plan["folder"]) / role)
        self._workers = Path(plan["folder"]) / f"{role}-workers"
        self._workers.mkdir(exist_ok=True)

    def source(self, **options: str) -> StreambrokerDataSource:
        """Return the data source as Spark makes it, for this query's agent."""
        ca = self.plan_["ca"]
        secured = {"agentCa": ca} if ca else {}
        return StreambrokerDataSource({"reconnect": "60", **secured, **options})

    def run_tasks(self, function: str, tasks: list[tuple[Any, ...]]) -> list[Any]:
        """Run a batch's tasks side by side; returns results and, for a failed one, its error."""
        results: list[Any] = [None] * len(tasks)

        def run(number: int) -> None:
            for attempt in range(ATTEMPTS):
                fork = Fork("support.cuts.queries", function, *tasks[number], attempt)
                reported = self._workers / str(fork.pid)
                reported.touch()
                try:
                    results[number] = fork.result()
                    return
                except ForkFailedError as error:
                    results[number] = error
                finally:
                    reported.unlink()

        threads = [threading.Thread(target=run, args=(n,)) for n in range(len(tasks))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results


# ---- the exporting query ---------------------------------------------------------------


class Exporting(Query):
    """``frame.writeStream.format("streambroker")`` over ``batches`` batches of known rows."""

    def __init__(self, plan: dict[str, Any]) -> None:
        super().__init__(plan, "exporting")
        self._properties = {
            "sql.streaming.queryId": self.checkpoint.query_id(),
            "spark.jobGroup.id": str(uuid.uuid4()),
        }
        self._source = self.source(
            export=plan["port"], agent=plan["exporter"][0], agentToken=plan["exporter"][1]
        )

    def run(self) -> None:
        """Run to the end, from where the checkpoint stands."""
        for batch in range(self.checkpoint.last("commits") + 1, self.plan_["batches"]):
            if self.checkpoint.read("offsets", batch) is None:
                self.plan(batch)
            self._batch(batch)
            self.commit(batch)
            if self._enough():
                return

    def _enough(self) -> bool:
        """Wait as long as was asked for between two batches; return whether it has to end."""
        time.sleep(self.plan_.get("pace", 0.0))
        return (Path(self.plan_["folder"]) / "enough").exists()

    def plan(self, batch: int) -> None:
        self.checkpoint.write("offsets", batch, [lines(batch).start, lines(batch).stop])

    def _batch(self, batch: int) -> None:
        """Write a batch; where it is asked for, a task of it runs on behind the commit."""
        first, end = self.checkpoint.read("offsets", batch)
        writer = pickle.dumps(self._writer())
        properties = {**self._properties, "streaming.sql.batchId": str(batch)}
        size = (end - first) // TASKS
        fails = self._fails("task", batch)
        tasks: list[tuple[Any, ...]] = [
            (writer, properties, n, first + n * size, size, fails and n == TASKS - 1)
            for n in range(TASKS)
        ]
        messages = self.run_tasks("write", tasks)
        failed = [m for m in messages if isinstance(m, Exception)]
        reported = [None if isinstance(m, Exception) else pickle.loads(m) for m in messages]
        try:
            if failed:
                raise failed[0]
            self._writer().commit(reported, batch)
            if self._fails("commit", batch):
                raise RuntimeError("as was asked for")
        except Exception:
            self._writer().abort(reported, batch)
            raise
        if self.plan_.get("stragglers"):
            Fork("support.cuts.queries", "write", *tasks[0], ATTEMPTS)

    def _writer(self) -> Any:
        return self._source.streamWriter(schema=COLUMNS, overwrite=False)

    def _fails(self, what: str, batch: int) -> bool:
        """Whether a failure is asked for here; it comes once."""
        asked = self.plan_.get("fails")
        done = self.checkpoint.folder / "failed"
        if asked != [what, batch] or done.exists():
            return False
        done.touch()
        return True

    def commit(self, batch: int) -> None:
        self.checkpoint.write("commits", batch, {})


def write(
    writer: bytes,
    properties: dict[str, str],
    partition: int,
    first: int,
    count: int,
    fails: bool,
    attempt: int,
) -> bytes:
    """One task of the exporting query."""
    context = TaskContext._getOrCreate()
    context._localProperties = properties
    context._partitionId = partition
    context._attemptNumber = attempt
    message = pickle.loads(writer).write(_blocks(first, count))
    if fails:
        raise RuntimeError("as was asked for")
    return pickle.dumps(message)


def _blocks(first: int, count: int) -> Iterator[pa.RecordBatch]:
    names = ("line", "price", "name")
    for begin in range(first, first + count, ROWS):
        columns = zip(*(row(line) for line in range(begin, begin + ROWS)), strict=True)
        yield pa.RecordBatch.from_pydict(dict(zip(names, map(list, columns), strict=True)))


def exporting(plan: dict[str, Any]) -> None:
    # What is killed comes back after however long a busy machine takes; no query fails for that.
    sink.COMMIT_SECONDS = 60.0
    Exporting(plan).run()


# ---- the importing query ---------------------------------------------------------------


class Importing(Query):
    """``readStream.format("streambroker")`` into files that are there once per batch id."""

    def __init__(self, plan: dict[str, Any]) -> None:
        super().__init__(plan, "importing")
        source = self.source(
            **{"import": plan["port"]},
            agent=plan["importer"][0],
            agentToken=plan["importer"][1],
            source="true",
            pollWait="0.2",
            **plan["reading"],
        )
        schema = StructType([*COLUMNS.fields]).add("_source", WHENCE)
        self._reader = source.streamReader(schema=schema)
        # Spark plans the tasks' copies from another instance of the reader.
        self._copy = pickle.dumps(source.streamReader(schema=schema))
        self._folder = Path(plan["folder"]) / "sink"
        self._folder.mkdir(exist_ok=True)
        self._limit = self._reader.getDefaultReadLimit()

    def run(self, stop: Callable[[], bool]) -> None:
        """Run until told to stop, from where the checkpoint stands."""
        batch = self.checkpoint.last("commits") + 1
        start = self.checkpoint.read("offsets", batch - 1)
        if start is None:
            start = self._reader.initialOffset()
        while not stop():
            end = self.checkpoint.read("offsets", batch)
            if end is None:
                end = self._reader.latestOffset(start, ReadAllAvailable())
                if json.dumps(end) == json.dumps(start):
                    time.sleep(0.01)
                    continue
                self.plan(batch, end)
                if batch:
                    self._reader.commit(start)
            slices = self._batch(batch, start, end)
            self.commit(batch)
            start, batch = end, batch + 1
            if self.plan_.get("pauses") and slices:
                self._pause(stop)
            time.sleep(self.plan_.get("slow", 0.0))
        self._reader.stop()

    def _pause(self, stop: Callable[[], bool]) -> None:
        """Stand still before the next call, for once."""
        folder = Path(self.plan_["folder"])
        (folder / "paused").touch()
        while not (stop() or (folder / "resume").exists()):
            time.sleep(0.01)

    def plan(self, batch: int, end: dict[str, Any]) -> None:
        self.checkpoint.write("offsets", batch, end)

    def _batch(self, batch: int, start: dict[str, Any], end: dict[str, Any]) -> int:
        """Read a batch into the sink; returns the number of its slices."""
        slices = self._reader.partitions(start, end)
        tasks = [
            (self._copy, pickle.dumps(piece), str(self._folder / f"{batch}-{n}"))
            for n, piece in enumerate(slices)
        ]
        files = self.run_tasks("read", tasks)
        for file in files:
            if isinstance(file, Exception):
                raise file
        self.sink(batch, files)
        return len(slices)

    def sink(self, batch: int, files: list[str]) -> None:
        """Take in what the tasks wrote; a batch that is repeated has to be the same again."""
        rows = [row for file in files for row in json.loads(Path(file).read_text())]
        path = self._folder / f"batch-{batch}"
        if path.exists():
            if sorted(json.loads(path.read_text())) != sorted(rows):
                whole(path.with_name(f"differs-{batch}"), rows)
            return
        whole(path, rows)

    def commit(self, batch: int) -> None:
        self.checkpoint.write("commits", batch, {})

    @staticmethod
    def write(path: Path, rows: list[list[Any]]) -> None:
        whole(path, rows)


def read(reader: bytes, piece: bytes, path: str, attempt: int) -> str:
    """One task of the importing query; returns the file it has written."""
    rows = []
    for batch in pickle.loads(reader).read(pickle.loads(piece)):
        for found in batch.to_pylist():
            whence = found["_source"]
            rows.append(
                [found["line"], found["price"], found["name"], whence["stream"], whence["epoch"]]
            )
    file = Path(f"{path}-{attempt}-{uuid.uuid4()}")
    Importing.write(file, rows)
    return str(file)


def importing(plan: dict[str, Any]) -> None:
    Importing(plan).run((Path(plan["folder"]) / "stop").exists)
