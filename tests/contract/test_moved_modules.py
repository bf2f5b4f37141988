"""Old module names work for one minor release, with a warning that names the new one."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import pe_agent
import streambroker_core

MOVED = sorted({**pe_agent._MOVED, **streambroker_core._MOVED}.items())
SCRIPT = """
import importlib, sys, warnings

old, new = sys.argv[1:]
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    by_old_name = importlib.import_module(old)
by_new_name = importlib.import_module(new)
print(by_old_name is by_new_name, by_new_name.__spec__.name == new)
print([str(w.message) for w in caught if w.category is DeprecationWarning])
"""


@pytest.mark.parametrize("old", ["pe_agent.local", "streambroker_core.schema"])
def test_a_module_is_imported_by_its_old_name_with_a_warning(old: str) -> None:
    new = dict(MOVED)[old]
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, old, new], capture_output=True, text=True, check=True
    )
    assert run.stdout.splitlines() == [
        "True True",
        f"['{old} has moved to {new}: change the import,"
        " the old name is removed with the next minor release']",
    ]


@pytest.mark.parametrize(("old", "new"), MOVED)
@pytest.mark.filterwarnings("ignore:.*has moved to:DeprecationWarning")
def test_every_old_name_leads_to_a_module(old: str, new: str) -> None:
    assert __import__(old, fromlist=["x"]) is sys.modules[new]


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("pe_agent.aligned.operators", "control_aware"),
        ("pe_agent.aligned.streams", "control_aware"),
        ("pe_agent.cep.processors", "Processors"),
        ("pe_agent.cep.row_patterns", "sql"),
        ("pe_agent.cep.streams", "pattern_processors"),
        ("pe_agent.ports", "NotAppliedError"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_module_has_its_old_public_names(module: str, name: str) -> None:
    assert getattr(importlib.import_module(module), name).__name__ in (name, "QueryRules")


def test_a_module_that_never_was_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"pe_agent\.nowhere"):
        __import__("pe_agent.nowhere")
