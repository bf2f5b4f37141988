"""Metrics, alerts and the dashboard speak of the same figures."""

from __future__ import annotations

import json
import re

from support.kubernetes import boards, charts

RULES = boards.read_rules(0)
BOARD = boards.read_board("streambroker.json")
METRICS = {
    charts.words(row[0])[0]: row for row in charts.table("docs/kubernetes.md", "metric", "type")
}
_PARTS = ("_bucket", "_sum", "_count")


def used(expression: str) -> set[str]:
    """Return the metrics of an expression, those of a histogram by its own name."""
    found = set(re.findall(r"\b(?:streambroker|process)_[a-z_]+", expression))
    return {name for each in found for name in [without_part(each)]}


def without_part(name: str) -> str:
    for part in _PARTS:
        whole = name.removesuffix(part)
        if whole != name and METRICS.get(whole, ["", ""])[1] == "histogram":
            return whole
    return name


def test_alerts_and_the_dashboard_use_documented_metrics_and_all_of_them() -> None:
    seen = {name for _, expression in boards.expressions(RULES, BOARD) for name in used(expression)}
    assert {name for name in seen if name.startswith("streambroker_")} == set(METRICS)


def test_metrics_are_used_as_what_they_are() -> None:
    for where, expression in boards.expressions(RULES, BOARD):
        for name, row in METRICS.items():
            used_as_count = f"rate({name}_count[" in expression
            if row[1] == "histogram" and name in expression and not used_as_count:
                assert f"{name}_bucket" in expression, where
                assert "histogram_quantile" in expression, where


def test_counters_are_used_as_rates() -> None:
    types = {name: row[1] for name, row in METRICS.items()}
    boards.check_counters(boards.expressions(RULES, BOARD), types)


def test_metrics_are_named_after_their_type_and_unit() -> None:
    for name, row in METRICS.items():
        assert name.endswith("_total") == (row[1] == "counter"), name
        assert row[1] in ("gauge", "counter", "histogram"), name
        if row[1] == "histogram":
            assert name.endswith("_seconds"), name


def test_labels_that_are_used_are_documented() -> None:
    given = {"namespace", "pod", "le"}
    for where, expression in boards.expressions(RULES, BOARD):
        reported = {label for name in used(expression) & set(METRICS) for label in labels(name)}
        chosen = set(re.findall(r"[{,]\s*([a-z]+)\s*=", expression))
        by = {
            label.strip()
            for group in re.findall(r"(?:by|on) \(([^)]*)\)", expression)
            for label in group.split(",")
            if label.strip()
        }
        assert chosen | by <= reported | given, where


def test_values_that_are_chosen_are_documented() -> None:
    chosen = [
        (where, name, value)
        for where, expression in boards.expressions(RULES, BOARD)
        for name, inside in re.findall(r"(streambroker_[a-z_]+)\{([^}]*)\}", expression)
        for label, values in re.findall(r'([a-z]+)\s*=~?\s*"([^"]*)"', inside)
        if label != "namespace"
        for value in values.split("|")
    ]

    assert ("StreambrokerAgentsAway", "streambroker_agents", "away") in chosen
    for where, name, value in chosen:
        assert value in charts.words(METRICS[name][3]), (where, name, value)


def labels(name: str) -> list[str]:
    return charts.words(METRICS[name][2])


def test_brackets_of_every_expression_are_closed() -> None:
    pairs = {")": "(", "]": "[", "}": "{"}
    for where, expression in boards.expressions(RULES, BOARD):
        opened: list[str] = []
        for letter in expression:
            if letter in pairs.values():
                opened.append(letter)
            elif letter in pairs:
                assert opened.pop() == pairs[letter], where
        assert not opened, where


def test_every_alert_is_explained_and_every_explanation_has_an_alert() -> None:
    reported = {charts.words(row[0])[0] for row in charts.table("docs/kubernetes.md", "alert")}
    assert reported == {rule["alert"] for rule in RULES}
    for rule in RULES:
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["for"]
        assert rule["annotations"].keys() == {"summary", "description"}


def test_the_rule_is_the_file_and_keeps_the_words_of_prometheus() -> None:
    rule = charts.one(charts.objects(charts.VARIANTS["monitoring"]), "PrometheusRule")
    assert rule["spec"]["groups"][0]["rules"] == RULES
    assert "{{ $labels.namespace }}" in RULES[1]["annotations"]["summary"]
    assert rule["metadata"]["labels"]["release"] == "prometheus"


def test_the_dashboard_is_in_a_config_map_that_grafana_finds() -> None:
    found = charts.one(charts.objects(charts.VARIANTS["monitoring"]), "ConfigMap")
    assert json.loads(found["data"]["streambroker.json"]) == BOARD
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_panels_of_the_dashboard_do_not_cover_each_other() -> None:
    boards.check_layout(BOARD)


def test_the_dashboard_shows_the_chosen_namespace() -> None:
    boards.check_namespace(BOARD)
