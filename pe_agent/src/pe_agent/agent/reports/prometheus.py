"""Agent's Prometheus endpoint: ``GET /metrics`` on its own port, with ``--metrics-port`` only.

The response has port names and numbers, no rows, and needs no token.
"""

from __future__ import annotations

import ssl
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
Family: TypeAlias = "tuple[str, str, Sequence[_Sample]]"
"""Name, help text and samples of a metric."""

_Item: TypeAlias = "Mapping[str, Any]"
_Metric: TypeAlias = "tuple[str, str | Callable[[_Item], float | None]]"
"""Help text, and an item's key or function of the value; None if the item has no value."""
_EXPORT_METRICS: Mapping[str, _Metric] = {
    "export_published_rows_total": ("Rows published.", "publishedRows"),
    "export_held_bytes": ("Bytes that readers which are waited for have not finished.", "held"),
    "export_limit_bytes": ("What the export may keep.", "limit"),
    "export_unclaimed_bytes": ("Bytes that no reader claims, as those of an archive.", "unclaimed"),
    "export_waiting": ("1 while a task waits.", lambda e: e["waitingSince"] is not None),
    "export_waited_seconds_total": ("Seconds that tasks have waited.", "waitedSeconds"),
    "export_batch_gaps_total": ("Batch ids that were left out.", "gaps"),
    "export_damaged_segments": ("Segments of the log that are damaged.", "damagedSegments"),
    "export_missing_epochs": (
        "Epochs that are not in the log though nothing removed them.",
        "missing",
    ),
    "export_storage_behind_bytes": (
        "Bytes on disk that object storage does not have yet.",
        lambda e: None if e["storage"] is None else e["storage"]["bytes"],
    ),
    "export_storage_behind_seconds": (
        "For how long the oldest of them have waited.",
        lambda e: None if e["storage"] is None else e["storage"]["seconds"],
    ),
    "export_storage_failing": (
        "1 if the last upload failed.",
        lambda e: None if e["storage"] is None else e["storage"]["error"] is not None,
    ),
    "export_storage_superseded": (
        "1 if another agent has taken over.",
        lambda e: None if e["storage"] is None else e["storage"]["superseded"],
    ),
}
_ROUTE_METRICS: Mapping[str, _Metric] = {
    "route_lag_epochs": ("Epochs to read, of the slowest.", lambda r: r["lag"][0]),
    "route_lag_rows": ("Rows to read, of the slowest.", "lagRows"),
    "route_lag_bytes": ("Bytes to read, of the slowest.", lambda r: r["lag"][1]),
    "route_lag_seconds": ("Age of the oldest epoch to read, of the slowest.", "lagSeconds"),
    "route_congestion": ("Percent of the log that the slowest has still to read.", "congestion"),
    "route_delivered_rows_total": ("Rows delivered.", "delivered"),
    "route_filtered_rows_total": ("Rows filtered out.", "filtered"),
    "route_dropped_rows_total": ("Rows dropped.", lambda r: r["dropped"][1]),
    "route_lost_rows_total": ("Rows lost.", lambda r: r["lost"][1]),
    "route_duplicate_rows_total": (
        "Rows passed over that were read from a lost log.",
        lambda r: r["duplicates"][1],
    ),
    "route_sent_rows_total": ("Rows sent.", "sentRows"),
    "route_sent_bytes_total": ("Bytes sent.", "sentBytes"),
    "route_blocked_seconds_total": (
        "Seconds that the export has waited for a reader.",
        "blockedSeconds",
    ),
    "route_throttled_seconds_total": (
        "Seconds for which blocks were delayed to keep a rate.",
        lambda r: r.get("throttledSeconds", 0),
    ),
    "route_released_plans_total": (
        "Plans that ended because their reader was away.",
        "releasedPlans",
    ),
}
_SIDE_METRICS: Mapping[str, _Metric] = {
    "side_waiting_rows": ("Rows that wait for it.", "waitingRows"),
    "side_waiting_bytes": ("Their bytes.", "waitingBytes"),
    "side_waiting_seconds": (
        "For how long the first of them has waited.",
        lambda s: s["waitingSeconds"] or 0.0,
    ),
    "side_entries": ("Values that functions can see.", "entries"),
    "side_bytes": ("Their bytes.", "size"),
    "side_windows": ("Windows with values.", "windows"),
    "side_staged_rows": ("Rows of a load that is not complete.", "staged"),
    "side_version_seconds": ("Age of its version.", "versionSeconds"),
    "side_reported_seconds": ("Age of these metrics.", "age"),
    "side_rows_total": ("Rows taken.", "rows"),
    "side_late_rows_total": ("Rows that came too late.", "late"),
    "side_refused_rows_total": ("Rows not taken.", "refused"),
}
_CERTIFICATE_METRICS: Mapping[str, _Metric] = {
    "certificate_expiry_timestamp_seconds": (
        "When the agent's certificate ends, in seconds since 1970; absent without TLS.",
        lambda c: ssl.cert_time_to_seconds(c["until"]),
    ),
}
_RULE_LABELS = ("operator", "log", "rule", "version")
_RULE_METRICS: Mapping[str, _Metric] = {
    "rule_tested_events_total": ("Events it has seen.", "tested"),
    "rule_matches_total": ("Matches found.", "matches"),
    "rule_timeouts_total": ("Partial matches that timed out.", "timeouts"),
    "rule_dropped_runs_total": ("Runs beyond its limits.", "dropped"),
    "rule_errors_total": ("How often it failed.", "errors"),
    "rule_runs": ("Partial matches alive.", "alive"),
    "rule_seconds_total": ("Time spent on it.", lambda r: r["nanoseconds"] / 1e9),
    "rule_reported_seconds": ("Age of these metrics.", "age"),
}
_RULE_WAITING_METRICS: Mapping[str, _Metric] = {
    "rule_waiting_rows": ("Rows that wait for the watermark.", "rows"),
    "rule_watermark_seconds": (
        "The watermark, in seconds since 1970.",
        lambda r: None if r["watermark"] is None else r["watermark"] / 1e6,
    ),
}


def render_text(status: Mapping[str, Any], agent: Mapping[str, float]) -> str:
    """Return the metrics of a ``status`` and of the agent itself in Prometheus' text format."""
    lines = [line for of in collect(status, agent) for line in _render_family(*of)]
    return "\n".join(lines) + "\n"


def collect(status: Mapping[str, Any], agent: Mapping[str, float]) -> Iterator[Family]:
    """Yield the metrics of a ``status`` and of the agent itself.

    Readers of one import are one route: its counters are sums, its lag is that of the slowest.
    """
    for name, value in agent.items():
        yield _PREFIX + name, _AGENT_HELP[name], [({}, value)]
    exports = status["exports"]
    yield from _collect_each([({"export": key}, e) for key, e in exports.items()], _EXPORT_METRICS)
    routes = _group_by_route(exports)
    for name, (help_text, value_of) in _ROUTE_METRICS.items():
        aggregate = sum if name.endswith("_total") else max
        samples = [
            (
                {"export": export, "import": import_},
                float(aggregate(_read_value(r, value_of) or 0.0 for r in readers)),
            )
            for (export, import_), readers in routes.items()
        ]
        yield _PREFIX + name, help_text, samples
    losses = [({"import": key}, float(n)) for key, n in status.get("losses", {}).items()]
    yield _PREFIX + "import_losses_total", "How often readers have lost rows.", losses
    yield from _collect_control(status, routes)
    yield from _collect_sides(status.get("sides", ()))
    yield from _collect_each(
        [] if (certificate := status.get("certificate")) is None else [({}, certificate)],
        _CERTIFICATE_METRICS,
    )
    rules, waiting = status.get("ruleFigures", ()), status.get("ruleWaiting", ())
    yield from _collect_each(_label(rules, _RULE_LABELS), _RULE_METRICS)
    yield from _collect_each(_label(waiting, _RULE_LABELS[:2]), _RULE_WAITING_METRICS)


def _collect_control(
    status: Mapping[str, Any], routes: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]
) -> Iterator[Family]:
    """Yield the counts of control tuples, separate from rows, by delivery."""
    for what, help_text in _EXPORT_CONTROL_METRICS.items():
        samples = [
            ({"export": key, "delivery": delivery}, float(count))
            for key, export in status["exports"].items()
            for delivery, count in sorted(export["control"][what].items())
        ]
        yield f"{_PREFIX}export_control_{what}_total", help_text, samples
    sent = [
        ({"export": export, "import": import_, "delivery": delivery}, float(count))
        for (export, import_), readers in routes.items()
        for delivery, count in sorted(_sum_counts(r["sentControl"] for r in readers).items())
    ]
    yield _PREFIX + "route_sent_control_total", "Control tuples sent.", sent
    for what, help_text in _CONTROL_LOG_METRICS.items():
        of_log = sorted(status["controlLog"][what].items())
        samples = [({"delivery": delivery}, float(count)) for delivery, count in of_log]
        yield f"{_PREFIX}control_log_{what}_total", help_text, samples
    waiting = float(status["controlLog"]["waiting"])
    yield _PREFIX + "control_log_waiting_tuples", _WAITING_HELP, [({}, waiting)]


def _collect_sides(sides: Sequence[Mapping[str, Any]]) -> Iterator[Family]:
    names = ("query", "operator", "input")
    yield from _collect_each(_label(sides, names), _SIDE_METRICS)
    versions = [
        ({name: side[name] for name in (*names, "version")}, 1.0)
        for side in sides
        if side["version"] is not None
    ]
    yield _PREFIX + "side_version", "1 for the version that is active.", versions


def _label(items: Sequence[_Item], names: Sequence[str]) -> list[tuple[dict[str, str], _Item]]:
    return [({name: str(item[name]) for name in names}, item) for item in items]


def _collect_each(
    items: Sequence[tuple[Mapping[str, str], _Item]], metrics: Mapping[str, _Metric]
) -> Iterator[Family]:
    """Yield metrics of labelled items; items without a value are omitted."""
    for name, (help_text, value_of) in metrics.items():
        values = [(labels, _read_value(item, value_of)) for labels, item in items]
        present = [(labels, float(v)) for labels, v in values if v is not None]
        yield _PREFIX + name, help_text, present


def _read_value(item: _Item, value_of: str | Callable[[_Item], float | None]) -> float | None:
    value: float | None = item[value_of] if isinstance(value_of, str) else value_of(item)
    return value


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


def _render_family(name: str, help_text: str, samples: Sequence[_Sample]) -> Iterator[str]:
    kind = "counter" if name.endswith("_total") else "gauge"
    yield f"# HELP {name} {help_text}"
    yield f"# TYPE {name} {kind}"
    for labels, value in samples:
        label_text = ",".join(
            f'{label}="{_escape(label_value)}"' for label, label_value in labels.items()
        )
        number = int(value) if value == int(value) else value
        yield f"{name}{'{' + label_text + '}' if label_text else ''} {number}"


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
