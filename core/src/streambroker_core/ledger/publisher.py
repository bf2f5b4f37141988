"""Publisher of an export: admits one query, its newest run, and each batch once.

- A publisher is a query id. Its runs are fenced: calls of runs before the newest are rejected.
- Another query waits for the publisher's lease to end, then opens a successor stream.

A state machine without I/O; time is an argument, in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from streambroker_core.errors import SchemaError, StreambrokerError
from streambroker_core.model.schema import parse_ddl
from streambroker_core.model.schema_changes import compare_schemas

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
            f"export {export} is in use by query {holder}, which is active: an export has one"
            " publisher. Stop that query, or publish under another port."
        )


class FencedError(StreambrokerError):
    """The call comes from an earlier run of the query. Nothing was changed."""

    code = "Fenced"

    def __init__(self, export: str, run: str) -> None:
        self.export, self.run = export, run
        super().__init__(
            f"run {run} of the query that publishes to {export} has been replaced by a newer run"
            " and must end. Nothing of it is published."
        )


class BatchDiffersError(StreambrokerError):
    """A published batch id is repeated with other rows, schema or control tuples."""

    code = "BatchDiffers"

    def __init__(self, export: str, batch: int, was: str, is_: str) -> None:
        self.export, self.batch = export, batch
        super().__init__(
            f"batch {batch} was published to {export} before with {was} and arrives now with"
            f" {is_}. Was the checkpoint restored from a backup, or the query changed and the"
            " batch replayed? The published batch stays; start the exporter with a new"
            " checkpoint."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A published batch, which a replay has to equal; ``control`` counts its control tuples.

    A replay may have more columns and wider types.
    """

    batch: int
    rows: int
    schema: str
    control: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherBusy:
    """Another query holds the lease until then. Retry with ``renewed`` of the first response."""

    holder: str
    lease_expires: float
    renewed: int


def _differs(before: str | None, after: str | None) -> bool:
    """Return whether rows published in the columns ``before`` cannot stand for those ``after``."""
    if before == after or before is None or after is None:
        return before != after
    try:
        return not compare_schemas(parse_ddl(before), parse_ddl(after)).keeps_stream
    except SchemaError:
        return True


@dataclass(slots=True)
class Publisher:
    """Publishing state of one export.

    Attributes:
        runs: fence number by run id, of the latest runs of the current query; the highest is
            current.
        renewals: lease renewals; a rise shows a waiting query that the publisher is alive.
        last: the batch published last.
        history: the latest batches by id, to distinguish a replay from a different batch.
        earlier: last batch by query, of queries that published before and may return.
        aborted: run and batch aborted last; their stages are garbage.
        gaps: batch ids left out between published ones; an intact checkpoint leaves none out.
        skipped: those of them since the last epoch.
        ended: stream and next number at which the publisher ended the export; None if it did not.
            A later epoch revokes it.
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
        """The current run of the publishing query; None before the first."""
        return next(reversed(self.runs), None)

    def is_published(self, batch: int) -> bool:
        """Return whether this or a later batch of the current query is published."""
        return self.last is not None and batch <= self.last.batch

    def gap_before(self, batch: int) -> int:
        """Return how many batches are left out between the last epoch and this batch.

        Spark leaves none out: those were published to a log of which this is an older copy.
        """
        return self.skipped + (0 if self.last is None else max(0, batch - self.last.batch - 1))

    def is_stale(self, run: str, batch: int) -> bool:
        """Return whether the stages of a run for a batch will never be published."""
        replaced = run != self.run or (run, batch) == self.aborted
        return replaced or self.is_published(batch)

    def abort(self, *, query: str, run: str, batch: int) -> bool:
        """Record that a batch was aborted; return False if that changes nothing."""
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
        """Return None if a run of a query may stage rows of a batch, else `PublisherBusy`.

        ``query`` is the streaming query id of the checkpoint, ``schema`` Spark DDL. ``renewed`` is
        `PublisherBusy.renewed` of the caller's first call, None in that call.

        Raises:
            FencedError: a newer run has replaced this one.
            PublisherInUseError: another query has renewed its lease since the first call.
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
        last = self.last
        if last is not None and self.is_published(batch) and _differs(last.schema, schema):
            raise BatchDiffersError(self.export, batch, f"schema {last.schema}", f"schema {schema}")
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
        """Raise `FencedError` if a newer run has replaced this one."""
        if run in self.runs and self.runs[run] < max(self.runs.values()):
            raise FencedError(self.export, run)

    def renew(self, query: str, now: float) -> None:
        """Renew the lease of the publishing query; ignore any other query."""
        if query == self.query:
            self._renew(now)

    def end_lease(self, query: str, now: float) -> None:
        """End the lease after the publishing query stopped cleanly; another may take over."""
        if query == self.query:
            self.lease_expires = now

    def finish(self, query: str | None, run: str | None, end: tuple[str, int]) -> None:
        """Record that no epoch will follow ``end``, a stream and its next number.

        ``query`` is the query that ends the export, None for the last publisher.

        Raises:
            PublisherInUseError: another query publishes.
            FencedError: a newer run has replaced this one.
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

        ``rows`` are those of all stages, ``control`` is the number of control tuples. ``schema`` is
        Spark DDL, None for a batch without both.

        Returns:
            True: publish it. False: there is nothing to publish, or it is published already.

        Raises:
            FencedError: a newer run has replaced this one.
            BatchDiffersError: it was published with other rows, schema or number of tuples.
            PublisherInUseError: another query publishes.
        """
        if self.query is not None and query != self.query:
            if not (rows or control):
                self._note_empty(query, batch)
                return False  # nothing to publish, so no conflict with the other query
            raise PublisherInUseError(self.export, self.query)
        if self.query is None:
            self._take_over(query, run, schema or "", now)
        self.check_run(run)
        self._begin_run(run)
        self._renew(now)
        if not self.is_published(batch):
            return True
        previous = self.history.get(batch)
        if previous is None:
            return False
        if rows != previous.rows or ((rows or control) and _differs(previous.schema, schema)):
            raise BatchDiffersError(
                self.export,
                batch,
                f"{previous.rows} rows of {previous.schema}",
                f"{rows} rows of {schema}",
            )
        if control != previous.control:
            counts = (f"{n} control tuples" for n in (previous.control, control))
            raise BatchDiffersError(self.export, batch, *counts)
        return False

    def _note_empty(self, query: str, batch: int) -> None:
        """Record a batch without rows of a query that published before and may return."""
        known = self.earlier.get(query)
        if known is not None and batch > known.batch:
            self.earlier[query] = Published(batch=batch, rows=0, schema=known.schema)

    def record_published(
        self, *, batch: int, rows: int, schema: str | None, control: int = 0
    ) -> int:
        """Record that a batch is durable; return how many batch ids were left out before it.

        A batch without rows and control tuples makes no epoch.
        """
        before = self.gap_before(batch)
        gap = before - self.skipped
        self.gaps += gap
        self.skipped = 0 if rows or control else before
        self.restore_batch(batch=batch, rows=rows, schema=schema, control=control)
        return gap

    def restore_batch(self, *, batch: int, rows: int, schema: str | None, control: int = 0) -> None:
        """Set the last published batch; after a restart those without an epoch are unknown."""
        named = schema or self.schema or ""
        self.last = Published(batch=batch, rows=rows, schema=named, control=control)
        self.history[batch] = self.last
        while len(self.history) > MAX_HISTORY:
            del self.history[next(iter(self.history))]
