"""The documents say what the code does: examples run, links lead somewhere, lists are complete.

The marks that make an example run are described in CONTRIBUTING.md.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pytest

import streambroker as sb
from pe_agent.datasource.options import OPTION_NAMES
from pe_agent.filters import compile_filter
from pe_agent.job.send_control import Operators
from pe_agent.streams.side_inputs import SideInputs
from pe_agent.streams.subscribe import ImportSettings
from streambroker_client.broker import JobPatterns
from streambroker_core.errors import ExpressionError
from streambroker_core.expression import check_filter, parse
from streambroker_core.matching import Reason
from streambroker_core.model.schema import parse_ddl
from streambroker_operator.cli import app as commands
from support.contracts import scans

ROOT = Path(__file__).parents[2]
EXAMPLES = (
    "README.md",
    *(f"{d}/README.md" for d in ("core", "operator", "pe_agent", "pe_agent/streambroker")),
    "examples/02-control-plane/README.md",
    "docs/*.md",
    "docs/*/*.md",
)
SPARK_OPTIONS = {"path", "checkpointlocation", "queryname"}

_FENCE = re.compile(r"^```(\S+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
_ANSWERS: dict[str, bool | None] = {"true": True, "false": False, "unknown": None}


def documents() -> list[Path]:
    """Return every document of the repository."""

    def ours(path: Path) -> bool:
        return not any(
            x.startswith(".") or x == "node_modules" for x in path.relative_to(ROOT).parts
        )

    return sorted(filter(ours, ROOT.rglob("*.md")))


def with_examples() -> list[Path]:
    return sorted(path for pattern in EXAMPLES for path in ROOT.glob(pattern))


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@dataclass
class Page:
    """One document, cut into what can be run.

    Attributes:
        fences: language, mark and text of each fenced block.
        rows: the tables' rows, each with the heading of its table and the values
            (json and sql blocks, by mark) that stood before it.
    """

    fences: list[tuple[str, str, str]] = field(default_factory=list)
    rows: list[tuple[list[str], list[str], Mapping[str, Any]]] = field(default_factory=list)


def read(path: Path) -> Page:
    text, page, values, end = path.read_text(), Page(), dict[str, Any](), 0
    for found in _FENCE.finditer(text):
        page.rows += [(head, row, dict(values)) for head, row in tables(text[end : found.start()])]
        language, mark, body = found[1], found[2] or "", found[3]
        page.fences.append((language, mark, body))
        if language == "json" and mark:
            values[mark] = json.loads(body)
        elif language == "sql" and mark:
            values[mark] = parse_ddl(" ".join(body.split()))
        end = found.end()
    page.rows += [(head, row, dict(values)) for head, row in tables(text[end:])]
    return page


def tables(text: str) -> Iterator[tuple[list[str], list[str]]]:
    """Yield (heading, row) of every row of every table."""
    head: list[str] | None = None
    for line in text.splitlines():
        if not line.startswith("|"):
            head = None
        elif head is None:
            head = cells(line)
        elif not set(line) <= set("|-: "):
            yield head, cells(line)


def cells(line: str) -> list[str]:
    parts = re.split(r"(?<!\\)\|", line.strip())[1:-1]
    return [part.strip().replace(r"\|", "|") for part in parts]


def text_of(cell: str) -> str:
    """Return what stands in the code span that a cell is."""
    assert cell[0] == cell[-1] == "`", cell
    return cell[1:-1]


def fenced(language: str, mark: str) -> list[Any]:
    """Return a parameter for each block of a kind, named by its document."""
    return [
        pytest.param(body, id=f"{named(path)}-{number}")
        for path in with_examples()
        for number, (language_, mark_, body) in enumerate(read(path).fences)
        if (language_, mark_) == (language, mark)
    ]


def rows_that_begin(*head: str) -> list[Any]:
    return [
        pytest.param(row, values, id=f"{named(path)}: {row[0]}")
        for path in with_examples()
        for found, row, values in read(path).rows
        if tuple(found[: len(head)]) == head
    ]


# ---- examples --------------------------------------------------------------------------------


@pytest.mark.parametrize("code", fenced("python", "run"))
def test_an_example_runs(code: str) -> None:
    exec(compile(code, "example", "exec"), {})


@pytest.mark.parametrize(("row", "values"), rows_that_begin("subscription", "answer"))
def test_a_subscription_answers_as_documented(row: list[str], values: dict[str, Any]) -> None:
    answer = parse(text_of(row[0])).evaluate(values["properties"])
    assert answer is _ANSWERS[row[1]]


@pytest.mark.parametrize(("row", "values"), rows_that_begin("filter", "answer"))
def test_a_filter_answers_as_documented_and_so_does_its_mask(
    row: list[str], values: dict[str, Any]
) -> None:
    filter_ = parse(text_of(row[0]), "filter")
    check_filter(filter_, values["columns"])
    assert filter_.evaluate(values["row"]) is _ANSWERS[row[1]]
    batch = pa.RecordBatch.from_pylist([values["row"]], schema=arrow_schema(values["columns"]))
    mask = compile_filter(filter_, batch.schema).mask(batch)
    assert mask.to_pylist() == [_ANSWERS[row[1]] is True]


def arrow_schema(columns: Any) -> Any:
    types = {
        "bigint": pa.int64(),
        "int": pa.int32(),
        "tinyint": pa.int8(),
        "double": pa.float64(),
        "string": pa.string(),
        "boolean": pa.bool_(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "array<string>": pa.list_(pa.string()),
        "array<int>": pa.list_(pa.int32()),
    }
    return pa.schema([(column.name, types[column.type]) for column in columns])


@pytest.mark.parametrize(("row", "values"), rows_that_begin("refused subscription", "message"))
def test_a_subscription_is_refused_as_documented(row: list[str], values: dict[str, Any]) -> None:
    with pytest.raises(ExpressionError) as refused:
        parse(text_of(row[0]))
    assert str(refused.value) == row[1]


@pytest.mark.parametrize(("row", "values"), rows_that_begin("refused filter", "message"))
def test_a_filter_is_refused_as_documented(row: list[str], values: dict[str, Any]) -> None:
    with pytest.raises(ExpressionError) as refused:
        check_filter(parse(text_of(row[0]), "filter"), values["columns"])
    assert str(refused.value) == row[1]


def test_the_pages_that_are_made_of_examples_have_them() -> None:
    language = read(ROOT / "docs/language.md")
    heads = [tuple(head[:2]) for head, _, _ in language.rows]
    assert heads.count(("subscription", "answer")) >= 40
    assert heads.count(("filter", "answer")) >= 10


# ---- calls and commands ----------------------------------------------------------------------


PORTS_AND_PE = (
    sb.PE,
    sb.ImportPort,
    sb.ExportPort,
    sb.ExportWriter,
    sb.Change,
    sb.SentControl,
    sb.Reader,
    sb.Writer,
    sb.Broker,
    JobPatterns,
    Operators,
)
STREAMS = (sb.Stream, sb.OperatorStream, sb.PatternStream, SideInputs)
INTERNAL = {"find_applied", "is_applied", "node"}
SETTINGS = set(ImportSettings.__annotations__)
PUBLISHING = set(inspect.signature(sb.PE.publish).parameters) - {"pe", "settings"}
NAMES: list[str] = importlib.import_module("streambroker").__all__


def methods(owners: tuple[type, ...]) -> dict[str, list[Callable[..., Any]]]:
    """Return the public methods of some classes, without deprecated ones, by name."""
    found: dict[str, list[Callable[..., Any]]] = {}
    for owner in owners:
        for name, method in inspect.getmembers(owner, inspect.isfunction):
            if not (name.startswith("_") or name in INTERNAL or is_deprecated(method)):
                found.setdefault(name, []).append(method)
    return found


def deprecated_methods() -> set[str]:
    members = [m for one in (*PORTS_AND_PE, *STREAMS) for m in inspect.getmembers(one)]
    return {
        name for name, method in members if inspect.isfunction(method) and is_deprecated(method)
    }


def is_deprecated(method: Any) -> bool:
    file = Path(method.__code__.co_filename)
    return file.stem.startswith("old_") or (method.__doc__ or "").startswith("Deprecated")


@pytest.mark.parametrize("code", fenced("python", "api"))
def test_calls_of_the_interface_fit_its_signatures(code: str) -> None:
    known, tree = methods((*PORTS_AND_PE, *STREAMS)), ast.parse(code)
    names, old, checked = imported(tree), deprecated_methods(), 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and names.get(owner_of(node)) is sb:
            assert node.attr in NAMES
        if not isinstance(node, ast.Call):
            continue
        assert not (isinstance(node.func, ast.Attribute) and node.func.attr in old), node.func
        candidates, own = callables(node.func, names, known)
        if candidates:
            assert any(fits(one, node, itself=own) for one in candidates), ast.unparse(node)
            checked += 1
    assert checked


def imported(tree: ast.Module) -> dict[str, Any]:
    """Return what a block imports from streambroker, by name; pages use `sb` without an import."""
    names: dict[str, Any] = {"sb": sb}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("streambroker"):
            module = importlib.import_module(node.module or "")
            names |= {one.asname or one.name: getattr(module, one.name) for one in node.names}
    return names


def owner_of(node: ast.Attribute) -> str:
    return node.value.id if isinstance(node.value, ast.Name) else ""


def callables(
    call: ast.expr, names: Mapping[str, Any], known: Mapping[str, list[Callable[..., Any]]]
) -> tuple[list[Callable[..., Any]], bool]:
    """Return what a call may be of, none if it is not of the interface, and if it has a self."""
    if isinstance(call, ast.Name):
        return [names[call.id]] if call.id in names else [], False
    if not isinstance(call, ast.Attribute) or is_sparks(call):
        return [], False
    owner = names.get(owner_of(call))
    if owner is not None:
        return [getattr(owner, call.attr)], False
    return known.get(call.attr, []), True


def fits(function: Callable[..., Any], call: ast.Call, *, itself: bool) -> bool:
    """Return whether a call has the arguments that a function takes."""
    given = {k.arg: None for k in call.keywords if k.arg is not None}
    try:
        bound = inspect.signature(function).bind(*([None] if itself else []), *call.args, **given)
    except TypeError:
        return False
    if function in (sb.PE.subscribe, sb.PE.subscribe_stream):
        return set(bound.arguments.get("settings", {})) <= SETTINGS
    return "old" not in bound.arguments


def is_sparks(call: ast.Attribute) -> bool:
    """Tell whether a chain of calls begins with a DataFrame's reader or writer."""
    return any(
        isinstance(node, ast.Attribute) and node.attr in ("readStream", "writeStream")
        for node in ast.walk(call.value)
    )


def command_lines() -> list[Any]:
    return [
        pytest.param(line.removeprefix("$ "), id=f"{named(path)}: {line}")
        for path in [*with_examples(), ROOT / "CONTRIBUTING.md"]
        for language, _, body in read(path).fences
        if language == "console"
        for line in body.splitlines()
        if line.startswith("$ ") and "curl" not in line and not line.startswith("$ B=")
    ]


@pytest.mark.parametrize("line", command_lines())
def test_a_command_line_can_be_given(line: str) -> None:
    program, *arguments = shlex.split(line)
    if program == "make":
        targets = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(arguments) <= set(targets)
    else:
        assert program == "streambroker"
        commands._parser().parse_args(arguments)


# ---- links -----------------------------------------------------------------------------------


def links() -> list[Any]:
    found = []
    for path in documents():
        text = _FENCE.sub("", path.read_text())
        for label, target in _LINK.findall(text):
            if not re.match(r"[a-z]+:", target):
                found.append(pytest.param(path, label, target, id=f"{named(path)}: {target}"))
    return found


def anchors(path: Path) -> set[str]:
    """Return the names that headings get, as GitHub makes them."""
    text = _FENCE.sub("", path.read_text())
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings
    }


def test_every_link_leads_somewhere() -> None:
    lost = []
    for parameter in links():
        path, label, target = parameter.values
        file, _, anchor = target.partition("#")
        aim = (path.parent / file).resolve() if file else path
        if not aim.exists() or (anchor and anchor not in anchors(aim)):
            lost.append(parameter.id)
        elif label.startswith("`test_") and f"def {label.strip('`')}(" not in aim.read_text():
            lost.append(f"{parameter.id}: no {label}")
    assert lost == []


# ---- complete lists --------------------------------------------------------------------------


PROGRAM, ERRORS, CONTROL, PATTERNS, SIDE_INPUTS = (
    (ROOT / f"docs/{name}.md").read_text()
    for name in ("program", "errors", "control", "patterns", "side-inputs")
)


def documented(page: str, heading: str) -> list[str]:
    """Return the words in code spans in the first column of tables under a heading."""
    rest = re.split(rf"^#+ {re.escape(heading)}$", page, flags=re.MULTILINE)[1]
    section = re.split(r"^##", rest, maxsplit=1, flags=re.MULTILINE)[0]
    return [w for _, row in tables(section) for w in re.findall(r"`([^`]+)`", row[0])]


def test_every_error_code_is_documented_once_and_no_other() -> None:
    reported = documented(ERRORS, "Error codes")
    assert set(reported) == scans.codes()
    assert reported == sorted(set(reported), key=str.lower)


def test_every_reason_for_not_matching_is_documented() -> None:
    concepts = read(ROOT / "docs/concepts.md")
    reported = {w for head, row, _ in concepts.rows for w in re.findall(r"`([A-Z]\w+)`", row[-1])}
    assert set(get_args(Reason)) <= reported


def test_every_option_of_the_data_source_is_documented() -> None:
    reported = {word.lower() for word in documented(PROGRAM, "Options of the data source")}
    assert reported == OPTION_NAMES - SPARK_OPTIONS


def test_every_environment_variable_is_documented() -> None:
    used = {
        node.value
        for _, node in scans.nodes()
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"STREAMBROKER_[A-Z_]+", node.value)
    }
    assert used
    assert used <= set(documented(PROGRAM, "Environment variables"))


def test_the_matrix_of_sessions_has_every_file_of_the_data_path() -> None:
    page = ROOT / "docs/how-to/spark-connect.md"
    linked = {
        (page.parent / target).resolve()
        for line in page.read_text().splitlines()
        if re.search(r"\| yes +\| yes +\|", line)
        for _, target in _LINK.findall(line)
    }
    suite = ROOT / "tests/component/data_path"
    assert {path for path in linked if path.parent == suite} == set(suite.glob("test_*.py"))


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_is_documented(name: str) -> None:
    assert f"`sb.{name}`" in PROGRAM


@pytest.mark.parametrize("name", sorted(methods(PORTS_AND_PE)))
def test_a_call_of_the_interface_is_documented(name: str) -> None:
    assert re.search(rf"\b{name}\(", PROGRAM)


@pytest.mark.parametrize("name", sorted(methods(STREAMS)))
def test_a_method_of_streams_is_documented(name: str) -> None:
    assert any(re.search(rf"\b{name}\b", page) for page in (CONTROL, PATTERNS, SIDE_INPUTS))


@pytest.mark.parametrize(
    ("page", "heading", "known"),
    [
        (PROGRAM, "sb.start", set(inspect.signature(sb.start).parameters)),
        (PROGRAM, "BrokerAuth", {one.name for one in fields(sb.BrokerAuth)}),
        (PROGRAM, "AgentOptions", {one.name for one in fields(sb.AgentOptions)}),
        (PROGRAM, "AgentTls", {one.name for one in fields(sb.AgentTls)}),
        (PROGRAM, "subscribe", {"port", "subscription"} | SETTINGS),
        (PROGRAM, "subscribe_stream", {"control_log", "mergeable"}),
        (PROGRAM, "publish", {*PUBLISHING, *sb.ExportSettings.__annotations__}),
        (CONTROL, "OperatorOptions", {one.name for one in fields(sb.OperatorOptions)}),
    ],
)
def test_parameters_are_documented(page: str, heading: str, known: set[str]) -> None:
    assert set(documented(page, heading)) == known


def test_subscribe_stream_adds_to_the_settings_of_subscribe() -> None:
    known = set(inspect.signature(sb.PE.subscribe).parameters)
    more = set(inspect.signature(sb.PE.subscribe_stream).parameters)
    assert more - known == {"control_log", "mergeable"}


def test_each_decision_has_a_number_of_its_own_and_is_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    names = sorted(path.name for path in folder.glob("[0-9]*.md"))
    listed = re.findall(r"\]\((\d{4}-[a-z0-9-]+\.md)\)", (folder / "README.md").read_text())
    assert len({name[:4] for name in names}) == len(names)
    assert sorted(set(listed)) == names
