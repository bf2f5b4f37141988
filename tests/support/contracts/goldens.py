"""The contracts that must not change by accident, as texts that are kept beside the tests.

``python -m support.contracts.goldens`` prints what differs from the files in
``tests/contract/goldens``, and ``--write`` writes them. What is in a file comes from the code that
serves, writes or reads it. A name of the public API that is in the file is looked for even when no
document imports it any more.
"""

from __future__ import annotations

import argparse
import difflib
import enum
import hashlib
import importlib
import inspect
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import yaml

from pe_agent.agent import process
from pe_agent.agent.agent import Agent
from pe_agent.agent.reports import prometheus as agent_metrics
from pe_agent.agent.server.flight_service import AgentService
from pe_agent.aligned.runtime import frames as forms
from pe_agent.aligned.runtime.state_names import open_states
from pe_agent.datasource import options
from pe_agent.datasource.slots import packed_ddl
from pe_agent.datasource.source import StreambrokerDataSource
from pe_agent.job import ports
from pe_agent.job import send_control as emitted
from pe_agent.side.operator import METRICS_SCHEMA
from streambroker_core.cep.engine import outputs as engine_outputs
from streambroker_core.cep.operator import PatternOperator
from streambroker_core.control.operators.dead_letters import DEAD_LETTER_SCHEMA
from streambroker_core.control.runtime import packing
from streambroker_core.errors import StreambrokerError, TakenError
from streambroker_core.model import PeKey
from streambroker_core.side import SideOperator
from streambroker_core.side.operator import ERROR_SCHEMA
from streambroker_core.wire.broker import agent_commands
from streambroker_core.wire.encoding.canonical import canonical
from streambroker_operator.agents.hint_sender import HintSender
from streambroker_operator.cli import app as commands
from streambroker_operator.cli.io.errors import exit_code
from streambroker_operator.kubernetes.observability.metrics import (
    COUNTERS,
    GAUGES,
    Labelled,
    Metrics,
)
from streambroker_operator.rest.agents import control
from streambroker_operator.rest.app import create_app
from streambroker_operator.rest.http.openapi import description
from streambroker_operator.rest.http.responses import problem_answer
from streambroker_operator.runtime.runtime import Runtime
from streambroker_operator.storage.sqlite_store import Store as BrokerStore
from support.contracts import agent_rpc, formats, scans
from support.kubernetes import charts

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "tests/contract/goldens"
COMMAND = "PYTHONPATH=tests .venv/bin/python -m support.contracts.goldens --write"
SHOWN = 40
"""Lines of a difference that are shown."""
METHODS = ("get", "put", "patch", "post", "delete")
HANDED_OUT = (ports.ImportPort, ports.ExportPort, ports.Change, emitted.SentControl)
"""What users are given without importing it."""

_WIDTH = 100
_OURS = ("pe_agent", "streambroker", "pyspark_streambroker")
_SPECIAL = ("__init__", "__call__", "__getitem__", "__enter__", "__iter__", "__len__")


# ---- REST, command lines, cluster ------------------------------------------------------------


def openapi() -> Any:
    """Return an outline of the document that describes REST, and its digest."""
    whole = description()
    operations = {
        f"{method.upper()} {path}": {
            "id": item[method]["operationId"],
            "parameters": [
                _parameter(whole, one)
                for place in (item, item[method])
                for one in place.get("parameters", ())
            ],
            "answers": sorted(item[method]["responses"]),
        }
        for path, item in whole["paths"].items()
        for method in METHODS
        if method in item
    }
    schemas = whole["components"]["schemas"]
    return {
        "sha256": hashlib.sha256(canonical(whole)).hexdigest(),
        "operations": operations,
        "schemas": {name: sorted(one.get("properties", {})) for name, one in schemas.items()},
    }


def _parameter(whole: Mapping[str, Any], one: Mapping[str, Any]) -> str:
    if "$ref" in one:
        one = whole["components"]["parameters"][one["$ref"].rpartition("/")[2]]
    return f"{one['in']} {one['name']}"


def rest() -> str:
    with formats.folder() as place:
        store = BrokerStore(place / "broker.db")
        app = create_app(Runtime(store, HintSender()))
        store.close()
    served = {
        f"{resource.canonical} {route.method}"
        for resource in app.router.resources()
        for route in resource
    }
    return _lines(served)


def command_lines() -> str:
    root = commands._parser()
    return "\n".join([*_command(root), *_command(_agent_parser())]) + "\n"


def _agent_parser() -> argparse.ArgumentParser:
    """Return the parser of an agent's command line, which is made where it is used."""
    with mock.patch.object(argparse.ArgumentParser, "parse_args", autospec=True) as parse:
        parse.side_effect = KeyboardInterrupt
        with suppress(KeyboardInterrupt):
            process.parse_settings([])
    found: argparse.ArgumentParser = parse.call_args.args[0]
    return found


def _command(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f"== {parser.prog}"
    yield from (parser.description or "").strip().splitlines()
    below: list[argparse.ArgumentParser] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            texts = {one.dest: one.help for one in action._choices_actions}
            for name, command in action.choices.items():
                yield f"  {name}: {texts.get(name)}"
                below.append(command)
        else:
            yield from _option(action)
    for command in below:
        yield from _command(command)


def _option(action: argparse.Action) -> Iterator[str]:
    names = ", ".join(action.option_strings) or action.dest
    kind = type(action).__name__.strip("_").removesuffix("Action").lower()
    settings = {
        "metavar": action.metavar,
        "nargs": action.nargs,
        "choices": None if action.choices is None else list(action.choices),
        "default": None if action.default == argparse.SUPPRESS else action.default,
        "required": (action.required and bool(action.option_strings)) or None,
    }
    texts = [f"{name}={value!r}" for name, value in settings.items() if value is not None]
    yield "  ".join([f"  {names}", kind, *texts])
    yield f"      {action.help}"


def chart() -> Any:
    """Return what an install with the default values makes that ``deploy/base`` does not have.

    The rendered chart is in that file already, with its definitions of resources.
    """
    path = charts.ROOT / "deploy/base/streambroker.yaml"
    base = {charts.key_of(one): one for one in yaml.safe_load_all(path.read_text()) if one}
    found = {}
    for one in charts.objects(name="streambroker", namespace="streambroker"):
        key = charts.key_of(one)
        same = one == base.get(key)
        found[" ".join(filter(None, key))] = "as in deploy/base" if same else _masked(one)
    return {
        "values": list(_values(yaml.safe_load((charts.CHART / "values.yaml").read_text()))),
        "objects": dict(sorted(found.items())),
    }


def _masked(value: Any, *, secret: bool = False) -> Any:
    """Return an object without keys and certificates, which are made anew each time."""
    if isinstance(value, dict):
        hidden = value.get("kind") == "Secret"
        return {
            key: _masked(one, secret=secret or (hidden and key in ("data", "stringData")))
            for key, one in value.items()
        }
    if isinstance(value, list):
        return [_masked(one, secret=secret) for one in value]
    made = isinstance(value, str) and (secret or "-----BEGIN" in value)
    return "made anew" if made else value


def _values(values: Any, path: str = "") -> Iterator[str]:
    if isinstance(values, dict) and values:
        for key, value in values.items():
            yield from _values(value, f"{path}.{key}" if path else key)
    else:
        yield f"{path}: {json.dumps(values)}"


# ---- Python API ------------------------------------------------------------------------------


def api() -> str:
    """Return the public names of Python with their signatures."""
    lines: list[str] = []
    known: dict[int, str] = {}
    for module, name in sorted(_public()):
        with suppress(AttributeError, ImportError), _without_deprecations():
            found = _imported(module, name)
            place = known.setdefault(id(found), f"{module}:{name}")
            described = inspect.isclass(found) or inspect.isfunction(found)
            if described and place != f"{module}:{name}":
                lines.append(f"{module}:{name} = {place}")
            else:
                lines += _described(f"{module}:{name}", found)
    for one in HANDED_OUT:
        lines += _described(f"handed out:{one.__name__}", one)
    return "\n".join(lines) + "\n"


@contextmanager
def _without_deprecations() -> Iterator[None]:
    """Allow old names: each is imported with a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def _public() -> set[tuple[str, str]]:
    """Return module and name of all that is public, and of all that was when this was written."""
    path = FOLDER / "api.txt"
    text = path.read_text() if path.exists() else ""
    found: set[tuple[str, str]] = set(re.findall(r"^([\w.]+):(\w+)", text, re.MULTILINE))
    for module, names in scans.imported_by_users().items():
        with suppress(ImportError):
            made = importlib.import_module(module)
            own = set(getattr(made, "__all__", ()))
            if not own and module.startswith("pe_agent"):
                own = scans.defined(module)
            found |= {(module, name) for name in own | names}
    return found


def _imported(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name)
    except AttributeError:
        return importlib.import_module(f"{module}.{name}")


def _described(label: str, found: Any) -> Iterator[str]:
    if inspect.isclass(found):
        yield f"{label} class{_ancestors(found)}"
        yield from (f"    {line}" for line in sorted(set(_members(found))))
    elif inspect.isfunction(found):
        yield f"{label} function {_signature(found)}"
    elif inspect.ismodule(found):
        yield f"{label} module"
    elif isinstance(found, pa.Schema):
        yield f"{label} schema {', '.join(formats.columns(found))}"
    else:
        yield f"{label} value {_text(found)}"


def _ancestors(found: type) -> str:
    """Return what an error can be caught as, and its code."""
    if not issubclass(found, BaseException):
        return ""
    names = [one.__name__ for one in found.__mro__[1:] if one not in (BaseException, object)]
    return f" {getattr(found, 'code', '')} is {', '.join(names)}"


def _members(found: type) -> Iterator[str]:
    """Give members, methods and properties of a class, inherited ones of ours too."""
    if issubclass(found, tuple):
        yield f"fields {' '.join(getattr(found, '_fields', ()))}"
    if issubclass(found, enum.Enum):
        yield from (f"member {one.name} = {_text(one.value)}" for one in found)
    for owner in found.__mro__:
        if owner.__module__.partition(".")[0].startswith(_OURS):
            for name in vars(owner):
                if not name.startswith("_") or name in _SPECIAL:
                    yield from _member(name, inspect.getattr_static(found, name))


def _member(name: str, found: Any) -> Iterator[str]:
    if isinstance(found, property):
        yield f"property {name}: {inspect.signature(found.fget).return_annotation}"  # type: ignore[arg-type]
    elif isinstance(found, staticmethod | classmethod):
        yield f"{type(found).__name__} {name}{_signature(found.__func__)}"
    elif inspect.isfunction(found):
        yield f"method {name}{_signature(found)}"


class _Shown:
    """Stands for a default, so that what is shown is the same everywhere."""

    def __init__(self, value: Any) -> None:
        self._text = _text(value)

    def __repr__(self) -> str:
        return self._text


def _signature(function: Callable[..., Any]) -> str:
    signature = inspect.signature(function)
    parameters = [
        one if one.default is one.empty else one.replace(default=_Shown(one.default))
        for one in signature.parameters.values()
    ]
    return str(signature.replace(parameters=parameters))


def _text(value: Any) -> str:
    """Return a value without addresses and in an order of its own."""
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(_text, value)))}}}"
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if inspect.isclass(value) or inspect.isfunction(value):
        return value.__name__
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


# ---- names -----------------------------------------------------------------------------------


def metric_names() -> Any:
    """Return the figures of brokers and agents, with their types and labels."""
    kinds = dict.fromkeys((("exports",), ("imports",), ("patternprocessors",)), 1)
    figures: dict[str, Labelled] = {
        **{name: {} for name in (*GAUGES, *COUNTERS)},
        "build_info": {("1",): 1},
        "board_version": kinds,
        "watch_age_seconds": kinds,
        "namespace_followed": {(*kind, "jobs"): True for kind in kinds},
        "resources": {(*kind, "accepted"): 1 for kind in kinds},
        "agents": {("current",): 1},
        "reported_routes": {("reads",): 1},
        "relists": kinds,
    }
    broker = Metrics(lambda: figures)
    broker.observe_match(1.0)
    broker.observe_applied(1.0)
    broker.count_answer("GET", 200, 1.0)
    return {
        "broker": _families(broker.text().decode()),
        "agent": _families(agent_metrics.render_text(_any_status(), {}) + _agent()[1]),
    }


def _families(text: str) -> dict[str, Any]:
    """Return type and labels by name of what is exposed to Prometheus."""
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    labels: dict[str, dict[str, set[str]]] = {name: {} for name in types}
    for name, inside in re.findall(r"^(\w+)(?:\{(.*)\})? \S+$", text, re.MULTILINE):
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        for label, value in re.findall(r'(\w+)="([^"]*)"', inside):
            labels.get(name, labels.get(base, {})).setdefault(label, set()).add(value)
    return {
        name: {"type": kind, "labels": {k: sorted(v) for k, v in sorted(labels[name].items())}}
        for name, kind in sorted(types.items())
        if name.startswith("streambroker_") and not name.endswith("_created")
    }


class _Any(int):
    """A number that is a list of numbers, too."""

    def __getitem__(self, _: Any) -> int:
        return 0


class _Item(dict[str, Any]):
    """An item that has every member."""

    def __missing__(self, _: str) -> Any:
        return _Any()


def _any_status() -> dict[str, Any]:
    counts = {"BEGIN": 1}
    reader = _Item({"import": "i", "sentControl": counts})
    export = _Item(readers={"r": reader}, control={"accepted": counts, "published": counts})
    return {
        "exports": {"e": export},
        "losses": {"i": 0},
        "controlLog": {"accepted": counts, "applied": counts, "waiting": 0},
        "sides": [_Item(query="q", operator="o", input="i", version="v")],
        "ruleFigures": [_Item()],
        "ruleWaiting": [_Item()],
    }


def _agent() -> tuple[list[str], str]:
    """Return the actions of an agent that has just begun, and its figures."""
    with formats.folder() as place:
        hosts = Agent(PeKey("default", "feed", 0), place, progress=lambda *_: None)
        service = AgentService("grpc+tcp://127.0.0.1:0", hosts, "token")
        try:
            return list(service._actions), hosts.metrics()
        finally:
            service.shutdown()
            hosts.close()


def actions() -> str:
    """Return the actions that an agent performs, and which of them for a broker."""
    return _lines(
        f"{name}{' (also for a broker)' if name in agent_commands.ACTIONS else ''}"
        for name in _agent()[0]
    )


def rpc() -> Any:
    """Return the JSON of each action, and fail if one is not among the calls."""
    with formats.folder() as place:
        calls = agent_rpc.recorded(place)
    missing = set(_agent()[0]) - {call["action"] for call in calls}
    assert not missing, f"no call of {missing}"
    return calls


def error_codes() -> Any:
    """Return the exit code of each error code, and the HTTP statuses it is answered with."""
    refused, found = scans.statuses(), {}
    for code in sorted(scans.codes() | refused.keys()):
        plain = TakenError(code, "") if code.endswith("Taken") else StreambrokerError()
        plain.code = code
        given = {*refused.get(code, ()), control._STATUS.get(code, 0)} - {0}
        found[code] = {
            "exit": exit_code(plain),
            "http": sorted(given) or [problem_answer(plain).status],
        }
    return found


def spark() -> Any:
    """Return the names that Spark and its users know."""
    variables: list[list[str]] = []
    handle = mock.Mock()
    for way in ("getValueState", "getMapState"):
        getattr(handle, way).side_effect = lambda name, *columns, way=way: variables.append(
            [way, name, *(one.simpleString() for one in columns)]
        )
    for slots in (True, False):
        open_states(handle, slots=slots)
    return {
        "formats": sorted([StreambrokerDataSource.name(), *scans.constants("FORMAT")]),
        "options": sorted(options.OPTION_NAMES),
        "options that need control": sorted(options.PACKED_ONLY),
        "column of sources": options.SOURCE_FIELD,
        "reserved columns": list(packing.RESERVED),
        "columns of packed rows": packed_ddl(slots=True),
        "columns of emitted rows": forms.EMITTED_DDL,
        "kinds of emitted rows": [forms.ROWS, forms.TUPLES, forms.PROGRESS],
        "outputs of patterns": list(PatternOperator.outputs),
        "outputs of side inputs": list(SideOperator.outputs),
        "matches": formats.columns(engine_outputs.RESULTS),
        "errors of patterns": formats.columns(engine_outputs.FAILURES),
        "errors of side inputs": formats.columns(ERROR_SCHEMA),
        "dead letters": formats.columns(DEAD_LETTER_SCHEMA),
        "figures of side inputs": formats.columns(METRICS_SCHEMA),
        "variables of state": variables,
    }


def conditions() -> Any:
    return {what: sorted(words) for what, words in scans.conditions().items()}


# ---- files -----------------------------------------------------------------------------------


def _lines(found: Iterator[str] | set[str]) -> str:
    return "\n".join(sorted(found)) + "\n"


GOLDENS: Mapping[str, Callable[[], Any]] = {
    "openapi.json": openapi,
    "rest.txt": rest,
    "command-lines.txt": command_lines,
    "chart.json": chart,
    "api.txt": api,
    "metrics.json": metric_names,
    "error-codes.json": error_codes,
    "environment.txt": lambda: _lines(scans.variables()),
    "loggers.txt": lambda: _lines(scans.loggers()),
    "agent-actions.txt": actions,
    "agent-rpc.json": rpc,
    "spark.json": spark,
    "conditions.json": conditions,
    "manifests.json": formats.manifests,
    "view.json": formats.encoded_view,
    "agent-and-broker.json": formats.agent_and_broker,
    "signed.json": formats.signed,
    "problems.json": formats.problems,
    "offsets.json": formats.offsets,
    "log.json": formats.segment,
    "agent-tables.json": formats.agent_tables,
    "broker-tables.json": formats.broker_tables,
    "routes.json": formats.route_file,
    "control-tuples.json": formats.control_tuples,
    "packed-rows.json": formats.packed_rows,
    "operator-state.json": formats.operator_state,
    "pattern-state.json": formats.pattern_state,
    "side-state.json": formats.side_state,
    "side-tables.json": formats.side_tables,
    "fields.json": formats.fields,
}


def made(name: str) -> str:
    """Return what a file has to hold; the environment of the caller does not count."""
    outside = {k: v for k, v in os.environ.items() if not k.startswith("STREAMBROKER_")}
    with mock.patch.dict(os.environ, outside, clear=True), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        found = GOLDENS[name]()
    return found if isinstance(found, str) else f"{_pretty(found)}\n"


def _pretty(value: Any, indent: str = "") -> str:
    """Return JSON with whatever fits on a line on one; keys stay in their order."""
    text = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(text) <= _WIDTH or not isinstance(value, dict | list | tuple) or not value:
        return text
    deeper = f"{indent}  "
    if isinstance(value, dict):
        each = [f"{json.dumps(k)}: {_pretty(v, deeper)}" for k, v in value.items()]
    else:
        each = [_pretty(one, deeper) for one in value]
    left, right = "{}" if isinstance(value, dict) else "[]"
    return f"{left}\n{deeper}" + f",\n{deeper}".join(each) + f"\n{indent}{right}"


def difference(name: str) -> str:
    """Return in what a file differs from what it has to hold, cut short; empty for nothing."""
    path = FOLDER / name
    before = path.read_text() if path.exists() else ""
    lines = list(
        difflib.unified_diff(
            before.splitlines(), made(name).splitlines(), "kept", "made", n=1, lineterm=""
        )
    )
    more = [f"… {len(lines) - SHOWN} lines more"] if len(lines) > SHOWN else []
    return "\n".join([line[:300] for line in lines[:SHOWN]] + more)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what differs, or write all files; return 1 if something differs."""
    parser = argparse.ArgumentParser(prog="support.contracts.goldens", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the files")
    if parser.parse_args(arguments).write:
        FOLDER.mkdir(exist_ok=True)
        for path in FOLDER.iterdir():
            if path.name not in GOLDENS:
                path.unlink()
        for name in GOLDENS:
            (FOLDER / name).write_text(made(name))
        return 0
    found = {name: difference(name) for name in GOLDENS}
    for name, text in found.items():
        if text:
            sys.stdout.write(f"{name}\n{text}\n\n")
    return int(any(found.values()))


if __name__ == "__main__":
    sys.exit(main())
