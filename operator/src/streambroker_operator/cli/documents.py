"""Read YAML documents the way people mean them."""

from __future__ import annotations

import sys
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from streambroker_core.errors import ManifestError
from streambroker_core.model import PortKey, Resource, kind_of
from streambroker_core.wire.manifest import read_manifest


class _Loader(yaml.SafeLoader):
    """YAML without dates, and without keys that stand there twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Return a mapping; refuse a key that stands there twice."""
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands there twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if not tag.endswith(":timestamp")]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_value(text: str) -> Any:
    """Return one YAML value; an empty text is an empty text.

    Raises:
        ManifestError: the text is not YAML.
    """
    found = _loaded(text, text)
    return found[0] if found else ""


def read_resources(file: str, namespace: str) -> list[Resource]:
    """Return every resource of a file, all of them checked.

    Args:
        file: a path, or ``-`` for the standard input.
        namespace: where resources go that name none.

    Raises:
        ManifestError: the file cannot be read, or a field is wrong; nothing has
            been sent yet.
    """
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ManifestError(path=file, reason=f"cannot be read: {error}") from error
    found: list[Resource] = []
    ports: dict[tuple[str, PortKey], int] = {}
    for number, document in enumerate(_loaded(text, file), start=1):
        if document is None:
            continue
        try:
            resource = read_manifest(document, namespace=namespace)
        except ManifestError as error:
            place = f"{file}, document {number}: {error.path}"
            raise ManifestError(path=place.rstrip(": "), reason=error.reason) from error
        first = ports.setdefault((kind_of(resource), resource.key), number)
        if first != number:
            reason = f"is for port {resource.key}, which document {first} has; leave one out"
            raise ManifestError(path=f"{file}, document {number}", reason=reason)
        found.append(resource)
    if not found:
        raise ManifestError(path=file, reason="holds no resource")
    return found


def _loaded(text: str, where: str) -> list[Any]:
    try:
        return list(yaml.load_all(text, Loader=_Loader))
    except yaml.YAMLError as error:
        flat = " ".join(str(error).split())
        raise ManifestError(path=where, reason=f"is not YAML: {flat}") from error
    except RecursionError as error:
        raise ManifestError(path=where, reason="is nested too deeply") from error
