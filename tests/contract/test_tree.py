"""The layout keeps its rules: few entries in a folder, no long class, no file split by a base."""

from __future__ import annotations

import ast

import tomllib  # type: ignore[import-not-found]

from support.contracts import tree


def test_no_folder_has_more_than_fourteen_entries() -> None:
    found = dict(tree.folders())

    assert len(found) > 40
    assert {name: number for name, number in found.items() if number > tree.MAX_ENTRIES} == {}


def test_no_long_class_and_no_class_split_by_inheritance_is_added() -> None:
    stored = tomllib.loads(tree.FILE.read_text())

    assert tree.exceptions() == stored, f"store what is left, add nothing: {tree.COMMAND}"


def test_a_protocol_is_no_implementation_to_inherit_from() -> None:
    protocol = ast.parse("class Reader(Protocol[T]): ...").body[0]
    plain = ast.parse("class Reader(Base): ...").body[0]
    assert isinstance(protocol, ast.ClassDef)
    assert isinstance(plain, ast.ClassDef)

    assert tree._is_interface("Reader", protocol)
    assert tree._is_interface("ReadError", plain)
    assert not tree._is_interface("Reader", plain)
