"""Who may publish to an export: one query, one run of it, each batch once.

A publisher is a query id. Its runs are fenced: the run that was seen last is the current one, and
calls of earlier runs are refused. Another query waits for the publisher's lease to end and then
opens a successor stream. The states and every change of them are in this file; time is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from streambroker_core.errors import StreambrokerError

LEASE_SECONDS = 30.0
MAX_HISTORY = 1_000
MAX_EARLIER = 100
MAX_RUNS = 100


class PublisherInUseError(StreambrokerError):
    """Another query publishes to the export. Nothing was changed."""

    code = "PublisherInUse"

    def __init__(self, export: str, holder: str) -> None:
        self.export, self.holder = export, holder
        super().__init__(
            f"export {export} is in use by query {holder}, which is alive: an export has one"
            " publisher. Stop that query, or publish under another port."
        )


class FencedError(StreambrokerError):
    """The call comes from an earlier run of the query. Nothing was changed."""

    code = "Fenced"

    def __init__(self, export: str, run: str) -> None:
        self.export, self.run = export, run
        super().__init__(
            f"run {run} of the query that publishes to {export} has been replaced by a newer run;"
            " this one is left over and must end. Nothing of it is published."
        )


class BatchDiffersError(StreambrokerError):
    """A batch id that was published before comes with other rows or another schema."""

    code = "BatchDiffers"

    def __init__(self, export: str, batch: int, was: str, is_: str) -> None:
        self.export, self.batch = export, batch
        super().__init__(
            f"batch {batch} was published to {export} before with {was} and comes now with {is_}."
            " Was the checkpoint restored from a backup, or the query changed and the batch"
            " replayed? The published batch stays; start the exporter with a new checkpoint."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The batch published last: what a replay has to equal; ``control`` is its tuples."""

    batch: int
    rows: int
    schema: str
    control: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherBusy:
    """Another query holds the lease until then; ask again, with ``renewed`` as first seen."""

    holder: str
    lease_expires: float
    renewed: int


@dataclass(slots=True)
class Publisher:
    """The publishing side of one export.

    Attributes:
        runs: fence number by run id of the current query, of its last runs; the highest is the
            current run.
        last: the batch published last.
        history: the last batches, by id, for telling a replay from a different batch.
        earlier: the last batch of queries that published before and may come back.
        aborted: run and batch that were aborted last; what they staged is of no use.
        gaps: how many batch ids were left out between two that were published; a query whose
            checkpoint is whole leaves none out.
        skipped: those of them that were left out since the last epoch.
        ended: the stream and number that the next epoch would have had when the publisher said that
            there will be none; None if it did not. An epoch published after all takes it back.
        renewals: how often the lease was renewed; lets a waiting query see that it is alive.
    """

    export: str
    query: str | None = None
    schema: str | None = None
    runs: dict[str, int] = field(default_factory=dict)
    lease_expires: float = 0.0
    renewals: int = 0
    last: Published | None = None
    history: dict[int, Published] = field(default_factory=dict)
    earlier: dict[str, Published] = field(default_factory=dict)
    aborted: tuple[str, int] | None = None
    gaps: int = 0
    skipped: int = 0
    ended: tuple[str, int] | None = None

    @property
    def run(self) -> str | None:
        """The current run of the query that publishes; None before the first."""
        return next(reversed(self.runs), None)

    def is_published(self, batch: int) -> bool:
        """Whether a batch of this query is published, or one after it."""
        return self.last is not None and batch <= self.last.batch

    def gap_before(self, batch: int) -> int:
        """Return how many batches were left out between the last epoch and one of this batch.

        Spark leaves none out, so those were published to a log of which this is an older copy.
        """
        return self.skipped + (0 if self.last is None else max(0, batch - self.last.batch - 1))

    def is_stale(self, run: str, batch: int) -> bool:
        """Whether what a run staged for a batch will never be published."""
        replaced = run != self.run or (run, batch) == self.aborted
        return replaced or self.is_published(batch)

    def abort(self, *, query: str, run: str, batch: int) -> bool:
        """Take note that a batch was aborted; False if it changes nothing."""
        if query != self.query or self.is_stale(run, batch):
            return False
        self.aborted = (run, batch)
        return True

    def admit(
        self,
        *,
        query: str,
        run: str,
        batch: int,
        schema: str,
        now: float,
        renewed: int | None = None,
    ) -> PublisherBusy | None:
        """Decide whether a run of a query may stage rows of a batch; None if it may.

        Args:
            query: streaming query id, as in the checkpoint.
            run: run id of the query.
            batch: batch id.
            schema: Spark schema of the rows, as DDL.
            now: seconds.
            renewed: ``PublisherBusy.renewed`` of the caller's first try, None at the first.

        Raises:
            FencedError: the run was replaced.
            PublisherInUseError: another query is alive and renewed its lease meanwhile.
            BatchDiffersError: the batch was published with another schema.
        """
        if self.query is not None and query != self.query:
            if now < self.lease_expires:
                if renewed is not None and renewed != self.renewals:
                    raise PublisherInUseError(self.export, self.query)
                return PublisherBusy(
                    holder=self.query, lease_expires=self.lease_expires, renewed=self.renewals
                )
            self._take_over(query, run, schema, now)
            return None
        self.check_run(run)
        if self.query is None:
            self._take_over(query, run, schema, now)
            return None
        self._renew(now)
        self._begin_run(run)
        if self.last is not None and self.is_published(batch) and schema != self.schema:
            raise BatchDiffersError(
                self.export, batch, f"schema {self.last.schema}", f"schema {schema}"
            )
        self.schema = schema
        if self.aborted == (run, batch):
            self.aborted = None
        return None

    def _take_over(self, query: str, run: str, schema: str, now: float) -> None:
        if self.query is not None and self.last is not None:
            self.earlier[self.query] = self.last
            while len(self.earlier) > MAX_EARLIER:
                del self.earlier[next(iter(self.earlier))]
        self.query, self.schema, self.runs, self.skipped = query, schema, {run: 1}, 0
        self.last = self.earlier.pop(query, None)
        self.history = {} if self.last is None else {self.last.batch: self.last}
        self._renew(now)

    def _renew(self, now: float) -> None:
        self.lease_expires = now + LEASE_SECONDS
        self.renewals += 1

    def _begin_run(self, run: str) -> None:
        if run not in self.runs:
            self.runs[run] = max(self.runs.values(), default=0) + 1
            while len(self.runs) > MAX_RUNS:
                del self.runs[next(iter(self.runs))]

    def check_run(self, run: str) -> None:
        """Refuse a run that was replaced by a newer one.

        Raises:
            FencedError: it was.
        """
        if run in self.runs and self.runs[run] < max(self.runs.values()):
            raise FencedError(self.export, run)

    def renew(self, query: str, now: float) -> None:
        """The publishing driver lives; others are passed over."""
        if query == self.query:
            self._renew(now)

    def end_lease(self, query: str, now: float) -> None:
        """The publishing query ended in order; another may take over at once."""
        if query == self.query:
            self.lease_expires = now

    def finish(self, query: str | None, run: str | None, end: tuple[str, int]) -> None:
        """Take note that nothing will follow after ``end``, a stream and its next number.

        Args:
            query: who says so; None for whoever published last.
            run: its run, if known.
            end: where it ends.

        Raises:
            PublisherInUseError: another query publishes.
            FencedError: the run was replaced.
        """
        if query is not None and self.query is not None and query != self.query:
            raise PublisherInUseError(self.export, self.query)
        if run is not None:
            self.check_run(run)
        self.ended = end

    def publish(
        self,
        *,
        query: str,
        run: str,
        batch: int,
        rows: int,
        schema: str | None,
        now: float,
        control: int = 0,
    ) -> bool:
        """Decide whether a batch is new.

        Args:
            query: streaming query id.
            run: run id of the query.
            batch: batch id.
            rows: rows in all its stages.
            schema: Spark schema as DDL; None for a batch without rows and control.
            now: seconds.
            control: how many control tuples it has.

        Returns:
            True: publish it. False: it is published already, with equal rows, schema and number of
            control tuples.

        Raises:
            FencedError, BatchDiffersError: as in :meth:`admit`.
            PublisherInUseError: another query was admitted; rows come only after admission.
        """
        if self.query is not None and query != self.query:
            if not (rows or control):
                self._note_empty(query, batch)
                return False  # nothing to publish: no reason to take the export from anybody
            raise PublisherInUseError(self.export, self.query)
        if self.query is None:
            self._take_over(query, run, schema or "", now)
        self.check_run(run)
        self._begin_run(run)
        self._renew(now)
        if not self.is_published(batch):
            return True
        was = self.history.get(batch)
        if was is None:
            return False
        if rows != was.rows or ((rows or control) and schema != was.schema):
            raise BatchDiffersError(
                self.export, batch, f"{was.rows} rows of {was.schema}", f"{rows} rows of {schema}"
            )
        if control != was.control:
            told = (f"{n} control tuples" for n in (was.control, control))
            raise BatchDiffersError(self.export, batch, *told)
        return False

    def _note_empty(self, query: str, batch: int) -> None:
        """Note a batch without rows of a query that published before, and may again."""
        known = self.earlier.get(query)
        if known is not None and batch > known.batch:
            self.earlier[query] = Published(batch=batch, rows=0, schema=known.schema)

    def record_published(
        self, *, batch: int, rows: int, schema: str | None, control: int = 0
    ) -> int:
        """Record that the batch is durable (also one without rows and control: no epoch).

        Returns:
            How many batch ids were left out before it.
        """
        before = self.gap_before(batch)
        gap = before - self.skipped
        self.gaps += gap
        self.skipped = 0 if rows or control else before
        self.restore_batch(batch=batch, rows=rows, schema=schema, control=control)
        return gap

    def restore_batch(self, *, batch: int, rows: int, schema: str | None, control: int = 0) -> None:
        """Learn again of a batch that was published; one that made no epoch leaves no trace."""
        named = schema or self.schema or ""
        self.last = Published(batch=batch, rows=rows, schema=named, control=control)
        self.history[batch] = self.last
        while len(self.history) > MAX_HISTORY:
            del self.history[next(iter(self.history))]
