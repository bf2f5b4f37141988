"""The table of what works between two releases, made from the marks of tests.

``@pytest.mark.compatibility("format", "what holds")`` stands on a test that shows it. Run with
``--write`` to write the table into ``docs/project/formats.md``.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
MARK = "pytest.mark.compatibility"
PAGE = ROOT / "docs/project/formats.md"
BEGIN, END = "<!-- made from the tests -->\n", "<!-- end of what is made -->\n"
COMMAND = "PYTHONPATH=tests .venv/bin/python -m support.contracts.compatibility --write"


class Shown(NamedTuple):
    """One row: a format, what holds for it, and the file of the test."""

    format: str
    holds: str
    path: str


def find() -> Iterator[Shown]:
    """Return what marked tests show."""
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                for mark in node.decorator_list:
                    if isinstance(mark, ast.Call) and ast.unparse(mark.func) == MARK:
                        of, holds = map(ast.literal_eval, mark.args)
                        yield Shown(of, holds, str(path.relative_to(ROOT)))


def made() -> str:
    """Return the page with the table that the tests give."""
    head, begin, rest = PAGE.read_text().partition(BEGIN)
    _, end, tail = rest.partition(END)
    assert (begin, end) == (BEGIN, END), f"{PAGE} has no place for the table"
    rows = [f"| {one.format} | {one.holds} | `{one.path}` |\n" for one in sorted(find())]
    table = "| format or part | between two releases | shown by |\n|---|---|---|\n" + "".join(rows)
    return f"{head}{begin}\n{table}\n{end}{tail}"


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(made())
