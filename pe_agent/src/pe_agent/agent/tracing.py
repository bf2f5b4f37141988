"""Spans of an agent: one for each epoch, batch of a reader, and slice; none for a row.

They are children of the span that published the first of the epochs in question, and link to those
of the others. A batch that a query reads is the parent of the epochs that it publishes, so a trace
goes on from job to job.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from streambroker_core.ledger.offset import Offset
from streambroker_core.wire.agent_rpc.publisher import PublisherPublish

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

TRACEPARENT = "traceparent"
"""Field of a manifest and of a ticket, as W3C writes it."""
_PREFIX = "streambroker."
_Block = TypeVar("_Block")


class _Batch(NamedTuple):
    """A batch that a reader has planned and not acknowledged: its end, and its span."""

    end: Offset
    span: Span


class Tracing:
    """Makes the spans, and keeps those of unfinished batches. Thread-safe."""

    def __init__(self, tracer: Tracer) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._api, self._tracer, self._w3c = trace, tracer, TraceContextTextMapPropagator()
        self._lock = threading.Lock()
        self._batches: dict[str, _Batch] = {}

    def publish(
        self,
        request: PublisherPublish,
        readers: Iterable[str],
        commit: Callable[[str], dict[str, Any]],
    ) -> dict[str, Any]:
        """Commit a batch with the context of its span; ``readers`` are those of its query."""
        with self._lock:
            batches = [self._batches[r] for r in sorted(readers) if r in self._batches]
        span = self._start(
            "publish",
            [self._traceparent(batch.span) for batch in batches],
            kind=self._api.SpanKind.PRODUCER,
            attributes={
                "export": request.export,
                "query": request.query,
                "batch": request.batch,
                "rows": sum(stage["rows"] for stage in request.stages),
            },
        )
        with self._api.use_span(span, end_on_exit=True):
            answer = commit(self._traceparent(span))
            found = {name: answer[name] for name in ("published", "epoch", "stream")}
            span.set_attributes({_PREFIX + n: of for n, of in found.items() if of is not None})
            return answer

    def plan(
        self, reader: str, import_: str, end: Offset, traces: Iterable[str], began: int
    ) -> str:
        """Record a batch that was planned since ``began``; return the context of its delivery.

        A batch that is planned again, as after a failure of its query, goes on.
        """
        about: Mapping[str, Any] = {"import": import_, "reader": reader}
        with self._lock:
            known = self._batches.get(reader)
            if known is None or known.end != end:
                self._leave(reader)
                kind = self._api.SpanKind.CONSUMER
                span = self._start("deliver", traces, kind=kind, attributes=about, start_time=began)
                known = self._batches[reader] = _Batch(end, span)
        context = self._traceparent(known.span)
        self._start("plan", [context], attributes=about, start_time=began).end()
        return context

    def acknowledge(self, reader: str, start: Offset) -> None:
        """End the span of a batch that its query has finished."""
        with self._lock:
            known = self._batches.get(reader)
            if known is not None and known.end == start:
                del self._batches[reader]
                known.span.end()

    def leave(self, reader: str) -> None:
        """End the span of a batch that its query has left unfinished."""
        with self._lock:
            self._leave(reader)

    def read(self, ticket: Mapping[str, Any], blocks: Iterable[_Block]) -> Iterable[_Block]:
        """Return the blocks of a slice; their span ends with the last one."""
        context = str(ticket.get(TRACEPARENT, ""))
        return self._read(context, ticket, blocks) if context else blocks

    def _read(
        self, context: str, ticket: Mapping[str, Any], blocks: Iterable[_Block]
    ) -> Iterator[_Block]:
        about = {name: str(ticket.get(name)) for name in ("export", "import", "reader", "stream")}
        span = self._start("read", [context], kind=self._api.SpanKind.SERVER, attributes=about)
        try:
            yield from blocks
        except Exception as error:
            span.record_exception(error)
            span.set_status(self._api.StatusCode.ERROR)
            raise
        finally:
            span.end()

    def _leave(self, reader: str) -> None:
        known = self._batches.pop(reader, None)
        if known is not None:
            known.span.set_status(self._api.StatusCode.ERROR, "the batch was not finished")
            known.span.end()

    def _start(
        self, name: str, traces: Iterable[str], attributes: Mapping[str, Any], **options: Any
    ) -> Span:
        """Start a span below the first sampled context, else the first; link to the others."""
        found = [self._w3c.extract({TRACEPARENT: text}) for text in dict.fromkeys(traces)]
        spans = [self._api.get_current_span(context).get_span_context() for context in found]
        valid = [pair for pair in zip(found, spans, strict=True) if pair[1].is_valid]
        valid.sort(key=lambda pair: not pair[1].trace_flags.sampled)
        return self._tracer.start_span(
            name,
            context=valid[0][0] if valid else None,
            links=[self._api.Link(span) for _, span in valid[1:]],
            attributes={_PREFIX + key: value for key, value in attributes.items()},
            **options,
        )

    def _traceparent(self, span: Span) -> str:
        carrier: dict[str, str] = {}
        self._w3c.inject(carrier, self._api.set_span_in_context(span))
        return carrier[TRACEPARENT]
