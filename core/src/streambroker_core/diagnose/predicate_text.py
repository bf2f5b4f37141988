"""What a predicate asks for, and what is there instead, as people say it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from streambroker_core.expression import Finding, Miss, tree
from streambroker_core.expression.evaluate import fetch_of
from streambroker_core.expression.printer import print_tree

_SHOWN = 60
_PLAIN = re.compile(r"[A-Za-z_][\w.:/-]*\Z")
_WORDS = frozenset({"true", "false", "null"})
_MATCHES = {"startsWith": "start with", "endsWith": "end with", "contains": "contain"}


def needs(miss: Miss, node: tree.Predicate, values: Mapping[str, Any]) -> list[str]:
    """Return a phrase for each predicate that would have to change.

    Args:
        miss: a way to make the tree true.
        node: the tree.
        values: the normalised properties that do not.
    """
    atoms = {print_tree(atom): atom for atom in tree.atoms(node)}
    return [
        need(atoms[finding.text], finding, values, wanted=wanted)
        for finding, wanted in zip(miss.wrong, miss.wanted, strict=True)
    ]


def need(atom: tree.Atom, finding: Finding, values: Mapping[str, Any], *, wanted: bool) -> str:
    """Return a phrase such as ``needs kind = trade, has quote``."""
    asked, subject = _asked(atom, wanted)
    if not asked or subject is None:
        return f"needs `{finding.text}` to be {'true' if wanted else 'false'}: {finding.why}"
    return f"needs {asked}, {_held(subject, values)}"


def _asked(atom: tree.Atom, wanted: bool) -> tuple[str, tree.Operand | None]:
    """Return what is wanted, and of whom; an empty text where no phrase fits."""
    match atom:
        case tree.Comparison():
            return _comparison(atom, wanted)
        case tree.Membership():
            return _membership(atom, wanted)
        case tree.Has():
            return f"{'some' if wanted else 'no'} {atom.name}", tree.Name(atom.name)
        case tree.Match():
            verb = f"{'' if wanted else 'not '}to {_MATCHES[atom.function]}"
            return f"{_subject(atom.subject)} {verb} {shown(atom.text)}", atom.subject
        case tree.Topic():
            fits = "fits" if wanted else "does not fit"
            topic = tree.Name(tree.TOPIC_PROPERTY)
            return f"a {tree.TOPIC_PROPERTY} that {fits} {atom.filter}", topic
        case tree.Boolean():
            return "", None
        case _:
            return f"{_subject(atom)} = {str(wanted).lower()}", atom


def _comparison(atom: tree.Comparison, wanted: bool) -> tuple[str, tree.Operand | None]:
    asked = tree.asked(atom, wanted=wanted)
    if asked is None:
        return "", None
    word = {"==": "=", "!=": "other than"}.get(asked.op, asked.op)
    return f"{_subject(asked.subject)} {word} {shown(asked.value)}", asked.subject


def _membership(atom: tree.Membership, wanted: bool) -> tuple[str, tree.Operand | None]:
    if isinstance(atom.container, tree.ListLiteral):
        listed = ", ".join(shown(item.value) for item in atom.container.items)
        word = "one" if wanted else "none"
        return f"{_subject(atom.item)} to be {word} of {listed}", atom.item
    if not isinstance(atom.item, tree.LITERALS):
        return "", None
    verb = "to hold" if wanted else "not to hold"
    return f"{atom.container.name} {verb} {shown(atom.item.value)}", atom.container


def _subject(node: tree.Node) -> str:
    return print_tree(node)


def _held(subject: tree.Operand, values: Mapping[str, Any]) -> str:
    value = fetch_of(subject)(values)
    if value is not None:
        return f"has {shown(value)}"
    absent = sorted(name for name in tree.names(subject) if values.get(name) is None)
    if absent:
        return f"has no {absent[0]}"
    if isinstance(subject, tree.Subscript):
        return f"has {subject.name} = {shown(values[subject.name])}"
    return f"has no value for {print_tree(subject)}"


def shown(value: Any) -> str:
    """Return a value for people: text without quotes where it cannot be misread."""
    if isinstance(value, str) and _PLAIN.match(value) and value not in _WORDS:
        text = value
    elif isinstance(value, list | tuple):
        text = f"[{', '.join(shown(item) for item in value[:20])}]"
    else:
        text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
