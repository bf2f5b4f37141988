"""A broker whose log a program reads."""

from __future__ import annotations

import json
import signal
import urllib.request
from pathlib import Path

from support.brokers.brokers import BrokerProcess


def test_all_that_a_broker_writes_is_json(tmp_path: Path) -> None:
    options = ("--port", "0", "--log-format", "json", "--log-level", "INFO")
    broker = BrokerProcess(tmp_path / "broker.db", *options)
    first = json.loads(broker.first_line())
    message = first["message"].splitlines()[0]
    assert message.startswith("streambroker listening on http://")
    url = message.rpartition(" ")[2]
    body = json.dumps({"properties": {"kind": "trade"}}).encode()
    path = f"{url}/api/subscriptions/job/feed/pe/0/export/trades"
    request = urllib.request.Request(path, body, {"Content-Type": "application/json"}, method="PUT")
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status in (200, 201)
    broker.process.send_signal(signal.SIGTERM)
    code, written = broker.end(30)
    lines = [json.loads(line) for line in written.splitlines()]
    assert code == 0
    assert lines
    assert {"time", "level", "logger", "message"} <= set(lines[0])
