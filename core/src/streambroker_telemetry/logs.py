"""The log of a process: text, or one JSON object a line with the ids of the current span."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import threading
from collections.abc import Sequence
from datetime import UTC, datetime

VARIABLE = "STREAMBROKER_LOG_FORMAT"
FORMATS = ("text", "json")

_STANDARD = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime"})


class JsonFormatter(logging.Formatter):
    """Formats a record as JSON: ``time``, ``level``, ``logger``, ``message``, then what it has.

    That is ``trace_id`` and ``span_id`` within a span, ``exception``, and the record's own fields.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_span_ids(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        own = {name: of for name, of in vars(record).items() if name not in _STANDARD}
        return json.dumps({**own, **line}, default=str)


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--log-format`` to a command line."""
    parser.add_argument(
        "--log-format",
        default=os.environ.get(VARIABLE) or FORMATS[0],
        type=_parse_format,
        metavar="|".join(FORMATS),
        help=f"lines of the log; default ${VARIABLE}, or {FORMATS[0]}",
    )


def read_option(arguments: Sequence[str] | None) -> str:
    """Return the format that a command line asks for, before the rest of it is read."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_option(parser)
    return str(parser.parse_known_args(arguments)[0].log_format)


def configure(format_: str, level: int | str, text: str) -> None:
    """Write the log to standard error; ``text`` is the layout of lines that are not JSON."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if format_ == "json" else logging.Formatter(text))
    logging.basicConfig(level=level, handlers=[handler])
    if format_ == "json":
        logging.captureWarnings(capture=True)
        log = logging.getLogger("streambroker")
        sys.excepthook = lambda *error: log.critical("the process ends", exc_info=error)
        threading.excepthook = lambda of: log.error("a thread ends", exc_info=of.exc_value)


def format_line(format_: str, message: str, level: int = logging.INFO) -> str:
    """Return a message of the process itself as a line of its log."""
    if format_ == "text":
        return f"{message}\n"
    facts = {"name": "streambroker", "levelname": logging.getLevelName(level), "msg": message}
    return JsonFormatter().format(logging.makeLogRecord(facts)) + "\n"


def read_message(line: str) -> str:
    """Return the message of a line of either format."""
    try:
        return str(json.loads(line)["message"])
    except (ValueError, LookupError, TypeError):
        return line


def _parse_format(text: str) -> str:
    if text not in FORMATS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a format; write {' or '.join(FORMATS)}")
    return text


def _span_ids() -> dict[str, str]:
    """Return the ids of the current span; empty without one, and without OpenTelemetry."""
    trace = sys.modules.get("opentelemetry.trace")
    context = None if trace is None else trace.get_current_span().get_span_context()
    if context is None or not context.is_valid:
        return {}
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}
