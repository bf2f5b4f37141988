"""Words that the sources contain, found without running them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
SOURCES = ("core/src", "operator/src", "pe_agent/src", "pe_agent/streambroker/src")
NO_CODES = {"Failed", "Usage"}
"""The root's own word, and a wrong command line, which says all there is to say."""

_CODE_PLACES = {"RequestError": 1, "broker_error": 1, "AgentRefusedError": 0, "TakenError": 0}
"""Position of the code among the arguments of what makes an error."""
_WORD = re.compile(r"[A-Z][A-Za-z]+")
_VARIABLE = re.compile(r"STREAMBROKER_[A-Z_]+")
_FENCE = re.compile(r"^```python.*?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_IMPORT = re.compile(r"^[ \t]*(?:from|import) ([\w.]+)(?: import (\([^)]*\)|.*))?", re.MULTILINE)
_DISTRIBUTIONS = ("streambroker", "pe_agent", "streambroker_core", "pyspark_streambroker")


@dataclass(frozen=True)
class Module:
    name: str
    tree: ast.Module


@cache
def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a file; several contracts read the same files."""
    return ast.parse(path.read_text())


@cache
def modules() -> tuple[Module, ...]:
    found = []
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found.append(Module(name, parsed(path)))
    return tuple(found)


@cache
def nodes() -> tuple[tuple[Module, ast.AST], ...]:
    return tuple((module, node) for module in modules() for node in ast.walk(module.tree))


@cache
def _texts() -> dict[tuple[str, str], str]:
    """Return the module-level constants that are texts, by module and name."""
    return {
        (module.name, target.id): node.value.value
        for module in modules()
        for node in module.tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name) and isinstance(node.value.value, str)
    }


@cache
def _imported(module: Module) -> dict[str, tuple[str, str]]:
    """Return module and name of what a file imports by name."""
    return {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def constants(name: str) -> list[str]:
    """Return the texts that module-level constants of one name have."""
    return sorted(text for (_, known), text in _texts().items() if known == name)


def _text(node: ast.expr, module: Module) -> str | None:
    """Return the text that an expression is: a literal, or a constant of this or another file."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.Name):
        key = (module.name, node.id)
        return _texts().get(key) or _texts().get(_imported(module).get(node.id, key))
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        package, name = _imported(module).get(node.value.id, ("", ""))
        return _texts().get((f"{package}.{name}", node.attr))
    return None


def _called(node: ast.AST) -> str:
    """Return the last part of the name that is called; empty for anything else."""
    return _last(node.func) if isinstance(node, ast.Call) else ""


def _last(node: ast.expr) -> str:
    """Return the last part of a name; empty for anything else."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


# ---- error codes -----------------------------------------------------------------------------


def codes() -> set[str]:
    found: set[str] = set()
    for _, node in nodes():
        found |= set(_codes_of(node))
    return found - NO_CODES


def _codes_of(node: ast.AST) -> Iterator[str]:
    """Yield the X of ``code = "X"`` and of errors that are given it, as ``TakenError("X", …)``."""
    if isinstance(node, ast.Assign | ast.AnnAssign):
        names = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(isinstance(name, ast.Name) and name.id == "code" for name in names):
            yield from _words(node.value)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        place = _CODE_PLACES.get(node.func.id)
        if place is not None and len(node.args) > place:
            yield from _words(node.args[place])


def _words(node: ast.AST | None) -> Iterator[str]:
    """Yield the words that an expression may be."""
    for part in ast.walk(node) if node is not None else ():
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield from re.findall(rf"^{_WORD.pattern}$", part.value)


def statuses() -> dict[str, set[int]]:
    """Return the HTTP statuses with which requests are refused, by error code."""
    found: dict[str, set[int]] = {}
    for _, node in nodes():
        refusal = _called(node) in ("RequestError", "broker_error")
        if refusal and isinstance(node, ast.Call) and len(node.args) > 1:
            numbers = {
                part.value
                for part in ast.walk(node.args[0])
                if isinstance(part, ast.Constant) and isinstance(part.value, int)
            }
            for word in _words(node.args[1]):
                found.setdefault(word, set()).update(numbers)
    return found


# ---- environment and logs --------------------------------------------------------------------


def variables() -> set[str]:
    """Return the names of all environment variables that are read or set."""
    found: set[str] = set()
    for module, node in nodes():
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= set(_VARIABLE.findall(node.value) if _VARIABLE.fullmatch(node.value) else ())
        texts = (_text(one, module) for one in _variables_of(node))
        found |= {text for text in texts if text}
    return found


def _variables_of(node: ast.AST) -> list[ast.expr]:
    """Return the expressions that name a variable of the environment."""
    if isinstance(node, ast.Call):
        environment = isinstance(node.func, ast.Attribute) and _is_environment(node.func.value)
        return node.args[:1] if environment or _called(node) == "getenv" else []
    if isinstance(node, ast.Subscript):
        return [node.slice] if _is_environment(node.value) else []
    if isinstance(node, ast.Compare):
        return [node.left] if any(map(_is_environment, node.comparators)) else []
    if isinstance(node, ast.Dict):
        merged = (value for key, value in zip(node.keys, node.values, strict=True) if key is None)
        return [key for key in node.keys if key] if any(map(_is_environment, merged)) else []
    return []


def _is_environment(node: ast.expr) -> bool:
    return _last(node) == "environ"


def loggers() -> set[str]:
    found: set[str] = set()
    for module, node in nodes():
        if isinstance(node, ast.Call) and _called(node) == "getLogger":
            argument = ast.unparse(node.args[0]) if node.args else ""
            text = module.name if argument == "__name__" else None
            found.add(text or _text(node.args[0], module) or f"<{argument}>")
    return found


# ---- conditions and Events -------------------------------------------------------------------


def conditions() -> dict[str, set[str]]:
    """Return the words of conditions and Events: ``types``, ``reasons`` and ``events``.

    A word is found where it is given to a parameter ``reason`` or to a function that returns a
    condition or a note, or assigned to a variable or a field ``reason``.
    """
    found: dict[str, set[str]] = {"types": set(), "reasons": set(), "events": set()}
    scanned = list(modules())
    makers = {
        node.name: node.returns.id
        for module in scanned
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef)
        and isinstance(node.returns, ast.Name)
        and node.returns.id in ("Condition", "EventNote")
    }
    for module in scanned:
        for node in ast.walk(module.tree):
            for kind, one in _reported(node, makers):
                text = _text(one, module)
                words = [text] if text and _WORD.fullmatch(text) else list(_words(one))
                found[kind] |= set(words)
    return found


def _reported(node: ast.AST, makers: dict[str, str]) -> Iterator[tuple[str, ast.expr]]:
    """Give the expressions that may be the type or the reason of a condition or an Event."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            for name, value in _assigned(target, node.value):
                if name == "reason":
                    yield "reasons", value
    elif isinstance(node, ast.AnnAssign):  # the default of a field
        if isinstance(node.target, ast.Name) and node.target.id == "reason" and node.value:
            yield "reasons", node.value
    elif isinstance(node, ast.Call):
        made = makers.get(_called(node), _called(node))
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        if "reason" in given:
            yield "reasons", given["reason"]
        if "type" in given and made in ("Condition", "replace"):
            yield "types", given["type"]
        kinds = {"EventNote": ("events",) * len(node.args), "Condition": ("types", "reasons")}
        yield from zip(kinds.get(made, ()), node.args, strict=False)


def _assigned(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, part in zip(target.elts, value.elts, strict=True):
            yield from _assigned(one, part)


# ---- what documents and examples import ------------------------------------------------------


def imported_by_users() -> dict[str, set[str]]:
    """Return the names that documents and examples import, by module."""
    found: dict[str, set[str]] = {}
    documents = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    documents += (ROOT / "examples").rglob("*.md")
    texts = [code for path in documents for code in _FENCE.findall(path.read_text())]
    texts += [path.read_text() for path in (ROOT / "examples").rglob("*.py")]
    for module, names in (one for text in texts for one in _IMPORT.findall(text)):
        if module.partition(".")[0] in _DISTRIBUTIONS:
            bare = re.sub(r"#.*| as \w+", "", names)
            found.setdefault(module, set()).update(re.findall(r"\w+", bare))
    return found


def defined(name: str) -> set[str]:
    """Return the public classes, functions and constants that a module defines."""
    found: set[str] = set()
    for node in (node for module in modules() if module.name == name for node in module.tree.body):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = (one for target in targets for one in ast.walk(target))
            found |= {one.id for one in names if isinstance(one, ast.Name) and one.id.isupper()}
    return {one for one in found if not one.startswith("_")}
