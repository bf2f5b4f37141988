"""Traces and metrics to a collector of OpenTelemetry, by OTLP over HTTP.

OpenTelemetry is imported only if its own environment variables name an endpoint. Its SDK reads
them: endpoint, headers, timeouts, sampler, limits, service and resource.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

log = logging.getLogger("streambroker.otlp")

CLOSE_SECONDS = 2.0
"""For how long an ending process waits until its last spans are sent."""
INTERVAL_VARIABLE = "OTEL_METRIC_EXPORT_INTERVAL"
DEFAULT_INTERVAL_MS = 60_000


@dataclass(frozen=True, slots=True)
class Histogram:
    """Value of a histogram: counts between the upper bounds, the last one above them all."""

    bounds: list[float]
    counts: list[int]
    sum: float


Sample: TypeAlias = "tuple[Mapping[str, str], float | Histogram]"
Family: TypeAlias = "tuple[str, str, Iterable[Sample]]"
"""Name, help text and samples of a metric; a name that ends with ``_total`` is a counter's."""


class Telemetry:
    """Sends spans and metrics of this process."""

    def __init__(self, service: Mapping[str, str]) -> None:
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource

        chosen = OTELResourceDetector().detect().attributes
        self._resource = Resource.create({**service, **chosen})
        self._ends: list[Callable[[], object]] = []

    def start_traces(self) -> Any:
        """Return a tracer whose spans are sent; None if traces are off."""
        if not _is_on("TRACES"):
            return None
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        provider = TracerProvider(resource=self._resource, shutdown_on_exit=False)
        # Its queue is bounded: of spans that cannot be sent, the oldest are dropped.
        provider.add_span_processor(BatchSpanProcessor(_warn_once(OTLPSpanExporter(), "spans")))
        self._ends.append(provider.shutdown)
        return provider.get_tracer("streambroker")

    def push_metrics(self, collect: Callable[[], Iterable[Family]]) -> None:
        """Send the metrics that a function returns, from now on, in a thread."""
        if not _is_on("METRICS"):
            return
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

        exporter, stopping = _warn_once(OTLPMetricExporter(), "metrics"), threading.Event()
        interval = float(os.environ.get(INTERVAL_VARIABLE) or DEFAULT_INTERVAL_MS) / 1000
        started = time.time_ns()

        def push() -> None:
            while not stopping.wait(interval):
                try:
                    exporter.export(_encode(self._resource, collect(), started))
                except Exception as error:
                    log.warning("cannot collect metrics: %r", error)

        threading.Thread(target=push, daemon=True, name="otlp metrics").start()
        self._ends += [stopping.set, exporter.shutdown]

    def close(self) -> None:
        """Send what is left, for at most `CLOSE_SECONDS`."""
        ends = threading.Thread(target=lambda: [end() for end in self._ends], daemon=True)
        ends.start()
        ends.join(CLOSE_SECONDS)


def start(service: Mapping[str, str]) -> Telemetry | None:
    """Start what the environment asks for; None if that is nothing, or the extra is missing.

    ``service`` are resource attributes; the environment's replace them.
    """
    if not (_is_on("TRACES") or _is_on("METRICS")):
        return None
    try:
        return Telemetry(service)
    except ImportError as error:
        log.warning(
            "an OTLP endpoint is set, but OpenTelemetry is not installed (%s): nothing is sent."
            " Install 'streambroker[otel]', or set OTEL_SDK_DISABLED=true",
            error,
        )
        return None


def _is_on(signal: str) -> bool:
    variables = os.environ
    endpoint = variables.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
    return (
        bool(endpoint or variables.get("OTEL_EXPORTER_OTLP_ENDPOINT"))
        and variables.get("OTEL_SDK_DISABLED", "").lower() != "true"
        and variables.get(f"OTEL_{signal}_EXPORTER") != "none"
    )


def _warn_once(exporter: Any, what: str) -> Any:
    """Have an exporter log when it begins to fail, and when it works again; nothing in between."""
    export, failing = exporter.export, False

    def watched(data: Any, *args: Any, **options: Any) -> Any:
        nonlocal failing
        result = export(data, *args, **options)
        if failing != (result.name != "SUCCESS"):
            failing = not failing
            how = "cannot be sent" if failing else "are sent again"
            log.warning("%s of this process %s to the OTLP endpoint", what, how)
        return result

    exporter.export = watched
    # It has warned of wrong variables by now. The rest repeats itself for each attempt.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    return exporter


def _encode(resource: Any, families: Iterable[Family], started: int) -> Any:
    """Return metrics in the SDK's form, without an instrument for each."""
    from opentelemetry.sdk.metrics import export as sdk
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    times: dict[str, Any] = {"start_time_unix_nano": started, "time_unix_nano": time.time_ns()}
    cumulative = sdk.AggregationTemporality.CUMULATIVE

    def point(labels: Mapping[str, str], value: float | Histogram) -> Any:
        if not isinstance(value, Histogram):
            number = +value  # the encoder takes no bool
            return sdk.NumberDataPoint(attributes=labels, value=number, **times)
        return sdk.HistogramDataPoint(
            attributes=labels,
            count=sum(value.counts),
            sum=value.sum,
            bucket_counts=value.counts,
            explicit_bounds=value.bounds,
            min=None,  # type: ignore[arg-type]  # Prometheus has none
            max=None,  # type: ignore[arg-type]
            **times,
        )

    metrics = []
    for name, text, samples in families:
        points = [point(*sample) for sample in samples]
        if points and isinstance(points[0], sdk.HistogramDataPoint):
            data: Any = sdk.Histogram(points, cumulative)
        elif name.endswith("_total"):
            data = sdk.Sum(points, cumulative, is_monotonic=True)
        else:
            data = sdk.Gauge(points)
        metrics.append(sdk.Metric(name=name, description=text, unit="", data=data))
    scope = sdk.ScopeMetrics(InstrumentationScope("streambroker"), metrics, schema_url="")
    return sdk.MetricsData([sdk.ResourceMetrics(resource, [scope], schema_url="")])
