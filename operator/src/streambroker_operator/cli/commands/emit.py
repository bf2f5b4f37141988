"""``emit``: send a control tuple to the importers of an export, or to operators of a PE."""

from __future__ import annotations

import argparse
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from streambroker_client.broker import Broker, pe_path, port_path
from streambroker_client.errors import BrokerError, with_members
from streambroker_core.control.tuples import Delivery
from streambroker_core.control.tuples.envelope import DELIVERIES
from streambroker_core.deprecation import CHANGED_DELIVERY
from streambroker_core.errors import ManifestError, StreambrokerError
from streambroker_core.model import PeKey, PortKey
from streambroker_operator.cli.io.errors import OK, UsageError, print_notes
from streambroker_operator.cli.io.manifest_files import read_value
from streambroker_operator.cli.io.options import (
    add_output,
    add_remote_command,
    client_for,
    one_of,
    parse_seconds,
)
from streambroker_operator.cli.io.targets import find_port, with_suggestion
from streambroker_operator.cli.io.terminal import one_line, print_text
from streambroker_operator.cli.output.table import as_json

TIMEOUT_S = 60.0
PAUSE_S, MAX_PAUSE_S = 0.2, 2.0
"""Pause between polls for application of a tuple; doubled up to the maximum. In seconds."""
_MICROSECONDS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Destination:
    """Destination of a tuple: display name, REST path, namespace, and the export if it is one."""

    name: str
    path: str
    namespace: str
    export: PortKey | None = None


class _NotAppliedError(StreambrokerError):
    code = "NotApplied"


def add(commands: Any) -> None:
    """Add the command."""
    text = "send a control tuple to the importers of an export, or to the operators of a PE"
    command = add_remote_command(commands, "emit", text)
    command.add_argument("aim", metavar="EXPORT|JOB/PE", help="an export, or pe/JOB/PE")
    command.add_argument("type", metavar="TYPE", help="name of the payload's type")
    command.add_argument("payload", nargs="?", metavar="PAYLOAD", help="YAML or JSON; default null")
    command.add_argument(
        "--delivery",
        type=one_of(*DELIVERIES),
        metavar="|".join(DELIVERIES),
        help="when operators get it; default END_WINDOW",
    )
    command.add_argument(
        "--at", metavar="TIME", help="with AT_TIME: event time, in microseconds or as ISO 8601"
    )
    command.add_argument("--operator", metavar="NAME", help="for this operator alone")
    command.add_argument("--bucket", type=int, metavar="N", help="for this bucket of it")
    command.add_argument(
        "--key",
        action="append",
        metavar="VALUE",
        help="for the bucket that holds this key; once for each key column",
    )
    command.add_argument(
        "--wait", action="store_true", help="wait until all readers of control have applied it"
    )
    command.add_argument(
        "--timeout",
        type=parse_seconds,
        default=TIMEOUT_S,
        metavar="SECONDS",
        help=f"for the agent's answer, and for --wait; default {TIMEOUT_S:g}",
    )
    command.add_argument(
        "--request-id",
        metavar="ID",
        help=("repeating the same id emits nothing more; default random"),
    )
    add_output(command, "text", "json")
    command.set_defaults(run=_emit)


def _emit(options: argparse.Namespace) -> int:
    broker = client_for(options)
    if options.delivery is None:
        print_notes([CHANGED_DELIVERY])
    body = _body(options)
    destination = _resolve_destination(broker, options)
    deadline = time.monotonic() + options.timeout
    request_id = options.request_id or uuid.uuid4().hex
    answer = _send(broker, destination, body, request_id, deadline)
    if options.output == "text":
        print_text(f"{destination.name} emitted {one_line(options.type)} {answer['id']}\n")
    if options.wait:
        answer = _wait_applied(broker, destination, answer, request_id, deadline, options.timeout)
        if options.output == "text":
            print_text(f"{destination.name} applied {answer['id']} by {len(answer['readers'])}\n")
    if options.output == "json":
        print_text(as_json(answer))
    return OK


def _body(options: argparse.Namespace) -> dict[str, Any]:
    delivery = options.delivery or Delivery.END_WINDOW.value
    request: dict[str, Any] = {"type": options.type, "delivery": delivery}
    if options.payload is not None:
        request["payload"] = read_value(options.payload)
    if options.at is not None:
        request["at"] = _parse_time(options.at)
    key = None if options.key is None else [read_value(value) for value in options.key]
    target_fields = {"operator": options.operator, "bucket": options.bucket, "key": key}
    target = {name: value for name, value in target_fields.items() if value is not None}
    return {**request, **({"target": target} if target else {})}


def _parse_time(text: str) -> int:
    """Return a time in microseconds since 1970; UTC if it has no zone."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        parsed = datetime.fromisoformat(text.removesuffix("Z"))
    except ValueError as error:
        raise UsageError(
            f"{text!r} is not a time: write microseconds, or 2013-01-01T12:00:00Z."
        ) from error
    zoned = parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    elapsed = zoned - datetime.fromtimestamp(0, UTC)
    return (elapsed.days * 86_400 + elapsed.seconds) * _MICROSECONDS + elapsed.microseconds


def _resolve_destination(broker: Broker, options: argparse.Namespace) -> _Destination:
    word = str(options.aim)
    rest = word.removeprefix("pe/") if word.count("/") > 1 else word
    if rest.count("/") == 1 and rest.rpartition("/")[2].isdigit():
        try:
            pe = PeKey.parse(f"{options.namespace}/{rest}")
        except ManifestError as error:
            raise UsageError(f"{rest!r} is not JOB/PE: {error.reason}.") from error
        return _Destination(name=f"pe {pe}", path=f"{pe_path(pe)}/control", namespace=pe.namespace)
    key = find_port(broker, "exports", word, options.namespace)
    path = f"{port_path('export', key)}/control"
    return _Destination(name=f"export {key}", path=path, namespace=key.namespace, export=key)


def _send(
    broker: Broker,
    destination: _Destination,
    body: dict[str, Any],
    request_id: str,
    deadline: float,
) -> dict[str, Any]:
    """Send a tuple; retry until the deadline while the agent is away."""
    while True:
        try:
            answer: dict[str, Any] = broker.connection.change(
                "POST",
                destination.path,
                body,
                request_id=request_id,
                namespace=destination.namespace,
            )
            return answer
        except BrokerError as error:
            pause = float(error.problem.get("retryAfter", PAUSE_S))
            if error.code != "AgentAway" or time.monotonic() + pause > deadline:
                raise _explain_error(broker, destination, error, request_id) from error
            time.sleep(pause)


def _explain_error(
    broker: Broker, destination: _Destination, error: BrokerError, request_id: str
) -> BrokerError:
    if error.code == "AgentAway":
        text = f"{error} `--request-id {request_id}` repeats this one."
        return with_members(error, detail=text)
    return (
        error
        if destination.export is None
        else with_suggestion(broker, "exports", destination.export, error)
    )


def _wait_applied(
    broker: Broker,
    destination: _Destination,
    answer: dict[str, Any],
    request_id: str,
    deadline: float,
    timeout: float,
) -> dict[str, Any]:
    """Poll until all readers have applied a tuple, at most until the deadline; return its state."""
    pause = PAUSE_S
    while not answer["applied"]:
        if time.monotonic() + pause > deadline:
            raise _NotAppliedError(
                f"{answer['id']} is emitted, and {_pending_text(answer)} after {timeout:g} s."
                f" `--request-id {request_id} --wait` continues to wait.",
            )
        time.sleep(pause)
        pause = min(MAX_PAUSE_S, 2 * pause)
        path = f"{destination.path}/{answer['id']}"
        try:
            answer = broker.connection.call("GET", path, namespace=destination.namespace)
        except BrokerError as error:
            if error.code != "AgentAway":
                raise
    return answer


def _pending_text(answer: dict[str, Any]) -> str:
    late = [r.get("import") or r["reader"] for r in answer["readers"] if not r["applied"]]
    if late:
        return f"not applied by {', '.join(sorted(set(late)))}"
    return "no reader reads control there"
