"""The program interface: names load on first use, types and docs follow them, old names warn."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import streambroker
from streambroker_core.deprecation import REMOVAL, renamed

MODULES = ("", "broker", "errors", "functions", "operators", "patterns", "side", "testing")
OLD = {
    "pe_agent": "streambroker",
    "pe_agent.aligned": "streambroker.operators",
    "pe_agent.cep": "streambroker.patterns",
    "pe_agent.side": "streambroker.side",
}
MAX_PARAMETERS = 12
EXCEPTIONS = {"start": 13}
"""`storage` belongs beside `data_dir`, in the call that every job makes."""


def module(name: str) -> Any:
    return importlib.import_module(f"streambroker.{name}" if name else "streambroker")


@pytest.mark.parametrize("name", MODULES)
def test_the_stub_of_a_module_types_the_names_that_it_loads(name: str) -> None:
    found = module(name)
    typed = set()
    for node in ast.parse(Path(str(found.__file__)).with_suffix(".pyi").read_text()).body:
        if isinstance(node, ast.ImportFrom):
            typed |= {(str(one.asname or one.name), str(node.module)) for one in node.names}
    typed = {(one.removeprefix("_"), place) for one, place in typed if place != "streambroker"}
    if name == "side":
        typed -= {(one, "pe_agent.streams.stream") for one in ("OperatorStream", "Stream")}
    loaded = {(one, place) for place, names in found._MODULES.items() for one in names}
    assert typed == loaded
    assert sorted(found.__all__) == sorted(one for one, _ in loaded)


@pytest.mark.parametrize("name", MODULES)
def test_every_name_is_there_and_documented(name: str) -> None:
    found = module(name)
    for one in found.__all__:
        value = getattr(found, one)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), one
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = found.nothing


def test_importing_the_package_loads_neither_spark_nor_arrow() -> None:
    script = (
        "import sys, streambroker; print({'pyspark', 'pyarrow', 'pe_agent'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout == "set()\n"


def _functions() -> Iterator[tuple[str, Any]]:
    for name in MODULES:
        found = module(name)
        for one in found.__all__:
            value = getattr(found, one)
            if inspect.isfunction(value):
                yield one, value
            elif inspect.isclass(value):
                methods = inspect.getmembers(value, inspect.isfunction)
                yield from ((f"{one}.{name}", m) for name, m in methods if name[0] != "_")


def test_no_function_has_more_parameters_than_one_can_overlook() -> None:
    counts = {
        name: len([one for one in inspect.signature(function).parameters if one != "self"])
        for name, function in _functions()
        if "Deprecated" not in (function.__doc__ or "")
    }
    assert len(counts) > 100
    assert {name: n for name, n in counts.items() if n > MAX_PARAMETERS} == EXCEPTIONS


@pytest.mark.parametrize("package", OLD)
def test_an_old_name_warns_and_leads_to_the_new_one(package: str) -> None:
    old, new = importlib.import_module(package), importlib.import_module(OLD[package])
    for name in old.__all__:
        with pytest.warns(DeprecationWarning, match=REMOVAL) as caught:
            found = getattr(old, name)
        assert caught[0].filename == __file__
        assert f"use {new.__name__}.{renamed(name)}, " in str(caught[0].message)
        place: Any = new
        for part in renamed(name).split("."):
            place = getattr(place, part)
        assert inspect.isfunction(found) or found is place, name


@pytest.mark.parametrize("package", [*OLD, "streambroker"])
def test_no_module_hides_a_name_of_its_package(package: str) -> None:
    found = importlib.import_module(package)
    modules = {one.name for one in pkgutil.iter_modules(found.__path__)}
    assert modules.isdisjoint(found.__all__)


def test_a_name_that_never_was_is_not_found() -> None:
    for package in OLD:
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            _ = importlib.import_module(package).nothing
    assert not hasattr(streambroker, "emit_control")


def test_modules_are_attributes_of_the_package() -> None:
    script = "import streambroker as sb; print(sb.side.side_map.__name__, 'patterns' in dir(sb))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout == "side_map True\n"


def test_every_error_that_a_docstring_names_is_among_the_errors() -> None:
    known, named = set(module("errors").__all__), set[str]()
    for name in MODULES:
        for one in module(name).__all__:
            value = getattr(module(name), one)
            documented = [value, *vars(value).values()] if inspect.isclass(value) else [value]
            for place in documented:
                _, _, raised = (inspect.getdoc(place) or "").partition("Raises:")
                named |= set(re.findall(r"\b[A-Z]\w+Error\b", raised))
    assert len(named) > 25
    assert named - known <= {"KeyError", "OSError", "TypeError", "ValueError"}
