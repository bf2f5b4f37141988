"""A collector of OpenTelemetry: receives OTLP over HTTP, and keeps what it has received."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One span; ids are in hexadecimal, ``parent`` is empty for the first of a trace."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    links: tuple[str, ...]
    attributes: dict[str, Any]
    failed: bool


class Collector:
    """What was received, by all processes."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[Span] = []
        self.metrics: dict[tuple[str, str], Metric] = {}

    def environment(self) -> dict[str, str]:
        """Return the variables with which a process sends its spans and metrics here, soon."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.url,
            "OTEL_BSP_SCHEDULE_DELAY": "50",
            "OTEL_METRIC_EXPORT_INTERVAL": "100",
        }

    def named(self, name: str, *, service: str | None = None) -> list[Span]:
        """Return the spans of a name."""
        return [s for s in list(self.spans) if s.name == name and service in (None, s.service)]

    def take_spans(self, body: bytes) -> None:
        """Keep the spans of a request."""
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = str(_values(resource.resource.attributes)["service.name"])
            self.spans += [
                Span(
                    service=service,
                    name=span.name,
                    trace=span.trace_id.hex(),
                    id=span.span_id.hex(),
                    parent=span.parent_span_id.hex(),
                    links=tuple(link.span_id.hex() for link in span.links),
                    attributes=_values(span.attributes),
                    failed=span.status.code == span.status.STATUS_CODE_ERROR,
                )
                for scope in resource.scope_spans
                for span in scope.spans
            ]

    def take_metrics(self, body: bytes) -> None:
        """Keep the last values of the metrics of a request, by service and name."""
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            service = str(_values(resource.resource.attributes)["service.name"])
            for scope in resource.scope_metrics:
                self.metrics.update({(service, one.name): one for one in scope.metrics})


def _values(attributes: Sequence[Any]) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


@contextmanager
def collecting(port: int = 0) -> Iterator[Collector]:
    """Run a collector; on a free port without one."""
    collector = Collector("")
    taken_by = {"/v1/traces": collector.take_spans, "/v1/metrics": collector.take_metrics}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            taken_by[self.path](self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        server.daemon_threads = True
        collector.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield collector
        server.shutdown()
