"""Boards and alert rules of the chart: their expressions, and what holds for each of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

import yaml

from support.kubernetes import charts

Rules = list[dict[str, Any]]
Board = dict[str, Any]
ALERTS = charts.CHART / "alerts/streambroker.yaml"


def read_rules(group: int) -> Rules:
    found: Rules = yaml.safe_load(ALERTS.read_text())["groups"][group]["rules"]
    return found


def read_board(name: str) -> Board:
    board: Board = json.loads((charts.CHART / "dashboards" / name).read_text())
    return board


def panels(board: Board) -> list[dict[str, Any]]:
    return [each for each in board["panels"] if each["type"] != "row"]


def expressions(rules: Rules, board: Board) -> Iterator[tuple[str, str]]:
    """Yield where each expression is used, and the expression."""
    for rule in rules:
        yield rule["alert"], rule["expr"]
    for panel in panels(board):
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def check_counters(used: Iterator[tuple[str, str]], types: Mapping[str, str]) -> None:
    """Check that counters appear in a rate or an increase only."""
    for where, expression in used:
        for name, kind in types.items():
            if kind == "counter" and re.search(rf"\b{name}\b", expression):
                assert re.search(rf"(rate|increase)\({name}[{{\[]", expression), where


def check_layout(board: Board) -> None:
    """Check that panels do not cover each other, describe themselves and take the data source."""
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    for one, other in combinations(board["panels"], 2):
        a, b = one["gridPos"], other["gridPos"]
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        below = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert beside or below, (one["title"], other["title"])
        assert a["x"] + a["w"] <= 24
    for panel in panels(board):
        assert panel["description"], panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "$datasource"}


def check_namespace(board: Board) -> None:
    """Check that the board shows the chosen namespace."""
    variables = {each["name"] for each in board["templating"]["list"]}
    assert variables == {"datasource", "namespace"}
    for panel in panels(board):
        assert all('namespace="$namespace"' in target["expr"] for target in panel["targets"])
