"""Modules of which workers unpickle functions can be imported before all others.

A worker of Spark imports the module that a pickled function names, so any of them may come first.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import pe_agent

SCRIPT = """
import importlib, os, sys, traceback

for name in ("lark", "pyarrow.compute", "pyarrow.flight", "pyspark.sql"):
    importlib.import_module(name)
for name in sys.argv[1:]:
    child = os.fork()
    if not child:
        try:
            importlib.import_module(name)
        except BaseException:
            print(name, traceback.format_exc(limit=-1).splitlines()[-1], flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.mark.parametrize("room", ["aligned", "cep", "side", "streams"])
def test_every_module_can_be_imported_first(room: str) -> None:
    names = [
        module.name
        for module in pkgutil.walk_packages(pe_agent.__path__, "pe_agent.")
        if module.name.startswith(f"pe_agent.{room}.")
    ]
    assert len(names) > 4
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, *names], capture_output=True, text=True, check=True
    )
    assert run.stdout == ""


@pytest.mark.parametrize("room", ["aligned", "cep", "side"])
def test_no_module_has_the_name_of_what_its_room_offers(room: str) -> None:
    package = importlib.import_module(f"pe_agent.{room}")
    modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    assert modules.isdisjoint(package.__all__)


@pytest.mark.parametrize("room", ["aligned", "cep", "side"])
def test_the_stub_of_a_room_types_what_the_room_offers(room: str) -> None:
    package = importlib.import_module(f"pe_agent.{room}")
    typed: dict[str, str] = {}
    for node in ast.parse(Path(str(package.__file__)).with_suffix(".pyi").read_text()).body:
        if isinstance(node, ast.ImportFrom):
            typed |= {str(one.asname): str(node.module) for one in node.names if one.asname}
    hidden = {name.removeprefix("_") for name in typed if name.startswith("_")}
    assert {name.removeprefix("_"): module for name, module in typed.items()} == package._MODULES
    assert hidden == ({"SideInputs", "StatelessInputs"} if room == "side" else set())
