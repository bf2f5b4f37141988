"""The board and the alerts of jobs: the metrics of agents, read by a PodMonitor."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.kubernetes import boards, charts

RULES = boards.read_rules(1)
BOARD = boards.read_board("streams.json")
TYPES = {
    charts.words(row[0])[0]: row[1]
    for row in charts.table("docs/operations.md", "metric", "type", "meaning")
}
LABELS = {"namespace", "pod", "export", "import", "delivery", "operator", "input", "rule"}
LABELS |= {"version"}
MINUTES = 30
PROMTOOL = charts.ROOT / ".promtool/usr/bin"
LOST = 'streambroker_import_losses_total{namespace="jobs",import="b"}'
WAITING = 'streambroker_export_waiting{namespace="jobs",export="a"}'
UPLOADED = 'streambroker_export_storage_behind_seconds{namespace="jobs",export="a"}'
FAILING = 'streambroker_export_storage_failing{namespace="jobs",export="a"}'
DAMAGED = 'streambroker_export_damaged_segments{namespace="jobs",export="a"}'
MISSING = 'streambroker_export_missing_epochs{namespace="jobs",export="a"}'
LAG = 'streambroker_route_lag_seconds{namespace="jobs",export="a",import="b"}'
RULE = 'streambroker_rule_errors_total{namespace="jobs",operator="o",rule="r",version="2"}'
CERTIFICATE = 'streambroker_certificate_expiry_timestamp_seconds{namespace="jobs",pod="feed"}'
DAY = 86_400
SIDE = 'streambroker_side_waiting_seconds{namespace="jobs",operator="o",input="rates"}'
FIRING = """count by (alertname)
  (ALERTS{alertstate="firing", alertname!="StreambrokerAbsent"})"""
FAULTS: dict[str, list[dict[str, str]]] = {
    "StreambrokerRowsLost": [{LOST: "0x25 1x10"}],
    "StreambrokerLogDamaged": [
        {DAMAGED: f"1x{MINUTES}", MISSING: f"0x{MINUTES}"},
        {DAMAGED: f"0x{MINUTES}", MISSING: f"2x{MINUTES}"},
    ],
    "StreambrokerExportWaits": [{WAITING: f"1x{MINUTES}"}],
    "StreambrokerStreamLags": [{LAG: f"700x{MINUTES}"}],
    "StreambrokerUploadsLag": [{UPLOADED: f"301x{MINUTES}"}, {FAILING: f"1x{MINUTES}"}],
    "StreambrokerRuleFailed": [{RULE: "0x25 1x10"}, {RULE: "_x25 1x10"}],
    "StreambrokerSideInputWaits": [{SIDE: f"301x{MINUTES}"}],
    "StreambrokerCertificateEnds": [{CERTIFICATE: f"{6 * DAY}x{MINUTES}"}],
}
"""Series of which each fires an alert, as `promtool` writes them: one value a minute."""
HEALTHY = {
    LOST: f"0x5 1x{MINUTES}",  # more than 15 minutes ago
    DAMAGED: f"0x{MINUTES}",
    MISSING: f"0x{MINUTES}",
    WAITING: f"1x8 0 1x8 0 1x8 0 1x{MINUTES}",
    LAG: f"500x{MINUTES}",
    UPLOADED: f"60x{MINUTES}",
    FAILING: f"0x{MINUTES}",
    RULE: f"0x5 1x{MINUTES}",
    SIDE: f"200x{MINUTES}",
    CERTIFICATE: f"{8 * DAY}x{MINUTES}",
}


def used(expression: str) -> set[str]:
    return set(re.findall(r"\bstreambroker_[a-z_]+", expression))


def test_the_board_and_the_alerts_use_all_metrics_of_agents_and_no_others() -> None:
    assert {
        name for _, expression in boards.expressions(RULES, BOARD) for name in used(expression)
    } == set(TYPES)


def test_counters_are_used_as_rates_and_labels_are_known() -> None:
    boards.check_counters(boards.expressions(RULES, BOARD), TYPES)
    for where, expression in boards.expressions(RULES, BOARD):
        by = re.findall(r"by \(([^)]*)\)", expression)
        assert {one.strip() for group in by for one in group.split(",")} <= LABELS, where


def test_each_alert_is_explained_and_its_runbook_exists() -> None:
    explained = {charts.words(row[0])[0] for row in charts.table("docs/operations.md", "alert")}
    assert explained == {rule["alert"] for rule in RULES}
    for rule in RULES:
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        text = (charts.ROOT / page).read_text()
        headings = [line.strip("# ").lower() for line in text.splitlines() if line[:1] == "#"]
        anchors = [re.sub(r"[^\w -]", "", each).replace(" ", "-") for each in headings]
        assert not anchor or anchor in anchors, rule["alert"]


def test_the_board_is_laid_out_and_shows_the_chosen_namespace() -> None:
    boards.check_layout(BOARD)
    boards.check_namespace(BOARD)


def test_the_pod_monitor_reads_agents_by_their_label_and_port() -> None:
    values = {**charts.VARIANTS["monitoring"], "podMonitor": {"enabled": True}}
    found = charts.objects(values)
    spec = charts.one(found, "PodMonitor")["spec"]
    boards = charts.one(found, "ConfigMap")["data"]

    assert spec["selector"]["matchLabels"] == {"streambroker.io/agent": "true"}
    assert spec["podMetricsEndpoints"][0]["port"] == "agent-metrics"
    assert json.loads(boards["streams.json"]) == BOARD
    page = (charts.ROOT / "docs/how-to/run-a-job-on-kubernetes.md").read_text()
    assert 'streambroker.io/agent: "true"' in page
    assert "name: agent-metrics" in page


def run_promtool(folder: Path, tests: list[dict[str, Any]]) -> None:
    promtool = shutil.which("promtool", path=f"{PROMTOOL}{os.pathsep}{os.environ['PATH']}")
    if promtool is None:
        pytest.skip("promtool is missing; make test-alerts installs it")
    rules = folder / "alerts.yaml"
    rules.write_text(boards.ALERTS.read_text())
    written = {"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": tests}
    (folder / "tests.yaml").write_text(yaml.safe_dump(written))
    for arguments in (("check", "rules", "alerts.yaml"), ("test", "rules", "tests.yaml")):
        done = subprocess.run(
            [promtool, *arguments], cwd=folder, capture_output=True, text=True, check=False
        )
        assert not done.returncode, done.stdout + done.stderr


def case(series: dict[str, str], fires: list[str]) -> dict[str, Any]:
    """Return a test of promtool: at the end of the series exactly these alerts fire."""
    firing = [
        {
            "expr": FIRING,
            "eval_time": f"{MINUTES}m",
            "exp_samples": [
                {"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in sorted(fires)
            ],
        }
    ]
    written = [{"series": name, "values": values} for name, values in series.items()]
    return {"interval": "1m", "input_series": written, "promql_expr_test": firing}


def test_every_alert_of_jobs_has_a_fault() -> None:
    assert FAULTS.keys() == {rule["alert"] for rule in RULES}


def test_each_alert_fires_for_its_fault_alone(tmp_path: Path) -> None:
    cases = [
        case({**HEALTHY, **series}, [alert])
        for alert, faults in FAULTS.items()
        for series in faults
    ]
    run_promtool(tmp_path, [*cases, case(HEALTHY, [])])


def test_a_quota_that_is_nearly_used_up_fires_an_alert(tmp_path: Path) -> None:
    labels = '{namespace="s",of="jobs",resource="ports"}'
    limit, used = f"streambroker_quota_limit{labels}", f"streambroker_quota_used{labels}"
    cases = [
        case({limit: f"10x{MINUTES}", used: f"{count}x{MINUTES}"}, fires)
        for count, fires in ((7, []), (8, ["StreambrokerQuotaNearlyUsed"]))
    ]
    run_promtool(tmp_path, cases)


def test_hints_that_are_all_lost_fire_an_alert_however_often_a_filter_changes(
    tmp_path: Path,
) -> None:
    sent, lost, applied = (
        f'streambroker_{name}{{namespace="s"}}'
        for name in ("hints_sent_total", "hints_lost_total", "change_applied_seconds_count")
    )
    often = {sent: f"0+30x{MINUTES}", applied: f"0+2x{MINUTES}"}
    lose = {**often, lost: f"0+2x{MINUTES}"}
    cases = [case(lose, ["StreambrokerHintsLost"]), case({**often, lost: f"0x{MINUTES}"}, [])]
    run_promtool(tmp_path, cases)


def test_a_tenth_of_the_writes_of_an_object_fires_an_alert_however_few(tmp_path: Path) -> None:
    done, refused = (
        f'streambroker_api_writes_total{{namespace="s",object="status",result="{result}"}}'
        for result in ("done", "refused")
    )
    cases = [
        case({done: f"0+{written}x{MINUTES}", refused: f"0+1x{MINUTES}"}, fires)
        for written, fires in ((5, ["StreambrokerWritesFail"]), (20, []))
    ]
    run_promtool(tmp_path, cases)


def test_a_certificate_of_the_broker_fires_an_alert_before_it_ends(tmp_path: Path) -> None:
    names = [
        f'streambroker_broker_certificate_expiry_timestamp_seconds{{namespace="s",use="{use}"}}'
        for use in ("rest", "webhook")
    ]
    fine, ends = f"{8 * DAY}x{MINUTES}", f"{6 * DAY}x{MINUTES}"
    run_promtool(
        tmp_path,
        [
            case({names[0]: fine, names[1]: fine}, []),
            case({names[0]: fine, names[1]: ends}, ["StreambrokerBrokerCertificateEnds"]),
        ],
    )
