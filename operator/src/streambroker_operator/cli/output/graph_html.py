"""Draw a graph of jobs as one HTML file: a picture in layers and a table, without scripts."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from streambroker_operator.cli.output.graph import Drawing, DrawnEdge, DrawnNode, printable

WIDTH, LINE, GAP = 260, 16, 40
"""Width of a node, height of a line and space between nodes, in pixels."""
DEPTH = 80
"""How far below its nodes an edge turns that does not lead to the next layer, in pixels."""
MAX_LABELS = 60
"""Edges above this number show their labels only below the pointer and in the table."""
_LETTER = 7
"""Width of a letter, in pixels, roughly."""
_STYLE = (
    "body{font:13px sans-serif;margin:24px;color:#222;background:#fff}"
    "svg{font:12px sans-serif}.node text:first-of-type{font-weight:bold}"
    "rect{fill:#f4f6f8;stroke:#556}path{fill:none;stroke-width:1.5}"
    ".label{paint-order:stroke;stroke:#fff;stroke-width:4px}"
    "table{border-collapse:collapse;margin-top:24px}td,th{border:1px solid #ccc;padding:4px 8px;"
    "text-align:left;vertical-align:top}"
)


class _Box(NamedTuple):
    """Where a node is, in pixels, and in which layer."""

    layer: int
    x: int
    y: int
    width: int
    height: int


def draw_html(drawing: Drawing) -> str:
    """Return a whole document that loads nothing and runs nothing."""
    boxes = _place(drawing)
    width = max((box.x + box.width for box in boxes.values()), default=0) + GAP
    height = max((box.y + box.height for box in boxes.values()), default=0) + DEPTH + GAP
    picture = [
        *(_edge_svg(edge, boxes, len(drawing.edges) <= MAX_LABELS) for edge in drawing.edges),
        *(_node_svg(node, boxes[node.id]) for node in drawing.nodes),
    ]
    rows = [
        f"<tr><td>{_text(edge.source)}</td><td>{_text(edge.target)}</td>"
        f"<td>{'<br>'.join(map(_text, edge.lines))}</td></tr>"
        for edge in drawing.edges
    ]
    notes = "".join(f"<p>{_text(note)}</p>\n" for note in drawing.notes)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy"'
        " content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>Streams</title><style>{_STYLE}</style></head><body>\n{notes}"
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}">\n'
        '<defs><marker id="end" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8"'
        ' markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z" style="fill:#556"/></marker>'
        "</defs>\n" + "\n".join(picture) + "\n</svg>\n"
        "<table><tr><th>from</th><th>to</th><th>routes</th></tr>\n"
        + "\n".join(rows)
        + "\n</table></body></html>\n"
    )


def _text(text: str) -> str:
    return escape(printable(text), quote=True)


def _layers(nodes: Sequence[str], edges: Sequence[DrawnEdge]) -> dict[str, int]:
    """Return the layer of each node: behind all that lead to it, except where they form a ring."""
    targets: dict[str, set[str]] = {node: set() for node in nodes}
    for edge in edges:
        if edge.source != edge.target:
            targets[edge.source].add(edge.target)
    before = dict.fromkeys(nodes, 0)
    for node in nodes:
        for target in targets[node]:
            before[target] += 1
    layer: dict[str, int] = dict.fromkeys(nodes, 0)
    done: set[str] = set()
    ready = deque(node for node in nodes if not before[node])
    # Where nothing is ready, what is left has a ring: it is cut at its first node.
    for start in (None, *nodes):
        if start is not None and start not in done:
            ready.append(start)
        while ready:
            node = ready.popleft()
            done.add(node)
            for target in sorted(targets[node] - done):
                layer[target] = max(layer[target], layer[node] + 1)
                before[target] -= 1
                if not before[target]:
                    ready.append(target)
    return layer


def _place(drawing: Drawing) -> dict[str, _Box]:
    """Return the boxes: layers from left to right, in each the nodes near what leads to them."""
    layer = _layers([node.id for node in drawing.nodes], drawing.edges)
    sources: dict[str, list[str]] = {}
    for edge in drawing.edges:
        sources.setdefault(edge.target, []).append(edge.source)
    longest = max((len(line) for edge in drawing.edges for line in edge.lines), default=0)
    step = WIDTH + max(2 * GAP, longest * _LETTER + GAP)
    boxes: dict[str, _Box] = {}
    for number in range(max(layer.values(), default=0) + 1):
        column = [node for node in drawing.nodes if layer[node.id] == number]
        column.sort(key=lambda node: (_middle(sources.get(node.id, ()), boxes), node.id))
        y = GAP
        for node in column:
            height = LINE * len(node.lines) + LINE
            boxes[node.id] = _Box(number, GAP + number * step, y, WIDTH, height)
            y += height + GAP
    return boxes


def _middle(sources: Sequence[str], boxes: Mapping[str, _Box]) -> float:
    heights = [boxes[source].y for source in sources if source in boxes]
    return sum(heights) / len(heights) if heights else 0.0


def _node_svg(node: DrawnNode, box: _Box) -> str:
    double = ' stroke-width="3"' if node.kind != "job" else ""
    shown = "".join(
        f'<text x="{box.x + 8}" y="{box.y + LINE * (n + 1) + 2}">{_text(_fit(line))}</text>'
        for n, line in enumerate(node.lines)
    )
    title = f"<title>{_text(node.id)}</title>"
    size = f'x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}"'
    return f'<g class="node">{title}<rect {size} rx="4"{double}/>{shown}</g>'


def _fit(line: str) -> str:
    most = (WIDTH - 16) // _LETTER
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _curve(source: _Box, target: _Box) -> tuple[str, int, int]:
    """Return the curve of an edge and its middle: to the next layer straight, else from below."""
    if target.layer == source.layer + 1:
        x1, y1 = source.x + source.width, source.y + source.height // 2
        x2, y2 = target.x, target.y + target.height // 2
        bend = (x2 - x1) // 2
        curve = f"M{x1} {y1}C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}"
        return curve, (x1 + x2) // 2, (y1 + y2) // 2
    x1, y1 = source.x + source.width * 2 // 3, source.y + source.height
    x2, y2 = target.x + target.width // 3, target.y + target.height
    low = max(y1, y2) + DEPTH
    return f"M{x1} {y1}C{x1} {low} {x2} {low} {x2} {y2}", (x1 + x2) // 2, (y1 + y2 + 6 * low) // 8


def _edge_svg(edge: DrawnEdge, boxes: Mapping[str, _Box], labelled: bool) -> str:
    curve, x, y = _curve(boxes[edge.source], boxes[edge.target])
    y -= LINE * (len(edge.lines) - 1) // 2
    dashes = ' stroke-dasharray="5 4"' if edge.refused else ""
    label = "".join(
        f'<text class="label" text-anchor="middle" x="{x}" y="{y + LINE * n}">{_text(line)}</text>'
        for n, line in enumerate(edge.lines)
    )
    title = f"<title>{_text('; '.join(edge.lines))}</title>"
    line = f'<path d="{curve}" stroke="{edge.colour}"{dashes} marker-end="url(#end)"/>'
    return f"<g>{title}{line}{label if labelled else ''}</g>"
