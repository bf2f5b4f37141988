"""``emit``: send a control tuple to the importers of an export, or to a job's own operators."""

from __future__ import annotations

import argparse
import time
import uuid
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from streambroker_core.control.tuples.envelope import DELIVERIES
from streambroker_core.errors import ManifestError
from streambroker_core.model import PeKey, PortKey
from streambroker_operator.cli.io.client import Caller, pe_path, port_path
from streambroker_operator.cli.io.errors import OK, UsageError
from streambroker_operator.cli.io.manifest_files import read_value
from streambroker_operator.cli.io.options import add_output, caller_of, one_of, remote, seconds
from streambroker_operator.cli.io.targets import find_port, suggested
from streambroker_operator.cli.io.terminal import flat, say
from streambroker_operator.cli.output.table import as_json
from streambroker_operator.errors import RequestError

TIMEOUT_S = 60.0
PAUSE_S, LONGEST_PAUSE_S = 0.2, 2.0
"""Between two questions whether a tuple has been applied; the pause doubles."""
_MICROSECONDS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Aim:
    """Where a tuple goes: what a person calls that, its path, its namespace, and its export."""

    name: str
    path: str
    namespace: str
    export: PortKey | None = None


def add(commands: Any) -> None:
    """Add the command."""
    text = "send a control tuple to the importers of an export, or to the operators of a PE"
    command = remote(commands, "emit", text)
    command.add_argument("aim", metavar="EXPORT|JOB/PE", help="an export, or pe/JOB/PE")
    command.add_argument("type", metavar="TYPE", help="name of the payload's type")
    command.add_argument("payload", nargs="?", metavar="PAYLOAD", help="YAML or JSON; default null")
    command.add_argument(
        "--delivery",
        type=one_of(*DELIVERIES),
        default="BEGIN",
        metavar="|".join(DELIVERIES),
        help="when operators get it; default BEGIN",
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
        "--wait", action="store_true", help="until all who read control have applied it"
    )
    command.add_argument(
        "--timeout",
        type=seconds,
        default=TIMEOUT_S,
        metavar="SECONDS",
        help=f"for the agent's answer, and for --wait; default {TIMEOUT_S:g}",
    )
    command.add_argument(
        "--request-id", metavar="ID", help="the same one again emits nothing more; default random"
    )
    add_output(command, "text", "json")
    command.set_defaults(run=_emit)


def _emit(options: argparse.Namespace) -> int:
    caller = caller_of(options)
    body = _body(options)
    aim = _aim(caller, options)
    until = time.monotonic() + options.timeout
    request = options.request_id or uuid.uuid4().hex
    answer = _sent(caller, aim, body, request, until)
    if options.output == "text":
        say(f"{aim.name} emitted {flat(options.type)} {answer['id']}\n")
    if options.wait:
        answer = _applied(caller, aim, answer, request, until, options.timeout)
        if options.output == "text":
            say(f"{aim.name} applied {answer['id']} by {len(answer['readers'])}\n")
    if options.output == "json":
        say(as_json(answer))
    return OK


def _body(options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {"type": options.type, "delivery": options.delivery}
    if options.payload is not None:
        found["payload"] = read_value(options.payload)
    if options.at is not None:
        found["at"] = _time(options.at)
    key = None if options.key is None else [read_value(one) for one in options.key]
    given = {"operator": options.operator, "bucket": options.bucket, "key": key}
    target = {name: value for name, value in given.items() if value is not None}
    return {**found, **({"target": target} if target else {})}


def _time(text: str) -> int:
    """Return a time in microseconds since 1970; without a zone it is UTC.

    Raises:
        UsageError: it is none.
    """
    try:
        return int(text)
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(text.removesuffix("Z"))
    except ValueError as error:
        raise UsageError(
            f"{text!r} is no time: write microseconds, or 2013-01-01T12:00:00Z."
        ) from error
    zoned = found if found.tzinfo else found.replace(tzinfo=timezone.utc)
    since = zoned - datetime.fromtimestamp(0, timezone.utc)
    return (since.days * 86_400 + since.seconds) * _MICROSECONDS + since.microseconds


def _aim(caller: Caller, options: argparse.Namespace) -> _Aim:
    """Return where a tuple goes.

    Raises:
        RequestError: there is no such export.
        UsageError: it is written like one but cannot be one.
    """
    word = str(options.aim)
    rest = word.removeprefix("pe/") if word.count("/") > 1 else word
    if rest.count("/") == 1 and rest.rpartition("/")[2].isdigit():
        try:
            pe = PeKey.parse(f"{options.namespace}/{rest}")
        except ManifestError as error:
            raise UsageError(f"{rest!r} is no JOB/PE: {error.reason}.") from error
        return _Aim(name=f"pe {pe}", path=f"{pe_path(pe)}/control", namespace=pe.namespace)
    key = find_port(caller, "exports", word, options.namespace)
    path = f"{port_path('export', key)}/control"
    return _Aim(name=f"export {key}", path=path, namespace=key.namespace, export=key)


def _sent(
    caller: Caller, aim: _Aim, body: dict[str, Any], request: str, until: float
) -> dict[str, Any]:
    """Have the agent take a tuple; it is asked again as long as it is away."""
    while True:
        try:
            answer: dict[str, Any] = caller.change(
                "POST", aim.path, body, request=request, namespace=aim.namespace
            )
            return answer
        except RequestError as error:
            pause = float(error.facts.get("retryAfter", PAUSE_S))
            if error.code != "AgentAway" or time.monotonic() + pause > until:
                raise _told(caller, aim, error, request) from error
            time.sleep(pause)


def _told(caller: Caller, aim: _Aim, error: RequestError, request: str) -> RequestError:
    if error.code == "AgentAway":
        text = f"{error} `--request-id {request}` repeats this one."
        return RequestError(error.status, error.code, text, facts=error.facts)
    return error if aim.export is None else suggested(caller, "exports", aim.export, error)


def _applied(
    caller: Caller,
    aim: _Aim,
    answer: dict[str, Any],
    request: str,
    until: float,
    timeout: float,
) -> dict[str, Any]:
    """Return the state of a tuple once all have applied it.

    Raises:
        RequestError: they have not in time.
    """
    pause = PAUSE_S
    while not answer["applied"]:
        if time.monotonic() + pause > until:
            raise RequestError(
                0,
                "NotApplied",
                f"{answer['id']} is emitted, and {_late(answer)} after {timeout:g} s."
                f" `--request-id {request} --wait` waits on.",
            )
        time.sleep(pause)
        pause = min(LONGEST_PAUSE_S, 2 * pause)
        path = f"{aim.path}/{answer['id']}"
        try:
            answer = caller.call("GET", path, namespace=aim.namespace)
        except RequestError as error:
            if error.code != "AgentAway":
                raise
    return answer


def _late(answer: dict[str, Any]) -> str:
    late = [r.get("import") or r["reader"] for r in answer["readers"] if not r["applied"]]
    if late:
        return f"not applied by {', '.join(sorted(set(late)))}"
    return "nobody reads control there"
