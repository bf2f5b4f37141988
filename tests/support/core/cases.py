"""Run language cases: lists of JSON objects, each an expression and its expected answer.

    python -m support.core.cases FILE...

prints the failing cases and, last, ``N passed, N failed`` with the number of
cases of unsupported kinds, if there are any. The exit status is 0 only if
nothing failed and nothing is unsupported.

A filter is decided by the scalar evaluator and by the Arrow mask; where they
differ, the case fails whatever it expects. Cases of patterns are run by `pattern_cases`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from pe_agent.datasource.schemas import as_arrow_schema
from pe_agent.filters import compile_filter
from streambroker_core.errors import ExpressionError, StreambrokerError
from streambroker_core.expression import check_filter, parse
from streambroker_core.model.schema import Column, Schema, to_ddl
from streambroker_core.model.topics import is_valid_pattern, is_valid_topic, topic_matches
from support.patterns import cases as pattern_cases

ERROR = "error"
_SPARK = {
    "rstring": "string",
    "float64": "double",
    "float32": "float",
    "boolean": "boolean",
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
}


def load(path: Path) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return cases


def counted(cases: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the cases that count: all but those of class ``extension``."""
    return [case for case in cases if case.get("class") != "extension"]


def supported(case: dict[str, Any]) -> bool:
    """Tell whether the kind of a case is known here."""
    return case.get("kind") in _RUNNERS or case.get("kind") in pattern_cases.KINDS


def expected(case: dict[str, Any]) -> object:
    """Return what a case expects; the class ``reject`` expects a refusal."""
    return ERROR if case.get("class") == "reject" else case["expected"]


def run(case: dict[str, Any]) -> object:
    """Return the answer to a case: true, false, or ``error`` for a refusal."""
    try:
        return _RUNNERS[case["kind"]](case)
    except ExpressionError:
        return ERROR


def schema_of(case: dict[str, Any]) -> Schema:
    """Return the columns of a filter case, those without a type by their value."""
    types = dict(case.get("tuple_types") or case.get("schema") or {})
    if "tuple_types" not in case:
        for name, value in case.get("tuple", {}).items():
            types.setdefault(name, _type_of(value))
    return tuple(Column(name, _spark_type(kind)) for name, kind in types.items())


def batch_of(row: dict[str, Any], schema: Schema) -> pa.RecordBatch:
    """Return a batch of one row; columns without a value are null."""
    if not schema:
        return pa.RecordBatch.from_struct_array(pa.array([{}], pa.struct([])))
    return pa.RecordBatch.from_pylist([row], schema=as_arrow_schema(to_ddl(schema)))


def _spark_type(name: str) -> str:
    if name.startswith(("list<", "array<")):
        return f"array<{_spark_type(name[name.index('<') + 1 : -1])}>"
    return _SPARK.get(name, name)


def _type_of(value: Any) -> str:
    if isinstance(value, list):
        floats = any(isinstance(item, float) for item in value)
        return f"array<{'double' if floats else _type_of(value[0] if value else '')}>"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "bigint"
    return "double" if isinstance(value, float) else "string"


def _run_filter(case: dict[str, Any]) -> object:
    expression = parse(case["expression"], "filter")
    schema = schema_of(case)
    check_filter(expression, schema)
    batch = batch_of(case.get("tuple") or {}, schema)
    scalar = expression.matches(batch.to_pylist()[0])
    (mask,) = compile_filter(expression, schema).mask(batch).to_pylist()
    return scalar if scalar == mask else f"evaluator {scalar}, mask {mask}"


def _run_parse_filter(case: dict[str, Any]) -> object:
    expression = parse(case["expression"], "filter")
    if "schema" in case or "tuple_types" in case:
        check_filter(expression, schema_of(case))
    return True


def _run_topic(case: dict[str, Any]) -> object:
    topic_filter, topic = case["expression"], case["topic"]
    if not is_valid_pattern(topic_filter) or not is_valid_topic(topic):
        return False
    answer = topic_matches(topic_filter, topic)
    expression = parse(f"topic({json.dumps(topic_filter)})")
    asked = expression.matches({"topic": topic})
    return answer if answer == asked else f"function {answer}, expression {asked}"


_RUNNERS: dict[str, Callable[[dict[str, Any]], object]] = {
    "subscription": lambda case: parse(case["expression"]).matches(case.get("properties") or {}),
    "filter": _run_filter,
    "parse-subscription": lambda case: parse(case["expression"]) is not None,
    "parse-filter": _run_parse_filter,
    "topic": _run_topic,
    "topic-name": lambda case: is_valid_topic(case["expression"]) or ERROR,
    "topic-filter": lambda case: is_valid_pattern(case["expression"]) or ERROR,
}


def failure(case: dict[str, Any]) -> str | None:
    """Return what is wrong with the answer to a case, None if nothing is."""
    if case["kind"] in pattern_cases.KINDS:
        return pattern_cases.failure(case)
    try:
        got: object = run(case)
    except (StreambrokerError, pa.ArrowException, ArithmeticError, LookupError, TypeError) as error:
        got = f"{type(error).__name__}: {error}"
    if got == expected(case):
        return None
    text = json.dumps(case["expression"], ensure_ascii=False)
    return f"{case['id']}: expected {expected(case)}, got {got}: {text}"


def main(paths: list[str]) -> int:
    cases = [case for path in paths for case in counted(load(Path(path)))]
    known = [case for case in cases if supported(case)]
    failures = [problem for problem in map(failure, known) if problem]
    unsupported = len(cases) - len(known)
    for problem in failures:
        print(problem)  # noqa: T201 - the report
    tail = f", {unsupported} unsupported" if unsupported else ""
    print(f"{len(known) - len(failures)} passed, {len(failures)} failed{tail}")  # noqa: T201
    return 1 if failures or unsupported else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
