"""Rights and network: exactly what docs/security.md says, in the namespaces that are watched."""

from __future__ import annotations

from typing import Any

import pytest

from streambroker_core.wire.manifests.ports import OBJECTS
from support.kubernetes import charts

Rule = tuple[str, str, str, tuple[str, ...], frozenset[str]]
"""Role, API group, resource, names, verbs."""
WATCHED = ("jobs", "reports")
SETS = ("streams", "own", "reviews", "webhook")
NAMES = {
    "all": (),
    "the Lease": ("streambroker",),
    "the key": ("streambroker-key",),
    "the certificate": ("streambroker-webhook",),
    "the configuration": ("streambroker.sb",),
    "those of streambroker": tuple(f"{plural}.streambroker.io" for plural in OBJECTS.values()),
    "the watched ones, if they are a list": WATCHED,
}


def granted(role: str, each: charts.Object) -> set[Rule]:
    return {
        (role, group, resource, tuple(rule.get("resourceNames", ())), frozenset(rule["verbs"]))
        for rule in each["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def documented(role: str = "role") -> set[Rule]:
    head = (role, "API group", "resources", "names")
    return {
        (row[0], group_of(row[1]), resource, NAMES[row[3]], frozenset(charts.words(row[4])))
        for row in charts.table("docs/security.md", *head)
        for resource in charts.words(row[2])
    }


def group_of(cell: str) -> str:
    return "" if cell == "core" else charts.words(cell)[0]


def roles(found: list[charts.Object]) -> dict[str, list[charts.Object]]:
    """Return the broker's roles by their name in the documents."""
    sorted_: dict[str, list[charts.Object]] = {name: [] for name in SETS}
    for each in [*charts.of_kind(found, "Role"), *charts.of_kind(found, "ClusterRole")]:
        name = each["metadata"]["name"]
        last = name.rpartition(":")[2]
        if name == "streambroker":
            sorted_["own"].append(each)
        elif last in SETS:
            sorted_[last].append(each)
    return sorted_


@pytest.mark.parametrize("watched", ["own", [*WATCHED], "*"], ids=str)
def test_the_broker_has_the_documented_verbs_and_no_other(watched: Any) -> None:
    found = roles(charts.objects({"watchNamespaces": watched}))
    for one in [x for each in found.values() for x in each]:
        assert "*" not in str(one["rules"])
    given = {rule for name, each in found.items() for one in each for rule in granted(name, one)}
    listed = isinstance(watched, list)
    assert given == {rule for rule in documented() if listed or rule[3] != WATCHED}


def added(values: charts.Values) -> set[Rule]:
    """Return the rights that values give to the broker beyond the usual ones."""
    before, after = (
        {rule for name, each in roles(found).items() for one in each for rule in granted(name, one)}
        for found in (charts.objects(), charts.objects(values))
    )
    return after - before


def test_a_broker_that_makes_its_key_may_create_secrets_and_nothing_more() -> None:
    more = added({"key": {"create": False, "byBroker": True}})
    assert more == {("own", "", "secrets", (), frozenset({"create"}))}


def test_a_broker_with_a_webhook_has_the_documented_rights_to_it_and_nothing_more() -> None:
    assert added({"webhook": {"enabled": True}}) == documented("role with the webhook")


def test_people_and_programs_have_the_documented_verbs_and_no_other() -> None:
    reported = {
        (words[0], group_of(row[1]), resource, (), frozenset(charts.words(row[3])))
        for row in charts.table("docs/security.md", "ClusterRole", "API group")
        for words in [charts.words(row[0])]
        for resource in charts.words(row[2])
    }
    given = {
        rule
        for each in charts.of_kind(charts.objects(), "ClusterRole")
        for last in [each["metadata"]["name"].rpartition(":")[2]]
        if last not in SETS
        for rule in granted(last, each)
    }
    assert given == reported


@pytest.mark.parametrize(
    ("watched", "namespaces"),
    [("own", ["sb"]), (["jobs", "reports"], ["jobs", "reports"]), ("*", [])],
    ids=str,
)
def test_rights_to_streams_are_given_where_they_are_watched(
    watched: Any, namespaces: list[str]
) -> None:
    found = charts.objects({"watchNamespaces": watched})
    for kind in ("Role", "RoleBinding"):
        streams = [
            x for x in charts.of_kind(found, kind) if x["metadata"]["name"] != "streambroker"
        ]
        assert [each["metadata"]["namespace"] for each in streams] == namespaces
    everywhere = [x["metadata"]["name"] for x in charts.of_kind(found, "ClusterRoleBinding")]
    reviews = "sb:streambroker:reviews"
    assert everywhere == ([reviews] if namespaces else ["sb:streambroker:streams", reviews])


@pytest.mark.parametrize("values", charts.VARIANTS.values(), ids=charts.VARIANTS)
def test_every_binding_gives_a_role_of_the_chart_to_the_account_of_the_pods(
    values: charts.Values,
) -> None:
    found = charts.objects(values)
    pod = charts.one(found, "Deployment")["spec"]["template"]["spec"]
    subject = {"kind": "ServiceAccount", "name": pod["serviceAccountName"], "namespace": "sb"}
    known = {charts.key_of(x) for x in found}
    bindings = [x for x in found if x["kind"] in ("RoleBinding", "ClusterRoleBinding")]
    for each in bindings:
        assert each["subjects"] == [subject]
        namespace = each["metadata"].get("namespace", "")
        assert (each["roleRef"]["kind"], namespace, each["roleRef"]["name"]) in known
    assert bool(bindings) == values.get("rbac", {}).get("create", True)
    accounts = {x["metadata"]["name"] for x in charts.of_kind(found, "ServiceAccount")}
    assert accounts == ({subject["name"]} if subject["name"] != "default" else set())


def test_view_and_edit_are_added_to_those_of_kubernetes_unless_that_is_switched_off() -> None:
    def added(values: charts.Values) -> dict[str, list[str]]:
        return {
            each["metadata"]["name"].rpartition(":")[2]: [
                label.rpartition("-")[2]
                for label, value in each["metadata"]["labels"].items()
                if label.startswith("rbac.authorization.k8s.io/") and value == "true"
            ]
            for each in charts.of_kind(charts.objects(values), "ClusterRole")
        }

    aggregated = {name: sorted(to) for name, to in added({}).items() if to}
    assert aggregated == {"view": ["admin", "edit", "view"], "edit": ["admin", "edit"]}
    assert not any(added({"rbac": {"aggregate": False}}).values())
    assert not set(added({"rbac": {"userRoles": False}})) - set(SETS)


# ---- network ---------------------------------------------------------------------------------


def policy(**values: Any) -> dict[str, Any]:
    spec: dict[str, Any] = charts.one(charts.objects(values), "NetworkPolicy")["spec"]
    return spec


def named(namespaces: list[str]) -> dict[str, Any]:
    key = "kubernetes.io/metadata.name"
    return {"matchExpressions": [{"key": key, "operator": "In", "values": namespaces}]}


SELECTOR = {
    "app.kubernetes.io/name": "streambroker",
    "app.kubernetes.io/instance": "streambroker",
    "app.kubernetes.io/component": "broker",
}
TEST_POD = {
    "podSelector": {
        "matchLabels": {
            "app.kubernetes.io/instance": "streambroker",
            "app.kubernetes.io/component": "test",
        }
    }
}


@pytest.mark.parametrize(
    ("watched", "selector"),
    [("own", named(["sb"])), (["jobs", "reports"], named(["jobs", "reports"])), ("*", {})],
    ids=str,
)
def test_jobs_reach_rest_and_are_sent_hints_where_they_are_watched(
    watched: Any, selector: dict[str, Any]
) -> None:
    spec = policy(watchNamespaces=watched)
    jobs = {"namespaceSelector": selector, "podSelector": {}}
    rest, _ = spec["ingress"]
    assert rest == {"from": [jobs, TEST_POD], "ports": [{"protocol": "TCP", "port": "rest"}]}
    assert {"to": [jobs], "ports": [{"protocol": "UDP"}]} in spec["egress"]


def test_nothing_else_comes_in_and_out() -> None:
    spec = policy()
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    _, metrics = spec["ingress"]
    monitoring = {"namespaceSelector": named(["monitoring"])}
    ports = [{"protocol": "TCP", "port": "metrics"}]
    replicas = {"podSelector": {"matchLabels": SELECTOR}}
    assert metrics == {"from": [monitoring, TEST_POD, replicas], "ports": ports}
    server, _, others, names = spec["egress"]
    assert others == {"to": [replicas], "ports": ports}
    assert server == {
        "ports": [{"protocol": "TCP", "port": 443}, {"protocol": "TCP", "port": 6443}]
    }
    assert names == {"ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]}
    assert len(spec["egress"]) == 4


def test_the_api_server_reaches_the_webhook_where_there_is_one() -> None:
    ports = [{"protocol": "TCP", "port": "webhook"}]
    assert policy(webhook={"enabled": True})["ingress"][-1] == {"ports": ports}
    closer = {"apiServerCidrs": ["10.0.0.1/32"]}
    found = policy(webhook={"enabled": True}, networkPolicy=closer)["ingress"][-1]
    assert found == {"from": [{"ipBlock": {"cidr": "10.0.0.1/32"}}], "ports": ports}


def test_the_policy_can_be_drawn_closer() -> None:
    spec = policy(**charts.VARIANTS["everything else"])
    rest, metrics = spec["ingress"]
    assert rest["from"][0]["podSelector"] == {"matchLabels": {"spark-role": "driver"}}
    assert rest["from"][1] == {"namespaceSelector": named(["ops"])}
    assert [list(each) for each in metrics["from"]] == [["podSelector"], ["podSelector"]]
    server, hints, *_ = spec["egress"]
    assert server["to"] == [{"ipBlock": {"cidr": "10.0.0.1/32"}}]
    assert server["ports"] == [{"protocol": "TCP", "port": 6443}]
    assert hints["to"][0]["podSelector"] == {"matchLabels": {"spark-role": "driver"}}
