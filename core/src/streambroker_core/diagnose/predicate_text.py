"""Describe what a predicate requires and what a resource has instead."""

from __future__ import annotations

import json
import re
from typing import Any

from streambroker_core.expression import Miss, PredicateResult, tree
from streambroker_core.expression.evaluate import Row, compile_fetch
from streambroker_core.expression.printer import print_tree

_MAX_LENGTH = 60
_PLAIN = re.compile(r"[A-Za-z_][\w.:/-]*\Z")
_WORDS = frozenset({"true", "false", "null"})
_MATCHES = {"startsWith": "start with", "endsWith": "end with", "contains": "contain"}


def describe_changes(miss: Miss, node: tree.Predicate, values: Row) -> list[str]:
    """Return a phrase for each predicate that would have to change.

    `values` are the normalised properties that do not make the tree true.
    """
    atoms = {print_tree(atom): atom for atom in tree.atoms(node)}
    return [
        describe_change(atoms[finding.text], finding, values, desired=wanted)
        for finding, wanted in zip(miss.wrong, miss.desired, strict=True)
    ]


def describe_change(
    atom: tree.Atom, finding: PredicateResult, values: Row, *, desired: bool
) -> str:
    """Return a phrase such as ``needs kind = trade, has quote``."""
    requirement, subject = _describe_requirement(atom, desired)
    if not requirement or subject is None:
        return f"needs `{finding.text}` to be {'true' if desired else 'false'}: {finding.why}"
    return f"needs {requirement}, {_describe_actual(subject, values)}"


def _describe_requirement(atom: tree.Atom, desired: bool) -> tuple[str, tree.Operand | None]:
    """Return the requirement as text, and its subject; an empty text if no phrase fits."""
    match atom:
        case tree.Comparison():
            return _describe_comparison(atom, desired)
        case tree.Membership():
            return _describe_membership(atom, desired)
        case tree.Has():
            return f"{'some' if desired else 'no'} {atom.name}", tree.Name(atom.name)
        case tree.StringTest():
            verb = f"{'' if desired else 'not '}to {_MATCHES[atom.function]}"
            return f"{_print_subject(atom.subject)} {verb} {format_value(atom.text)}", atom.subject
        case tree.Topic():
            fits = "fits" if desired else "does not fit"
            topic = tree.Name(tree.TOPIC_PROPERTY)
            return f"a {tree.TOPIC_PROPERTY} that {fits} {atom.filter}", topic
        case tree.Boolean():
            return "", None
        case _:
            return f"{_print_subject(atom)} = {str(desired).lower()}", atom


def _describe_comparison(atom: tree.Comparison, desired: bool) -> tuple[str, tree.Operand | None]:
    operand_test = tree.operand_test_for(atom, desired=desired)
    if operand_test is None:
        return "", None
    word = {"==": "=", "!=": "other than"}.get(operand_test.op, operand_test.op)
    return (
        f"{_print_subject(operand_test.subject)} {word} {format_value(operand_test.value)}",
        operand_test.subject,
    )


def _describe_membership(atom: tree.Membership, desired: bool) -> tuple[str, tree.Operand | None]:
    if isinstance(atom.container, tree.ListLiteral):
        listed = ", ".join(format_value(item.value) for item in atom.container.items)
        word = "one" if desired else "none"
        return f"{_print_subject(atom.item)} to be {word} of {listed}", atom.item
    if not isinstance(atom.item, tree.LITERALS):
        return "", None
    verb = "to hold" if desired else "not to hold"
    return f"{atom.container.name} {verb} {format_value(atom.item.value)}", atom.container


def _print_subject(node: tree.Node) -> str:
    return print_tree(node)


def _describe_actual(subject: tree.Operand, values: Row) -> str:
    value = compile_fetch(subject)(values)
    if value is not None:
        return f"has {format_value(value)}"
    absent = sorted(name for name in tree.names(subject) if values.get(name) is None)
    if absent:
        return f"has no {absent[0]}"
    if isinstance(subject, tree.Subscript):
        return f"has {subject.name} = {format_value(values[subject.name])}"
    return f"has no value for {print_tree(subject)}"


def count_text(count: int, noun: str) -> str:
    """Return a count with its noun, in the plural unless it is 1."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def format_value(value: Any) -> str:
    """Return a value as text: a string without quotes if it is unambiguous."""
    if isinstance(value, str) and _PLAIN.match(value) and value not in _WORDS:
        text = value
    elif isinstance(value, list | tuple):
        text = f"[{', '.join(format_value(item) for item in value[:20])}]"
    else:
        text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - 1]}…"
