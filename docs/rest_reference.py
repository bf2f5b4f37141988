"""A page of all REST requests, from the OpenAPI description."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

DESCRIPTION = Path(__file__).parents[1] / "operator/src/streambroker_operator/rest/openapi.yaml"
_METHODS = ("get", "put", "post", "patch", "delete")

Part = Mapping[str, Any]


def write(page: Path) -> None:
    """Write the page."""
    description = yaml.safe_load(DESCRIPTION.read_text())
    page.write_text("\n".join(_lines(description)) + "\n")


def _lines(description: Part) -> Iterator[str]:
    yield from ("# REST requests", "", description["info"]["description"], "")
    yield from ("The rules for all requests are in [REST](../rest.md).", "", "## Requests", "")
    for path, operations in description["paths"].items():
        common = operations.get("parameters", [])
        for method in _METHODS:
            if method in operations:
                yield from _request(description, method, path, operations[method], common)
    yield from ("## Bodies", "")
    for name, schema in description["components"]["schemas"].items():
        yield from (f"### {name}", "", *_text(schema), *_properties(description, schema))


def _request(
    description: Part, method: str, path: str, operation: Part, common: list[Part]
) -> Iterator[str]:
    yield from (f"### {method.upper()} {path}", "", operation.get("summary", ""), "")
    yield from _text(operation)
    found = [_resolve(description, one) for one in [*common, *operation.get("parameters", [])]]
    if found:
        yield from ("| parameter | in | type | meaning |", "|---|---|---|---|")
        for one in found:
            text = _cell(one.get("description", ""))
            yield f"| `{one['name']}` | {one['in']} | {_type(one.get('schema', {}))} | {text} |"
        yield ""
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        yield from (f"Body: {_type(content.get('schema', {}))}, `{kind}`.", "")
    yield from ("| answer | meaning | body |", "|---|---|---|")
    for code, of in sorted(operation["responses"].items()):
        response = _resolve(description, of)
        bodies = [_type(one.get("schema", {})) for one in response.get("content", {}).values()]
        yield f"| {code} | {_cell(response['description'])} | {', '.join(dict.fromkeys(bodies))} |"
    yield ""


def _properties(description: Part, schema: Part) -> Iterator[str]:
    """Yield a table of an object's fields, those of the schemas that it extends first."""
    parts = [_resolve(description, one) for one in schema.get("allOf", [])] + [schema]
    found = {name: of for part in parts for name, of in part.get("properties", {}).items()}
    required = {name for part in parts for name in part.get("required", [])}
    if not found:
        yield from (_type(schema) + ".", "")
        return
    yield from ("| field | type | meaning |", "|---|---|---|")
    for name, of in found.items():
        mark = " (required)" if name in required else ""
        yield f"| `{name}`{mark} | {_type(of)} | {_cell(of.get('description', ''))} |"
    yield ""


def _resolve(description: Part, part: Part) -> Part:
    found: Any = part
    while "$ref" in found:
        _, *names = found["$ref"].split("/")
        found = description
        for name in names:
            found = found[name]
    return dict(found)


def _type(schema: Part) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        return f"[{name}](#{name.lower()})"
    for several in ("oneOf", "anyOf", "allOf"):
        if several in schema:
            return " or ".join(dict.fromkeys(map(_type, schema[several])))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    kind = schema.get("type", "any")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _text(part: Part) -> list[str]:
    return [part["description"], ""] if "description" in part else []


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")
