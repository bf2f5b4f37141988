"""Logs as JSON, and what is said where OpenTelemetry is asked for and missing."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from typing import Any

import pytest

from streambroker_telemetry import logs, otlp


def line(message: str, *args: Any, **facts: Any) -> dict[str, Any]:
    """Return a log line as an object."""
    record = logging.makeLogRecord({"msg": message, "args": args, "name": "pe_agent", **facts})
    text = logs.JsonFormatter().format(record)
    assert "\n" not in text
    found: dict[str, Any] = json.loads(text)
    return found


def test_a_record_is_one_line_whatever_is_in_it() -> None:
    found = line('two\nlines of "%s"', "x", levelname="WARNING", created=0.5)
    assert found == {
        "time": "1970-01-01T00:00:00.500+00:00",
        "level": "WARNING",
        "logger": "pe_agent",
        "message": 'two\nlines of "x"',
    }


def test_an_exception_and_the_records_own_fields_are_in_the_line() -> None:
    try:
        raise ValueError("no number")
    except ValueError:
        found = line("it failed", exc_info=sys.exc_info(), export="feed/0/trades", at=object)
    assert found["export"] == "feed/0/trades"
    assert found["at"] == "<class 'object'>"
    assert found["exception"].startswith("Traceback")
    assert found["exception"].endswith("ValueError: no number")


def test_a_field_of_a_record_replaces_none_of_the_line() -> None:
    assert line("it", time="noon", created=0.0)["time"] == "1970-01-01T00:00:00.000+00:00"


@pytest.mark.parametrize("text", ["plain", "{", '{"other": 1}', "[]", "3"])
def test_the_message_of_a_line_that_is_no_json_is_the_line(text: str) -> None:
    assert logs.read_message(text) == text
    assert logs.read_message(logs.format_line("json", text)) == text
    assert logs.read_message(logs.format_line("text", text)) == f"{text}\n"


def test_the_format_is_that_of_the_option_else_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert logs.read_option(["--home", "/tmp"]) == "text"
    monkeypatch.setenv(logs.VARIABLE, "json")
    assert logs.read_option(["--home", "/tmp"]) == "json"
    assert logs.read_option(["--log-format", "text", "--pe", "1"]) == "text"
    monkeypatch.setenv(logs.VARIABLE, "xml")
    with pytest.raises(SystemExit):
        logs.read_option([])
    assert "'xml' is not a format; write text or json" in capsys.readouterr().err
    parser = argparse.ArgumentParser()
    logs.add_option(parser)
    assert parser.parse_args(["--log-format", "json"]).log_format == "json"


def test_where_opentelemetry_is_missing_the_remedy_is_logged_and_nothing_is_sent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    assert otlp.start({"service.name": "feed"}) is None
    [record] = caplog.records
    assert "Install 'streambroker[otel]', or set OTEL_SDK_DISABLED=true" in record.getMessage()
