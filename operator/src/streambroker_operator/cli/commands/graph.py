"""``graph``: jobs, ports and routes as a picture, in mermaid, DOT, HTML or JSON."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from streambroker_client.answers import Graph
from streambroker_client.broker import Broker
from streambroker_core.model import job_of
from streambroker_operator.cli.io.errors import OK, UsageError
from streambroker_operator.cli.io.options import (
    add_everywhere,
    add_remote_command,
    client_for,
    namespace_for,
    one_of,
)
from streambroker_operator.cli.io.terminal import print_text
from streambroker_operator.cli.output.graph import Drawing, draw_dot, draw_mermaid, make_drawing
from streambroker_operator.cli.output.graph_html import draw_html
from streambroker_operator.cli.output.table import as_json

DEFAULT_LIMIT = 200
MAX_LIMIT = 2_000
MAX_EXPLAINED = 20
"""Maximum number of imports whose refused pairs are added."""
DEFAULT_NEAREST = 3
MAX_NEAREST = 20
_EXPLAINED_PAIRS = 100
"""Pairs that are requested for one import: those with a route come first."""
_DRAWERS = {"mermaid": draw_mermaid, "dot": draw_dot, "html": draw_html}


def add(commands: Any) -> None:
    """Add the command."""
    graph = add_remote_command(commands, "graph", "draw jobs, ports and routes")
    graph.add_argument("words", nargs="*", metavar="JOB", help="only these and their neighbours")
    graph.add_argument(
        "-o",
        "--output",
        type=one_of(*_DRAWERS, "json"),
        default="mermaid",
        metavar="|".join((*_DRAWERS, "json")),
    )
    graph.add_argument(
        "--hops", type=int, choices=(1, 2), default=1, help="routes away from JOB; default 1"
    )
    graph.add_argument("--match", metavar="TEXT", help="a name, NAME=VALUE or a subscription")
    graph.add_argument("--group", metavar="NAMESPACE/APPLICATION", help="draw its jobs one by one")
    graph.add_argument(
        "--limit",
        type=_between(1, MAX_LIMIT),
        default=DEFAULT_LIMIT,
        help=f"nodes and edges, at most; default {DEFAULT_LIMIT}, up to {MAX_LIMIT}",
    )
    graph.add_argument(
        "--why", action="store_true", help="add the nearest pairs without a route, and why"
    )
    graph.add_argument(
        "--near",
        type=_between(1, MAX_NEAREST),
        metavar="N",
        help=f"so many of each import, with --why; default {DEFAULT_NEAREST}",
    )
    add_everywhere(graph)
    graph.set_defaults(run=_graph)


def _between(low: int, high: int) -> Any:
    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and low <= int(text[:9]) <= high):
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {low} to {high}")
        return int(text)

    return read


def _graph(options: argparse.Namespace) -> int:
    broker = client_for(options).in_namespace(namespace_for(options))
    answers = [
        broker.graph(match=options.match, group=options.group, **part) for part in _parts(options)
    ]
    found = answers[0].to_json() if len(answers) == 1 else _joined(answers)
    if options.why or options.near:
        found["refused"] = _refused(broker, found, options.near or DEFAULT_NEAREST)
    if options.output == "json":
        print_text(as_json(found))
    else:
        drawing: Drawing = make_drawing(found, options.limit, MAX_EXPLAINED)
        print_text(_DRAWERS[options.output](drawing))
    return OK


def _parts(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the parameters of each question; several jobs share the limit."""
    jobs = [word if "/" in word else f"{options.namespace}/{word}" for word in options.words]
    if len(jobs) > options.limit:
        raise UsageError(f"{len(jobs)} jobs do not fit into --limit {options.limit}.")
    if not jobs:
        return [{"limit": options.limit}]
    limit = options.limit // len(jobs)
    return [{"focus": job, "hops": options.hops, "limit": limit} for job in jobs]


def _joined(answers: Sequence[Graph]) -> dict[str, Any]:
    """Return one answer with the nodes and edges of several, each once."""
    nodes = {node["id"]: node for answer in answers for node in answer["nodes"]}
    edges = {edge["id"]: edge for answer in answers for edge in answer["edges"]}
    hidden = {
        name: sum(answer["hidden"][name] for answer in answers) for name in ("jobs", "routes")
    }
    return {
        "total": answers[0]["total"],
        "folded": any(answer["folded"] for answer in answers),
        "hidden": hidden,
        "nodes": [nodes[id_] for id_ in sorted(nodes)],
        "edges": [edges[id_] for id_ in sorted(edges)],
    }


def _refused(broker: Broker, found: dict[str, Any], nearest: int) -> list[dict[str, Any]]:
    """Return the nearest pairs without a route of the imports that are drawn."""
    drawn = {node["id"] for node in found["nodes"]}
    imports = [item.port for item in broker.imports() if job_of(item.port) in drawn]
    pairs: list[dict[str, Any]] = []
    for port in imports[:MAX_EXPLAINED]:
        answer = broker.explain(import_=port, limit=_EXPLAINED_PAIRS)
        refused = [pair for pair in answer.pairs if not pair.matched]
        pairs += [
            {name: pair[name] for name in ("export", "import", "reason", "message", "distance")}
            for pair in refused[:nearest]
        ]
    return pairs
