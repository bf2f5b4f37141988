"""What the layout of the source still has that its rules exclude.

``python -m support.contracts.tree --write`` stores what is left in ``tests/contract/tree.toml``.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from support.contracts import scans

ROOT = Path(__file__).parents[3]
FILE = ROOT / "tests/contract/tree.toml"
COMMAND = "PYTHONPATH=tests .venv/bin/python -m support.contracts.tree --write"
MAX_ENTRIES = 14
MAX_CLASS_LINES = 300
MAX_ATTRIBUTES = 15
MAX_METHODS = 25

_INTERFACES = ("Protocol", "ABC")
_HEAD = f"""# What the rules of the layout exclude and the source still has. Nothing may be added.
# `{COMMAND}` stores what is left.
# A class of more than {MAX_ATTRIBUTES} attributes or {MAX_METHODS} methods needs a reason.
"""


def folders() -> Iterator[tuple[str, int]]:
    """Yield each folder with how many modules and folders are in it."""
    for source in scans.SOURCES:
        for folder in sorted(path for path in (ROOT / source).rglob("*") if path.is_dir()):
            entries = [entry for entry in folder.iterdir() if _is_source(entry)]
            if entries:
                yield str(folder.relative_to(ROOT)), len(entries)


def _is_source(path: Path) -> bool:
    if path.is_dir():
        return any(path.rglob("*.py"))
    return path.suffix == ".py" and path.name != "__init__.py"


@cache
def classes() -> Mapping[str, ast.ClassDef]:
    """Return each class by the dotted name of its module and its own name."""
    found = {}
    for source in scans.SOURCES:
        for path in sorted((ROOT / source).rglob("*.py")):
            module = ".".join(path.relative_to(ROOT / source).with_suffix("").parts)
            for node in ast.walk(scans.parsed(path)):
                if isinstance(node, ast.ClassDef):
                    found[f"{module}.{node.name}"] = node
    return found


def long_classes() -> list[str]:
    """Return the classes of more than 300 lines."""
    return [name for name, node in classes().items() if _lines(node) > MAX_CLASS_LINES]


def _lines(node: ast.ClassDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def crowded_classes() -> list[str]:
    """Return the classes with more than 15 attributes or 25 methods; properties are methods."""
    return [name for name, node in classes().items() if is_crowded(node)]


def is_crowded(node: ast.ClassDef) -> bool:
    """Return whether a class has more attributes or methods than the rule allows."""
    methods = [one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    names = {
        one.target.id
        for one in node.body
        if isinstance(one, ast.AnnAssign)
        and isinstance(one.target, ast.Name)
        and not ast.unparse(one.annotation).startswith("ClassVar")
    }
    names |= {name for method in methods for name in _set_attributes(method)}
    return len(names) > MAX_ATTRIBUTES or len(methods) > MAX_METHODS


def _set_attributes(method: ast.AST) -> Iterator[str]:
    for part in ast.walk(method):
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
            own = isinstance(part.value, ast.Name) and part.value.id == "self"
            yield from [part.attr] if own else []


def reasons() -> dict[str, str]:
    """Return why classes are crowded, by class; a new one has an empty reason."""
    stored: dict[str, str] = tomllib.loads(FILE.read_text()).get("crowded_classes", {})
    return {name: stored.get(name, "") for name in sorted(crowded_classes())}


def inherited() -> list[str]:
    """Return the classes whose base is an implementation in another file of the same folder."""
    known, found = classes(), []
    by_folder: dict[tuple[str, str], list[str]] = {}
    for name in known:
        folder, _, own = name.rsplit(".", 2)
        by_folder.setdefault((folder, own), []).append(name)
    for name, node in known.items():
        module, folder = name.rpartition(".")[0], name.rsplit(".", 2)[0]
        for base in (base.id for base in node.bases if isinstance(base, ast.Name)):
            for other in by_folder.get((folder, base), ()):
                elsewhere = other.rpartition(".")[0] != module
                if elsewhere and not _is_interface(base, known[other]):
                    found.append(f"{name} <- {base}")
    return found


def _is_interface(name: str, definition: ast.ClassDef) -> bool:
    bases = {ast.unparse(base).split("[")[0] for base in definition.bases}
    return name.endswith("Error") or bool(bases & set(_INTERFACES))


def exceptions() -> dict[str, list[str]]:
    """Return all that the rules exclude, by rule."""
    return {"long_classes": sorted(long_classes()), "split_by_inheritance": sorted(inherited())}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="store what is left")
    lines = []
    for rule, names in exceptions().items():
        lines += [f"{rule} = [", *(f'  "{name}",' for name in names), "]"]
    lines += ["", "[crowded_classes]", *(f'"{k}" = "{v}"' for k, v in reasons().items())]
    text = _HEAD + "\n".join(lines) + "\n"
    if parser.parse_args().write:
        FILE.write_text(text)
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
