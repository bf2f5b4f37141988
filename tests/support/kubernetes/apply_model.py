"""A model of server-side apply on one spec: who holds what, as sets of leaves.

It is written from the rules, not from the code under test: a leaf is a field or an item of a
list with keys, an apply states all leaves of its manager, what it leaves out goes unless
another manager holds it, and a leaf that another holds with another value is a conflict.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Leaf = tuple[str, ...]

OBJECTS = ("application", "buffer", "properties")
KEYED = {"streams": ("applicationName", "streamId"), "schema": ("name",)}


def leaves(spec: Mapping[str, Any]) -> dict[Leaf, Any]:
    """Return a spec as leaves; an empty object is a leaf, too."""
    found: dict[Leaf, Any] = {}
    for name, value in spec.items():
        if name in OBJECTS and value:
            found.update({(name, key): below for key, below in value.items()})
        elif name in KEYED:
            for item in value:
                key = json.dumps({k: item.get(k, "") for k in KEYED[name]})
                found[(name, f"k:{key}")] = item
        else:
            found[(name,)] = value
    return found


def spec_of(found: Mapping[Leaf, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = {}
    for leaf, value in found.items():
        if len(leaf) == 1:
            spec.setdefault(leaf[0], dict(value) if isinstance(value, dict) else value)
        elif leaf[1].startswith("k:"):
            spec.setdefault(leaf[0], []).append(value)
        else:
            spec.setdefault(leaf[0], {})[leaf[1]] = value
    return spec


def fields_v1(found: set[Leaf]) -> dict[str, Any]:
    """Return leaves in the form of ``fieldsV1``."""
    tree: dict[str, Any] = {}
    for leaf in found:
        below = tree.setdefault(f"f:{leaf[0]}", {})
        if len(leaf) == 2 and leaf[1].startswith("k:"):
            keys = json.loads(leaf[1][2:])
            parts: dict[str, Any] = {".": {}, **{f"f:{key}": {} for key in keys}}
            below[leaf[1]] = {**parts, "f:type": {}} if leaf[0] == "schema" else parts
        elif len(leaf) == 2:
            below[f"f:{leaf[1]}"] = {}
    return {"f:spec": tree} if tree else {}


@dataclass
class Model:
    """One object: its leaves, and which of them each manager holds."""

    live: dict[Leaf, Any] = field(default_factory=dict)
    held: dict[str, set[Leaf]] = field(default_factory=dict)

    def conflicts(self, manager: str, spec: Mapping[str, Any]) -> set[Leaf]:
        """Return the leaves that others hold with another value."""
        return {
            leaf
            for leaf, value in leaves(spec).items()
            for other, theirs in self.held.items()
            if other != manager and leaf in theirs and self.live[leaf] != value
        }

    def apply(self, manager: str, spec: Mapping[str, Any]) -> None:
        """Apply by force."""
        stated = leaves(spec)
        for leaf in self.conflicts(manager, spec):
            for other in self.held:
                self.held[other].discard(leaf)
        gone = self.held.get(manager, set()) - stated.keys()
        self.held[manager] = set(stated)
        for leaf in gone:
            if not any(leaf in theirs for theirs in self.held.values()):
                del self.live[leaf]
        self.live.update(stated)

    @property
    def spec(self) -> Any:
        return spec_of(self.live)

    def document(self) -> Any:
        return {
            "apiVersion": "streambroker.io/v1alpha1",
            "kind": "Export",
            "metadata": {
                "name": "feed-trades",
                "namespace": "default",
                "uid": "u",
                "resourceVersion": "7",
                "managedFields": [
                    {"manager": name, "operation": "Apply", "fieldsV1": fields_v1(theirs)}
                    for name, theirs in self.held.items()
                    if theirs
                ],
            },
            "spec": self.spec,
        }
