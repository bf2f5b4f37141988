"""The command ``streambroker operator`` on a real API server, as users and agents meet it."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pe_agent.agent.broker.reporter import build_report
from streambroker_core.wire.broker import hints
from streambroker_operator.kubernetes import broker as cluster_broker
from streambroker_operator.kubernetes.replicas import garbage as leftovers
from support.agents.exports import Bench, bench, rows
from support.clusters.api_server import ApiServer
from support.clusters.calls import make_account, manifest, token_of
from support.clusters.replicas import (
    Operator,
    SignedAgent,
    condition,
    connected,
    declare,
    make_key,
    operator,
    operator_here,
    ready_over,
    status_of,
)
from support.processes.waiting import until

CHANGES = 20
BEHIND_S = 5.0


@pytest.fixture
def broker(api: ApiServer, tmp_path: Path, namespace: str) -> Iterator[Operator]:
    make_key(api, namespace)
    with operator(api, tmp_path, namespace) as found:
        yield found


def test_what_kubectl_applies_becomes_a_route_and_a_status(
    api: ApiServer, broker: Operator, namespace: str
) -> None:
    _, alerts = connected(api, namespace, broker)
    alerts.version = ""
    view = alerts.poll(broker)

    assert view is not None
    (route,) = view["imports"]["in"]["routes"]
    assert route["location"] == "grpc+tcp://127.0.0.1:1"
    assert route["capability"]
    shown = api.kubectl("get", "streams", "-n", namespace).stdout
    assert shown.count("True") >= 2


@pytest.fixture
def replicas(api: ApiServer, tmp_path: Path, namespace: str) -> Iterator[list[Operator]]:
    make_key(api, namespace)
    with ExitStack() as both:
        found = [both.enter_context(operator(api, tmp_path, namespace)) for _ in range(2)]
        until(lambda: any(one.leads for one in found), 20.0, "one leads")
        yield sorted(found, key=lambda one: not one.leads)


def test_the_one_who_leads_hears_what_agents_tell_the_other(
    api: ApiServer, replicas: list[Operator], namespace: str
) -> None:
    leader, other = replicas

    connected(api, namespace, other)

    assert leader.leads
    assert not other.leads


def test_every_replica_says_that_an_export_has_ended_whichever_its_agent_reported(
    api: ApiServer, replicas: list[Operator], namespace: str
) -> None:
    leader, other = replicas
    feed, _ = connected(api, namespace, other)

    def said() -> list[Any]:
        answers = [one.call(feed.token, "GET", feed.at("/export/trades"))[1] for one in replicas]
        found = [answer["status"]["ended"] for answer in answers]
        return [*found, condition(api, namespace, "exports", "feed", "Ended")]

    for broker, ports in ((other, ("trades",)), (other, ()), (leader, ("trades",))):
        feed.poll(broker, *ports)
        wanted = [bool(ports)] * 2 + ["True" if ports else None]
        until(lambda: said() == wanted, 20.0, "all say so")  # noqa: B023
        assert condition(api, namespace, "exports", "feed", "Ready") == "True"


def test_the_status_of_an_export_has_the_version_of_its_columns_at_both_replicas(
    api: ApiServer, replicas: list[Operator], namespace: str, tmp_path: Path
) -> None:
    _, other = replicas
    feed, _ = connected(api, namespace, other)

    def report(export: Bench) -> None:
        state = {"exports": {"trades": export.export.status()}, "imports": {"readers": {}}}
        answer = other.call(feed.token, "PUT", feed.at("/report"), build_report(state))
        assert answer[0] == 200, answer

    def shown() -> Any:
        return status_of(api, namespace, "exports", "feed").get("schemaVersion")

    with bench(tmp_path / "agent") as export:
        export.publish(0, rows(0, 3))
        report(export)
        until(lambda: shown() == {"number": 1}, 20.0, "the first version is shown")
        added = rows(3, 1).append_column("m", pa.array([1], pa.int64()))
        ddl = f"{export.export.state.streams[export.stream].ddl}, m bigint"
        export.publish(1, added, ddl=ddl)
        versions = export.export.status()["streams"][export.stream]["schemaVersions"]
        report(export)
    wanted = {"number": 2, "since": versions[1]["since"]}
    until(lambda: shown() == wanted, 20.0, "the second version is shown, and since when")
    table = api.kubectl("get", "exports", "-n", namespace, "-o", "wide").stdout.splitlines()
    assert table[1][table[0].index("VERSION") :].split()[0] == "2"

    def answered() -> list[Any]:
        answers = [one.call(feed.token, "GET", feed.at("/export/trades"))[1] for one in replicas]
        return [answer["status"].get("schemaVersion") for answer in answers]

    until(lambda: answered() == [wanted, wanted], 20.0, "both replicas have read the status")


def test_what_one_replica_was_asked_to_change_the_other_shows_moments_later(
    api: ApiServer, replicas: list[Operator], namespace: str
) -> None:
    """The bound that the table of docs/kubernetes.md states, on a machine that does more."""
    _, alerts = connected(api, namespace, replicas[0])

    def shown(replica: Operator) -> Any:
        return replica.call(alerts.token, "GET", alerts.at("/import/in/filter"))[1]

    for number in range(CHANGES):
        wrote, reads = replicas[number % 2], replicas[1 - number % 2]
        wanted = f"price > {number}.5"
        change = alerts.at("/import/in/filter"), {"filter": wanted}
        assert wrote.call(alerts.token, "PUT", *change)[0] == 200
        until(lambda: shown(reads) == {"filter": wanted}, BEHIND_S, "the other one shows it")  # noqa: B023


def test_an_agent_that_starts_again_at_the_other_replica_is_known_to_both(
    api: ApiServer, replicas: list[Operator], namespace: str
) -> None:
    leader, other = replicas
    _, alerts = connected(api, namespace, leader)
    new = SignedAgent(api, namespace, "feed", location="grpc+tcp://127.0.0.1:2")
    new.register(other)

    def location(broker: Operator) -> str:
        status, view, _ = broker.call(alerts.token, "GET", alerts.path)
        assert status == 200, view
        (route,) = view["imports"]["in"]["routes"]
        return str(route["location"])

    def all_know() -> bool:
        return all(location(one) == "grpc+tcp://127.0.0.1:2" for one in replicas)

    until(all_know, 20.0, "both know where it is")
    # What the replicas think of each other's writes comes back to them before this change does.
    for price in range(5):
        change = alerts.at("/import/in/filter"), {"filter": f"price > {price}.0"}
        status, answer, _ = replicas[price % 2].call(alerts.token, "PUT", *change)
        assert status == 200, answer
        until(
            lambda: {seen(one, alerts) for one in replicas} == {answer["generation"]},  # noqa: B023
            20.0,
            "both have seen it",
        )
    reported = [
        one for one in api.writes() if "fieldManager=streambroker-agent" in one["requestURI"]
    ]

    assert all_know()
    answers = [one["responseStatus"]["code"] for one in reported if namespace in one["requestURI"]]
    # A conflict changes nothing: who writes statuses was faster, and the write is repeated.
    assert [code for code in answers if code != 409] == [200] * 3, answers


def seen(broker: Operator, agent: SignedAgent) -> int:
    """Return the generation of an agent's Import that a replica knows."""
    status, view, _ = broker.call(agent.token, "GET", agent.path)
    assert status == 200, view
    return int(view["imports"]["in"]["generation"])


def test_after_a_kill_the_other_leads_and_the_first_hint_is_taken(
    api: ApiServer, replicas: list[Operator], namespace: str
) -> None:
    leader, other = replicas
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as heard:
        heard.bind(("127.0.0.1", 0))
        heard.settimeout(30.0)
        alerts = SignedAgent(api, namespace, "alerts", hint=f"127.0.0.1:{heard.getsockname()[1]}")
        feed = SignedAgent(api, namespace, "feed")
        for agent in (feed, alerts):
            agent.register(leader)
        declare(api, namespace)
        until(lambda: ready_over(api, namespace, leader, (feed, alerts)), 20.0, "ready")
        known = alerts.token, "GET", alerts.path
        until(lambda: other.call(*known)[0] == 200, 20.0, "the other knows whose job it is")
        leader.kill()
        while select.select([heard], [], [], 0)[0]:
            heard.recv(4096)
        status, answer, _ = other.call(
            alerts.token, "PUT", alerts.at("/import/in/filter"), {"filter": "price > 1.0"}
        )
        assert status == 200, answer
        until(lambda: other.leads, 40.0, "the other leads")
        hint = hints.decode(alerts.key, heard.recv(4096), f"{namespace}/alerts/0")

    assert alerts.poll(other) is not None
    assert hint.version == alerts.version
    until(lambda: ready_over(api, namespace, other, (feed, alerts)), 20.0, "ready again")


def test_what_is_changed_by_rest_is_steered_and_kubectl_is_informed(
    api: ApiServer, broker: Operator, namespace: str
) -> None:
    _, alerts = connected(api, namespace, broker)
    change = alerts.at("/import/in/filter"), {"filter": "price > 1.0"}
    status, answer, _ = broker.call(alerts.token, "PUT", *change)
    assert status == 200, answer

    until(
        lambda: condition(api, namespace, "imports", "alerts", "Steered") == "True",
        20.0,
        "the status says that it is steered",
    )
    document = manifest("Import", "alerts", job="alerts", port="in", filter="price > 2.0")
    document["spec"]["subscription"] = 'kind == "trade"'
    done = api.kubectl(
        *("apply", "--server-side", "-n", namespace, "-f", "-"), stdin=json.dumps(document)
    )
    assert done.returncode != 0
    assert "streambroker-api" in done.stderr

    forced = ("apply", "--server-side", "--force-conflicts", "-n", namespace, "-f", "-")
    assert api.kubectl(*forced, stdin=json.dumps(document)).returncode == 0
    until(
        lambda: "SteeringOverwritten" in reasons(api, namespace, "alerts"),
        20.0,
        "there is an Event",
    )
    until(
        lambda: condition(api, namespace, "imports", "alerts", "Steered") != "True",
        20.0,
        "the status no longer says that it is steered",
    )


def reasons(api: ApiServer, namespace: str, name: str) -> set[str]:
    """Return the reasons of the Events about an object."""
    path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
    items = api.request("GET", path).body["items"]
    return {one["reason"] for one in items if one["regarding"]["name"] == name}


def test_an_api_server_that_is_away_takes_no_route_and_no_answer(
    own_api: ApiServer, tmp_path: Path
) -> None:
    api, namespace = own_api, "default"
    make_key(api, namespace)
    # The reflector notices at once; kopf tells nothing, and the next sweep does.
    with operator(api, tmp_path, namespace, "--feeder", "reflector") as broker:
        feed, alerts = connected(api, namespace, broker)
        before = broker.call(feed.token, "GET", feed.path)[1]
        api.stop()
        until(lambda: "feed lost" in broker.probe("/readyz")[1], 30.0, "it is noticed")

        status, after, _ = broker.call(feed.token, "GET", feed.path)
        assert broker.probe("/livez")[0] == broker.probe("/readyz")[0] == 200
        assert (status, after["exports"]) == (200, before["exports"])
        assert alerts.poll(broker) is None


@pytest.mark.parametrize("feeder", ["kopf", "reflector"])
def test_a_broker_that_starts_again_takes_no_route_down(
    api: ApiServer, tmp_path: Path, namespace: str, feeder: str
) -> None:
    make_key(api, namespace)
    with operator(api, tmp_path, namespace, "--feeder", feeder) as broker:
        feed, alerts = connected(api, namespace, broker)
        broker.kill()
    with operator(api, tmp_path, namespace, "--feeder", feeder) as broker:
        assert alerts.poll(broker) is None
        assert feed.poll(broker) is None
        figures = broker.probe("/metrics")[1]
        assert "streambroker_routes 1.0" in figures
        assert 'streambroker_rest_requests_total{code="304",method="GET"} 2.0' in figures


def test_rest_goes_on_while_kopf_is_gone_and_kopf_comes_back(
    api: ApiServer, broker: Operator, namespace: str
) -> None:
    _, alerts = connected(api, namespace, broker)
    pid = broker.process.pid
    (kopf,) = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    os.kill(kopf, signal.SIGKILL)
    change = alerts.at("/import/in/filter"), {"filter": "price > 1.0"}
    status, answer, _ = broker.call(alerts.token, "PUT", *change)

    assert status == 200, answer
    assert seen(broker, alerts) == answer["generation"]
    api.kubectl("delete", "export", "feed", "-n", namespace)
    until(lambda: not routes(broker, alerts), 30.0, "the deletion is told")
    none = "streambroker_feeder_restarts_total 0.0"
    until(lambda: none not in broker.probe("/metrics")[1], 30.0, "kopf is there again")


def routes(broker: Operator, agent: SignedAgent) -> list[Any]:
    """Return the routes of an agent's Import as a replica knows them."""
    found: list[Any] = broker.call(agent.token, "GET", agent.path)[1]["imports"]["in"]["routes"]
    return found


def test_a_broker_that_is_asked_to_end_answers_until_nobody_asks_it_any_more(
    api: ApiServer, tmp_path: Path, namespace: str
) -> None:
    make_key(api, namespace)
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/streambroker"
    with operator(api, tmp_path, namespace, "--feeder", "reflector", "--drain", "8") as broker:
        _, alerts = connected(api, namespace, broker)
        reported = time.monotonic()
        broker.process.terminate()
        until(lambda: broker.probe("/readyz")[0] == 503, 6.0, "it is not ready")
        until(
            lambda: not api.request("GET", lease).body["spec"].get("holderIdentity"),
            6.0,
            "others may lead",
        )

        status, _, headers = broker.call(alerts.token, "GET", alerts.path)
        assert (status, headers["Connection"]) == (200, "close")
        assert broker.probe("/livez")[0] == 200
        assert broker.process.wait(30.0) == 0
        assert time.monotonic() - reported >= 8.0


def test_a_job_applies_its_own_ports_and_no_others(
    api: ApiServer, broker: Operator, namespace: str
) -> None:
    feed, _ = connected(api, namespace, broker)
    own = manifest("Export", "more", job="feed", port="more", properties={"kind": "quote"})
    other = manifest("Import", "alerts", job="alerts", port="in", subscription="level > 1")
    where = f"/apply?namespace={namespace}"

    for documents, expected in (([own], 200), ([other], 403), ([own, other], 403)):
        status, answer, _ = broker.call(feed.token, "POST", where, {"resources": documents})
        assert status == expected, answer


def test_the_name_of_a_job_that_nothing_is_left_of_is_free_again(
    api: ApiServer, tmp_path: Path, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "SILENT_S", 3.0)
    monkeypatch.setattr(cluster_broker, "FORGET_S", 0.2)
    make_key(api, namespace)
    first, second = SignedAgent(api, namespace, "etl"), SignedAgent(api, namespace, "other")
    said = {"instance": "ab" * 8, "location": "grpc+tcp://127.0.0.1:2"}
    take = second.token, "PUT", first.path, said
    with operator_here(api, tmp_path, namespace) as broker:
        first.register(broker)
        status, answer, _ = broker.call(*take)
        assert (status, answer["code"]) == (403, "NotYours")

        until(lambda: broker.call(*take)[0] == 200, 20.0, "the name is free")
        assert broker.call(first.token, "GET", first.path)[0] == 403


def test_who_has_no_right_reads_nothing_and_changes_nothing(
    api: ApiServer, broker: Operator, namespace: str
) -> None:
    _, alerts = connected(api, namespace, broker)
    make_account(api, namespace, "stranger")
    stranger = token_of(api, namespace, "stranger")
    filter_ = alerts.at("/import/in/filter"), {"filter": "price > 1.0"}

    for token, expected in ((stranger, 403), ("nonsense", 401)):
        for request in (
            ("GET", f"/imports?namespace={namespace}"),
            ("GET", alerts.path),
            ("PUT", *filter_),
        ):
            assert broker.call(token, *request)[0] == expected, request


def test_people_learn_by_events_what_happened(
    api: ApiServer, broker: Operator, namespace: str
) -> None:
    connected(api, namespace, broker)
    api.kubectl("delete", "export", "feed", "-n", namespace)

    until(
        lambda: {"RouteCut", "NoMatch"} <= reasons(api, namespace, "alerts"),
        20.0,
        "the Import has its Events",
    )


def test_a_new_certificate_is_shown_without_a_restart(
    api: ApiServer, tmp_path: Path, namespace: str
) -> None:
    make_key(api, namespace)
    cert, key = certificate(tmp_path, "first")
    with operator(
        *(api, tmp_path, namespace),
        *("--tls-cert", str(cert), "--tls-key", str(key)),
    ) as broker:
        place = ("127.0.0.1", int(broker.url.rpartition(":")[2]))
        shown = ssl.get_server_certificate(place)
        for made, used in zip(certificate(tmp_path, "second"), (cert, key), strict=True):
            made.replace(used)

        assert broker.url.startswith("https://")
        until(lambda: ssl.get_server_certificate(place) != shown, 30.0, "the new one is shown")
        assert ssl.get_server_certificate(place) == cert.read_text()


def test_a_port_in_use_is_refused_with_the_option_that_chooses_another(
    api: ApiServer, tmp_path: Path, namespace: str
) -> None:
    make_key(api, namespace)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with (
            pytest.raises(AssertionError, match=rf"Cannot listen at .*:{port}: .*--metrics-port"),
            operator(api, tmp_path, namespace, "--metrics-port", port),
        ):
            pass


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """Make a certificate with its key."""
    cert, key = folder / f"{name}.crt", folder / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    command += ["-subj", f"/CN={name}", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return cert, key
