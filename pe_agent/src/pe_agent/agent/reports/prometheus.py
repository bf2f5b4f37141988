"""Agent's Prometheus endpoint: ``GET /metrics`` on its own port, with ``--metrics-port`` only.

The response has port names and numbers, no rows, and needs no token.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias

from pe_agent.agent.reports.log_limiter import RateLimitedLog

VARIABLE = "STREAMBROKER_METRICS_PORT"
TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_ROUTES = 2_000
"""Maximum routes in a response; of more, those with the largest lag."""
_PREFIX = "streambroker_"
_TIMEOUT = 10.0

_Sample = tuple[Mapping[str, str], float]

_EXPORT_METRICS: Mapping[str, tuple[str, str, Callable[[Mapping[str, Any]], float]]] = {
    "export_published_rows_total": (
        "counter",
        "Rows published.",
        lambda e: e["publishedRows"],
    ),
    "export_held_bytes": (
        "gauge",
        "Bytes that readers which are waited for have not finished.",
        lambda e: e["held"],
    ),
    "export_limit_bytes": ("gauge", "What the export may keep.", lambda e: e["limit"]),
    "export_waiting": ("gauge", "1 while a task waits.", lambda e: e["waitingSince"] is not None),
    "export_waited_seconds_total": (
        "counter",
        "Seconds that tasks have waited.",
        lambda e: e["waitedSeconds"],
    ),
    "export_batch_gaps_total": ("counter", "Batch ids that were left out.", lambda e: e["gaps"]),
    "export_damaged_segments": (
        "gauge",
        "Segments of the log that are damaged.",
        lambda e: e["damagedSegments"],
    ),
    "export_missing_epochs": (
        "gauge",
        "Epochs that are not in the log though nothing removed them.",
        lambda e: e["missing"],
    ),
}
_ROUTE_METRICS: Mapping[str, tuple[str, str, Callable[[Mapping[str, Any]], float]]] = {
    "route_lag_epochs": ("gauge", "Epochs to read, of the slowest.", lambda r: r["lag"][0]),
    "route_lag_rows": ("gauge", "Rows to read, of the slowest.", lambda r: r["lagRows"]),
    "route_lag_bytes": ("gauge", "Bytes to read, of the slowest.", lambda r: r["lag"][1]),
    "route_lag_seconds": (
        "gauge",
        "Age of the oldest epoch to read, of the slowest.",
        lambda r: r["lagSeconds"],
    ),
    "route_congestion": (
        "gauge",
        "Percent of the log that the slowest has still to read.",
        lambda r: r["congestion"],
    ),
    "route_delivered_rows_total": ("counter", "Rows delivered.", lambda r: r["delivered"]),
    "route_filtered_rows_total": ("counter", "Rows filtered out.", lambda r: r["filtered"]),
    "route_dropped_rows_total": ("counter", "Rows dropped.", lambda r: r["dropped"][1]),
    "route_lost_rows_total": ("counter", "Rows lost.", lambda r: r["lost"][1]),
    "route_duplicate_rows_total": (
        "counter",
        "Rows passed over that were read from a lost log.",
        lambda r: r["duplicates"][1],
    ),
    "route_sent_rows_total": ("counter", "Rows sent.", lambda r: r["sentRows"]),
    "route_sent_bytes_total": ("counter", "Bytes sent.", lambda r: r["sentBytes"]),
    "route_blocked_seconds_total": (
        "counter",
        "Seconds that the export has waited for a reader.",
        lambda r: r["blockedSeconds"],
    ),
    "route_released_plans_total": (
        "counter",
        "Plans that ended because their reader was away.",
        lambda r: r["releasedPlans"],
    ),
}
_Metric: TypeAlias = "tuple[str, str, Callable[[Mapping[str, Any]], float | None]]"
"""Type, help text, and value of an item; None if the item has no value."""
_SIDE_METRICS: Mapping[str, _Metric] = {
    "side_waiting_rows": ("gauge", "Rows that wait for it.", lambda s: s["waitingRows"]),
    "side_waiting_bytes": ("gauge", "Their bytes.", lambda s: s["waitingBytes"]),
    "side_waiting_seconds": (
        "gauge",
        "For how long the first of them has waited.",
        lambda s: s["waitingSeconds"] or 0.0,
    ),
    "side_entries": ("gauge", "Values that functions can see.", lambda s: s["entries"]),
    "side_bytes": ("gauge", "Their bytes.", lambda s: s["size"]),
    "side_windows": ("gauge", "Windows with values.", lambda s: s["windows"]),
    "side_staged_rows": ("gauge", "Rows of a load that is not complete.", lambda s: s["staged"]),
    "side_version_seconds": ("gauge", "Age of its version.", lambda s: s["versionSeconds"]),
    "side_reported_seconds": ("gauge", "Age of these metrics.", lambda s: s["age"]),
    "side_rows_total": ("counter", "Rows taken.", lambda s: s["rows"]),
    "side_late_rows_total": ("counter", "Rows that came too late.", lambda s: s["late"]),
    "side_refused_rows_total": ("counter", "Rows not taken.", lambda s: s["refused"]),
}
_RULE_LABELS = ("operator", "log", "rule", "version")
_RULE_METRICS: Mapping[str, _Metric] = {
    "rule_tested_events_total": ("counter", "Events it has seen.", lambda r: r["tested"]),
    "rule_matches_total": ("counter", "Matches found.", lambda r: r["matches"]),
    "rule_timeouts_total": ("counter", "Partial matches that timed out.", lambda r: r["timeouts"]),
    "rule_dropped_runs_total": ("counter", "Runs beyond its limits.", lambda r: r["dropped"]),
    "rule_errors_total": ("counter", "How often it failed.", lambda r: r["errors"]),
    "rule_runs": ("gauge", "Partial matches alive.", lambda r: r["alive"]),
    "rule_seconds_total": ("counter", "Time spent on it.", lambda r: r["nanoseconds"] / 1e9),
    "rule_reported_seconds": ("gauge", "Age of these metrics.", lambda r: r["age"]),
}
_RULE_WAITING_METRICS: Mapping[str, _Metric] = {
    "rule_waiting_rows": ("gauge", "Rows that wait for the watermark.", lambda r: r["rows"]),
    "rule_watermark_seconds": (
        "gauge",
        "The watermark, in seconds since 1970.",
        lambda r: None if r["watermark"] is None else r["watermark"] / 1e6,
    ),
}


def render_text(status: Mapping[str, Any], agent: Mapping[str, float]) -> str:
    """Return the metrics of a ``status`` and of the agent itself in Prometheus' text format.

    Readers of one import are one route: its counters are sums, its lag is that of the slowest.
    """
    lines = [
        line
        for name, value in agent.items()
        for line in _render_family(
            name,
            "counter" if name.endswith("_total") else "gauge",
            _AGENT_HELP[name],
            [({}, value)],
        )
    ]
    exports = status["exports"]
    for name, (kind, help_text, read_value) in _EXPORT_METRICS.items():
        samples = [({"export": key}, float(read_value(export))) for key, export in exports.items()]
        lines += _render_family(name, kind, help_text, samples)
    routes = _group_by_route(exports)
    for name, (kind, help_text, read_value) in _ROUTE_METRICS.items():
        aggregate = sum if kind == "counter" else max
        samples = [
            (
                {"export": export, "import": import_},
                float(aggregate([read_value(r) for r in readers])),
            )
            for (export, import_), readers in routes.items()
        ]
        lines += _render_family(name, kind, help_text, samples)
    lines += _render_control(status, routes)
    lines += _render_sides(status.get("sides", ()))
    lines += _render_each(status.get("ruleFigures", ()), _RULE_LABELS, _RULE_METRICS)
    lines += _render_each(status.get("ruleWaiting", ()), _RULE_LABELS[:2], _RULE_WAITING_METRICS)
    return "\n".join(lines) + "\n"


def _render_control(
    status: Mapping[str, Any], routes: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]
) -> Iterator[str]:
    """Yield the counts of control tuples, separate from rows, by delivery."""
    for what, help_text in _EXPORT_CONTROL_METRICS.items():
        samples = [
            ({"export": key, "delivery": delivery}, float(count))
            for key, export in status["exports"].items()
            for delivery, count in sorted(export["control"][what].items())
        ]
        yield from _render_family(f"export_control_{what}_total", "counter", help_text, samples)
    sent = [
        ({"export": export, "import": import_, "delivery": delivery}, float(count))
        for (export, import_), readers in routes.items()
        for delivery, count in sorted(_sum_counts(r["sentControl"] for r in readers).items())
    ]
    yield from _render_family("route_sent_control_total", "counter", "Control tuples sent.", sent)
    for what, help_text in _CONTROL_LOG_METRICS.items():
        of_log = sorted(status["controlLog"][what].items())
        samples = [({"delivery": delivery}, float(count)) for delivery, count in of_log]
        yield from _render_family(f"control_log_{what}_total", "counter", help_text, samples)
    waiting = float(status["controlLog"]["waiting"])
    yield from _render_family("control_log_waiting_tuples", "gauge", _WAITING_HELP, [({}, waiting)])


def _render_sides(sides: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    names = ("query", "operator", "input")
    yield from _render_each(sides, names, _SIDE_METRICS)
    versions = [
        ({name: side[name] for name in (*names, "version")}, 1.0)
        for side in sides
        if side["version"] is not None
    ]
    yield from _render_family(
        "side_version", "gauge", "1 for the version that is active.", versions
    )


def _render_each(
    items: Sequence[Mapping[str, Any]], names: Sequence[str], metrics: Mapping[str, _Metric]
) -> Iterator[str]:
    """Yield metrics of items, labelled by ``names``; items without a value are omitted."""
    for name, (kind, help_text, read_value) in metrics.items():
        values = [
            ({label: str(item[label]) for label in names}, read_value(item)) for item in items
        ]
        yield from _render_family(
            name, kind, help_text, [(at, float(v)) for at, v in values if v is not None]
        )


def _sum_counts(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    totals: Counter[str] = Counter()
    for one in counts:
        totals.update(one)
    return totals


_EXPORT_CONTROL_METRICS = {
    "accepted": "Control tuples from outside.",
    "published": "Control tuples in epochs, from all sources.",
}
_CONTROL_LOG_METRICS = {
    "accepted": "Control tuples for the job's own operators.",
    "applied": "Control tuples whose windows all queries have finished.",
}
_WAITING_HELP = "Control tuples that the slowest query has still to process."
_AGENT_HELP = {
    "recovery_seconds": "Seconds spent reading the logs at the start.",
    "scrub_verified_bytes_total": "Bytes of the logs verified since the start.",
    "scrub_waiting_segments": "Segments that are not verified yet.",
}


def _group_by_route(
    exports: Mapping[str, Mapping[str, Any]],
) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    routes: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for key, export in exports.items():
        for reader in export["readers"].values():
            routes.setdefault((key, reader["import"]), []).append(reader)
    if len(routes) <= MAX_ROUTES:
        return routes
    behind = sorted(routes, key=lambda route: -max(r["lag"][1] for r in routes[route]))
    return {route: routes[route] for route in behind[:MAX_ROUTES]}


def _render_family(
    name: str, kind: str, help_text: str, samples: Sequence[_Sample]
) -> Iterator[str]:
    yield f"# HELP {_PREFIX}{name} {help_text}"
    yield f"# TYPE {_PREFIX}{name} {kind}"
    for labels, value in samples:
        label_text = ",".join(
            f'{label}="{_escape(label_value)}"' for label, label_value in labels.items()
        )
        number = int(value) if value == int(value) else value
        yield f"{_PREFIX}{name}{'{' + label_text + '}' if label_text else ''} {number}"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class MetricsServer:
    """Serves ``GET /metrics`` in its own threads; ``port`` 0 is any port.

    Raises:
        OSError: the port is in use.
    """

    def __init__(self, host: str, port: int, read: Callable[[], str]) -> None:
        self._server = _Server((host, port), _create_handler(read))
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        threading.Thread(
            target=self._server.serve_forever, daemon=True, name="agent metrics"
        ).start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing about a caller that disconnects: any caller could flood the log."""


def _create_handler(read: Callable[[], str]) -> type[BaseHTTPRequestHandler]:
    rate_limited_log = RateLimitedLog()

    class Handler(BaseHTTPRequestHandler):
        timeout = _TIMEOUT

        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404, "only /metrics is here")
                return
            try:
                body = read().encode()
            except Exception as error:
                rate_limited_log.warning(f"cannot read metrics: {error!r:.500}")
                self.send_error(500, "cannot read the metrics, see the agent's log")
                return
            self.send_response(200)
            self.send_header("Content-Type", TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Log no request: scrapes come every few seconds."""

    return Handler


__all__ = ["MAX_ROUTES", "VARIABLE", "MetricsServer", "render_text"]
