"""Draw a graph of jobs as text for mermaid or Graphviz.

What jobs choose, such as names, properties and expressions, is escaped in each language: it can
neither end a label nor add anything else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

MAX_LINE = 60
"""Maximum length of a line in a label, in characters."""
MAX_LINES = 6
"""Maximum number of routes in the label of one edge."""
_COLOURS = {"waits": "#c62828", "stalled": "#c62828", "away": "#b26a00", "flows": "#2e7d32"}
"""Of the most important states; the others are grey."""
_GREY = "#666666"
_PLAIN = frozenset(" _-./:,")
_MARKS = re.compile(r"\\(?=n)|\$(?=\$)|:(?=fa-)")
"""What mermaid replaces in a decoded label: line breaks, formulas, icons. A space of no width
goes into it."""


class DrawnNode(NamedTuple):
    """A node; `kind` is that of REST, `lines` its label."""

    id: str
    kind: str
    lines: tuple[str, ...]


class DrawnEdge(NamedTuple):
    """An edge between two node ids; `refused` for a pair without a route."""

    source: str
    target: str
    lines: tuple[str, ...]
    colour: str
    refused: bool = False


class Drawing(NamedTuple):
    """What is drawn, and sentences about it, such as what has no room."""

    nodes: tuple[DrawnNode, ...]
    edges: tuple[DrawnEdge, ...]
    notes: tuple[str, ...]


def make_drawing(answer: Mapping[str, Any], limit: int, explained: int) -> Drawing:
    """Return the drawing of an answer of ``GET …/graph``, with the pairs in its ``refused``.

    `limit` is that of the question, `explained` the number of imports whose pairs are added.
    """
    nodes = {
        node["id"]: DrawnNode(node["id"], node["kind"], _node_lines(node))
        for node in answer["nodes"]
    }
    edges = [
        DrawnEdge(edge["from"], edge["to"], _edge_lines(edge), _COLOURS.get(edge["state"], _GREY))
        for edge in answer["edges"]
    ]
    refused = answer.get("refused", ())
    for pair in refused:
        ends = [pair[end].rsplit("/", 2)[0] for end in ("export", "import")]
        for id_ in ends:
            nodes.setdefault(id_, DrawnNode(id_, "job", (id_,)))
        ports = _ports_text(pair["export"], pair["import"])
        lines = ports, _cut(pair["message"])
        edges.append(DrawnEdge(ends[0], ends[1], lines, _GREY, refused=True))
    notes = _notes(answer, limit)
    if refused:
        notes.append(f"Dashed: pairs without a route, of the first {explained} imports.")
    return Drawing(tuple(nodes.values()), tuple(edges), tuple(notes))


def _notes(answer: Mapping[str, Any], limit: int) -> list[str]:
    total, hidden = answer["total"], answer["hidden"]
    jobs, routes = _count(total["jobs"], "job"), _count(total["routes"], "route")
    notes = [f"{jobs} and {routes}, at most {limit:,} nodes and edges drawn."]
    if answer["folded"]:
        notes.append("Folded by application or namespace: --limit, --group or JOB show more.")
    if hidden["jobs"] or hidden["routes"]:
        jobs, routes = _count(hidden["jobs"], "job"), _count(hidden["routes"], "route")
        notes.append(f"No room for {jobs} and {routes}.")
    return notes


def _node_lines(node: Mapping[str, Any]) -> tuple[str, ...]:
    if node["kind"] == "namespace":
        return (f"namespace {node['namespace']}", _count(node["jobs"], "job"))
    if node["kind"] == "group":
        name = node["application"] or "(no application)"
        return (_cut(name), f"{node['namespace']}, {_count(node['jobs'], 'job')}")
    lines = [node["id"], *([_cut(node["application"])] if node["application"] else [])]
    for word in ("export", "import"):
        names = ", ".join(node[f"{word}Ports"])
        lines += [_cut(f"{word}s {names}")] if names else []
    return tuple(lines)


def _edge_lines(edge: Mapping[str, Any]) -> tuple[str, ...]:
    listed = edge.get("list")
    if not listed:
        return (f"{_count(edge['routes'], 'route')}, {edge['state']}",)
    lines: list[str] = []
    for route in listed[:MAX_LINES]:
        lines.append(
            f"{_ports_text(route['export'], route['import'])}: {route['policy']}, {route['state']}"
        )
        lines += [_cut(f"filter {route['filter']}")] if route["filter"] else []
    more = edge["routes"] - min(len(listed), MAX_LINES)
    return (*lines, *([f"{_count(more, 'route')} more"] if more else []))


def _ports_text(export: str, import_: str) -> str:
    return f"{export.rpartition('/')[2]} → {import_.rpartition('/')[2]}"


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_LINE else f"{text[: MAX_LINE - 1]}…"


def printable(text: str) -> str:
    """Return a text on one line; what cannot be printed is replaced."""
    spaced = " ".join(text.split())
    return "".join(c if c.isprintable() else "�" for c in spaced)


# ---- mermaid -------------------------------------------------------------------------------------


def draw_mermaid(drawing: Drawing) -> str:
    """Return a flowchart of mermaid."""
    number = {node.id: f"n{index}" for index, node in enumerate(drawing.nodes)}
    shapes = {"job": ("[", "]"), "group": ("[[", "]]"), "namespace": ("[(", ")]")}
    lines = ["flowchart LR", *(f"  %% {note}" for note in drawing.notes)]
    for node in drawing.nodes:
        left, right = shapes[node.kind]
        lines.append(f'  {number[node.id]}{left}"{_mermaid_label(node.lines)}"{right}')
    for edge in drawing.edges:
        arrow = "-.->" if edge.refused else "-->"
        ends = number[edge.source], number[edge.target]
        lines.append(f'  {ends[0]} {arrow}|"{_mermaid_label(edge.lines)}"| {ends[1]}')
    for colour in sorted({edge.colour for edge in drawing.edges if edge.colour != _GREY}):
        links = ",".join(str(n) for n, edge in enumerate(drawing.edges) if edge.colour == colour)
        lines.append(f"  linkStyle {links} stroke:{colour}")
    return "\n".join(lines) + "\n"


def _mermaid_label(lines: Iterable[str]) -> str:
    return "<br/>".join(map(_mermaid_text, lines))


def _mermaid_text(text: str) -> str:
    """Return a text with all but letters, digits and a few signs as codes of mermaid."""
    coded = "".join(
        c if c.isalnum() or c in _PLAIN or c in "→…" else f"#{ord(c)};"
        for c in _MARKS.sub("\\g<0>\u200b", printable(text))
    )
    # Mermaid takes codes behind a colon for the colours of a style, and drops the semicolon.
    return re.sub(r":(?=\S)", "#58;", coded)


# ---- Graphviz ------------------------------------------------------------------------------------


def draw_dot(drawing: Drawing) -> str:
    """Return a digraph in DOT."""
    number = {node.id: f"n{index}" for index, node in enumerate(drawing.nodes)}
    shapes = {"job": "box", "group": "box3d", "namespace": "folder"}
    lines = ["digraph streams {", "  rankdir=LR;", *(f"  // {note}" for note in drawing.notes)]
    for node in drawing.nodes:
        label = _dot_text("\n".join(map(printable, node.lines)))
        lines.append(f"  {number[node.id]} [shape={shapes[node.kind]}, label={label}];")
    for edge in drawing.edges:
        label = _dot_text("\n".join(map(printable, edge.lines)))
        style = "dashed" if edge.refused else "solid"
        ends = f"{number[edge.source]} -> {number[edge.target]}"
        lines.append(f'  {ends} [label={label}, style={style}, color="{edge.colour}"];')
    return "\n".join([*lines, "}"]) + "\n"


def _dot_text(text: str) -> str:
    # Graphviz replaces HTML's character references, also in labels that are no HTML.
    for sign, written in (("&", "&amp;"), ("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n")):
        text = text.replace(sign, written)
    return f'"{text}"'
