"""Count words that the vocabulary avoids in identifiers, docstrings and messages.

``python -m support.contracts.vocabulary`` prints the places of each word that is left.
``--write`` stores the counts, but only if none of them rises: a count may fall and never rise.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from support.contracts import scans

ROOT = Path(__file__).parents[3]
FILE = ROOT / "tests/contract/vocabulary.toml"
COMMAND = "PYTHONPATH=tests .venv/bin/python -m support.contracts.vocabulary --write"
PACKAGES = {
    "core": "core/src",
    "operator": "operator/src",
    "pe_agent": "pe_agent/src",
    "streambroker": "pe_agent/streambroker/src",
}

_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_WORDS = re.compile(r"[A-Za-z']+")
_QUOTED = re.compile(r"``[^`]*``|`[^`]*`")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a word to avoid occurs."""

    package: str
    kind: str
    word: str
    file: str
    line: int


def read() -> Any:
    """Return the tables of the file: `avoid`, and `counts` by package and kind."""
    return tomllib.loads(FILE.read_text())


@cache
def avoided() -> dict[str, str]:
    """Return each form of each word to avoid, with the form under which it is counted."""
    known = read()["avoid"].items()
    return {form: word for word, entry in known for form in (word, *entry.get("forms", ()))}


def _texts(tree: ast.AST) -> Iterator[tuple[str, int, str]]:
    """Yield each docstring and each message with its kind and line."""
    documented: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            documented.add(id(node.value))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) in documented:
                yield "docstrings", node.lineno, _QUOTED.sub(" ", node.value)
            elif " " in node.value:
                yield "messages", node.lineno, node.value


def _identifiers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield each name that the code defines, once for each definition."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def places_in(package: str, file: str, tree: ast.Module) -> Iterator[Place]:
    forms = avoided()
    for line, name in _identifiers(tree):
        for part in _PARTS.findall(name):
            if part.lower() in forms:
                yield Place(package, "identifiers", forms[part.lower()], file, line)
    for kind, line, text in _texts(tree):
        for word in _WORDS.findall(text):
            if word.lower() in forms:
                yield Place(package, kind, forms[word.lower()], file, line)


def places() -> Iterator[Place]:
    for package, folder in PACKAGES.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield from places_in(package, str(path.relative_to(ROOT)), scans.parsed(path))


def count() -> dict[str, dict[str, int]]:
    """Return how often each word occurs, by `package.kind`, without words that do not occur."""
    counts: dict[str, Counter[str]] = {}
    for place in places():
        counts.setdefault(f"{place.package}-{place.kind}", Counter())[place.word] += 1
    return {name: dict(sorted(found.items())) for name, found in sorted(counts.items())}


def risen(stored: dict[str, dict[str, int]], found: dict[str, dict[str, int]]) -> list[str]:
    """Return a line for each count that is higher than the stored one."""
    lines = []
    for name, counts in found.items():
        for word, number in counts.items():
            before = stored.get(name, {}).get(word, 0)
            if number > before:
                lines.append(f"{name}: {word!r} occurs {number} times, {before} are stored")
    return lines


def _write(counts: dict[str, dict[str, int]]) -> None:
    head, _, _ = FILE.read_text().partition("\n[counts")
    lines = [head.rstrip("\n"), ""]
    for name, found in counts.items():
        lines.append(f"[counts.{name}]")
        lines += [f"{word} = {number}" for word, number in found.items()]
        lines.append("")
    FILE.write_text("\n".join(lines).rstrip("\n") + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="store the counts, if none rises")
    options = parser.parse_args()
    counts = count()
    if not options.write:
        for place in places():
            sys.stdout.write(f"{place.file}:{place.line}: {place.word} ({place.kind})\n")
        return 0
    stored = read().get("counts")
    problems = risen(stored, counts) if stored else []
    if problems:
        sys.stdout.write("\n".join(problems) + "\n")
        return 1
    _write(counts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
