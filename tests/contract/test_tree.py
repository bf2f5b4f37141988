"""The layout keeps its rules: few entries in a folder, no long class, no file split by a base."""

from __future__ import annotations

import ast
import tomllib

from support.contracts import tree


def test_no_folder_has_more_than_fourteen_entries() -> None:
    found = dict(tree.folders())

    assert len(found) > 40
    assert {name: number for name, number in found.items() if number > tree.MAX_ENTRIES} == {}


def test_no_long_class_and_no_class_split_by_inheritance_is_added() -> None:
    stored = tomllib.loads(tree.FILE.read_text())

    del stored["crowded_classes"]
    assert tree.exceptions() == stored, f"store what is left, add nothing: {tree.COMMAND}"


def test_a_class_of_many_attributes_or_methods_has_a_reason() -> None:
    stored = tomllib.loads(tree.FILE.read_text())["crowded_classes"]

    assert set(stored) == set(tree.crowded_classes())
    assert [name for name, reason in stored.items() if len(reason.split()) < 4] == []


def test_attributes_are_fields_and_what_methods_set() -> None:
    fields = "; ".join(f"f{number}: int" for number in range(15))
    body = "def set(self) -> None:\n        self.{} = 1"
    few = ast.parse(f"class A:\n    {fields}\n    {body.format('f3')}").body[0]
    many = ast.parse(f"class A:\n    {fields}\n    {body.format('other')}").body[0]
    assert isinstance(few, ast.ClassDef)
    assert isinstance(many, ast.ClassDef)

    assert not tree.is_crowded(few)
    assert tree.is_crowded(many)


def test_a_protocol_is_no_implementation_to_inherit_from() -> None:
    protocol = ast.parse("class Reader(Protocol[T]): ...").body[0]
    plain = ast.parse("class Reader(Base): ...").body[0]
    assert isinstance(protocol, ast.ClassDef)
    assert isinstance(plain, ast.ClassDef)

    assert tree._is_interface("Reader", protocol)
    assert tree._is_interface("ReadError", plain)
    assert not tree._is_interface("Reader", plain)
