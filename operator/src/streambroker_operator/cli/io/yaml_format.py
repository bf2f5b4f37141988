"""YAML with the numbers of YAML 1.2, without dates and duplicate keys.

Scalars that kubectl (YAML 1.1) reads differently are refused, because users apply the same file
with both tools.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from typing import Any, NoReturn

import yaml

from streambroker_operator.cli.io.terminal import is_printable

_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
_AMBIGUOUS_NUMBER = re.compile(
    r"[-+]?(?:0[0-9]+|0[bBXO][0-9a-fA-F_]+|0[xo]?[0-9a-fA-F.]*_[0-9a-fA-F_.]*|[0-9.]+_[0-9_.]*)"
    r"|[-+]0[xo][0-9a-fA-F]+"
)
"""Octal, binary and grouped numbers, which kubectl reads as YAML 1.1."""
_REPLACED_TAGS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp")
_NUMBER_STARTS = list("-+.0123456789")
_AMBIGUOUS_TAG = "!two-ways"


class Loader(yaml.SafeLoader):
    """Loader without dates, base-60 and zero-prefixed octal numbers, and without duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Return a mapping; refuse duplicate keys."""
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} occurs twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)

    def construct_integer(self, node: yaml.ScalarNode) -> int:
        """Return an integer of YAML 1.2."""
        text = str(self.construct_scalar(node))
        if _INT.fullmatch(text) is None:
            raise yaml.constructor.ConstructorError(
                None, None, f"{text!r} is not an integer", node.start_mark
            )
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)

    def refuse_ambiguous(self, node: yaml.ScalarNode) -> NoReturn:
        """Refuse a number that kubectl reads differently."""
        text = str(self.construct_scalar(node))
        problem = f"kubectl reads {text!r} differently; put it in quotes or write it plainly"
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


class _Dumper(yaml.SafeDumper):
    """Quotes strings that YAML 1.1, `Loader` or kubectl would read as another type."""


Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag not in _REPLACED_TAGS]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _class in (Loader, _Dumper):
    for _tag, _pattern in (
        (_AMBIGUOUS_TAG, _AMBIGUOUS_NUMBER),
        (_REPLACED_TAGS[0], _INT),
        (_REPLACED_TAGS[1], _FLOAT),
    ):
        _class.add_implicit_resolver(_tag, re.compile(f"(?:{_pattern.pattern})$"), _NUMBER_STARTS)
_Dumper.add_implicit_resolver(_AMBIGUOUS_TAG, re.compile("[yYnN]$"), list("yYnN"))
_Dumper.add_multi_representer(dict, _Dumper.represent_dict)
Loader.add_constructor(_REPLACED_TAGS[0], Loader.construct_integer)
Loader.add_constructor(_AMBIGUOUS_TAG, Loader.refuse_ambiguous)


def load_all(text: str) -> list[Any]:
    """Return the documents of a text.

    Raises:
        yaml.YAMLError: it is not YAML.
        RecursionError: it is nested too deeply.
    """
    return list(yaml.load_all(text, Loader=Loader))


def dump_all(documents: Sequence[object]) -> str:
    """Return documents as YAML that loads as the same values.

    With control characters for terminals, all that is not ASCII is escaped.
    """
    text = _dump(documents, allow_unicode=True)
    return text if is_printable(text) else _dump(documents, allow_unicode=False)


def _dump(documents: Sequence[object], *, allow_unicode: bool) -> str:
    return str(
        yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, allow_unicode=allow_unicode)
    )
