"""Faults of brokers: one for each of their alerts, at brokers of its own on a real API server."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from pe_agent.agent.actions import job_actions
from pe_agent.agent.agent import Agent
from pe_agent.agent.broker.link import BrokerLink
from pe_agent.transport.tokens import Token
from streambroker_core.model import AnyKind, PeKey
from streambroker_core.wire.manifests.ports import OBJECTS
from support.agents.agents import AgentProcess
from support.agents.connected import Connected
from support.alerts.drill import Alert, Drill
from support.clusters.api_server import GROUP, MERGE, ApiServer
from support.clusters.calls import grant, make_account, manifest, token_of
from support.clusters.proxy import Fault, KubeProxy
from support.clusters.replicas import Operator, SignedAgent, make_key, operator
from support.processes.certificates import Authority
from support.processes.waiting import until

SECONDS = 120.0
MINUTE = 60.0
HOURS = 7200.0
ALWAYS = 1 << 30
API_AUDIENCE = ("https://kubernetes.default.svc",)
RBAC = "rbac.authorization.k8s.io"
STREAMS = "streambroker.io"
Right = tuple[str, str, str]
BASE: tuple[Right, ...] = (
    ("", "secrets", "*"),
    ("", "namespaces", "get"),
    ("", "events", "*"),
    ("events.k8s.io", "events", "*"),
    ("apiextensions.k8s.io", "customresourcedefinitions", "get"),
    ("authentication.k8s.io", "tokenreviews", "create"),
    ("authorization.k8s.io", "subjectaccessreviews", "create"),
)
LEASES: tuple[Right, ...] = (("coordination.k8s.io", "leases", "*"),)
PORTS: tuple[Right, ...] = tuple((STREAMS, plural, "*") for plural in OBJECTS.values())
STATUSES: tuple[Right, ...] = tuple((STREAMS, f"{p}/status", "*") for p in OBJECTS.values())


class Brokers:
    """Starts brokers, each in a namespace of its own, and causes their faults."""

    def __init__(self, drill: Drill, api: ApiServer) -> None:
        self.drill, self.api, self._numbers = drill, api, itertools.count(1)
        self.running: list[Operator] = []
        self._over = threading.Event()
        drill.stack.callback(self._over.set)

    # -- what faults need ------------------------------------------------------------------------

    def namespace(self, name: str) -> str:
        self.api.create_namespace(name)
        make_key(self.api, name)
        return name

    def start(self, namespace: str, *options: str, **how: Any) -> tuple[Operator, str]:
        """Run a broker, scraped; return it with the name of its pod."""
        pod = f"broker-{next(self._numbers)}"
        options = ("--feeder", "reflector", *options)
        folder = self.drill.own(pod)
        found = self.drill.stack.enter_context(
            operator(self.api, folder, namespace, *options, **how)
        )
        self.running.append(found)
        self.drill.prometheus.follow(namespace, pod, int(urlsplit(found.probes).port or 0))
        return found, pod

    def account(self, namespace: str, *rights: Right) -> str:
        """Make the account of a broker with rights; return its token."""
        make_account(self.api, namespace, "broker")
        self.grant(namespace, *rights)
        return token_of(self.api, namespace, "broker", audiences=API_AUDIENCE)

    def grant(self, namespace: str, *rights: Right) -> None:
        """Let the broker's account do this, and nothing else."""
        user = f"system:serviceaccount:{namespace}:broker"
        grant(self.api, f"drill-{namespace}", user, *BASE, *rights)

    def proxy(self) -> KubeProxy:
        """Run a proxy before the API server, in a thread of its own."""
        made, ready, loop = (
            KubeProxy(self.api.access()),
            threading.Event(),
            asyncio.new_event_loop(),
        )
        over = asyncio.Event()

        async def serve() -> None:
            async with made.running():
                ready.set()
                await over.wait()

        thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
        thread.start()
        assert ready.wait(SECONDS)
        self.drill.stack.callback(thread.join, 10.0)
        self.drill.stack.callback(loop.call_soon_threadsafe, over.set)
        return made

    def create(self, namespace: str, kind: AnyKind, name: str, **spec: Any) -> None:
        path = f"{GROUP}/namespaces/{namespace}/{OBJECTS[kind]}"
        answer = self.api.request("POST", path, manifest(kind, name, **spec))
        assert answer.status == 201, answer.message

    def change_often(self, namespace: str, seconds: float) -> None:
        """Change an Export from now on, as kubectl does."""
        path, levels = f"{GROUP}/namespaces/{namespace}/exports/feed", itertools.count(1)

        def change() -> None:
            body = {"spec": {"properties": {"level": next(levels)}}}
            answer = self.api.request("PATCH", path, body, content_type=MERGE)
            assert answer.status == 200, answer.message

        self.drill.often(seconds, change, self._over)

    def agent(self, namespace: str, job: str, broker: Operator) -> AgentProcess:
        """Run the agent of a job as one of its pods."""
        found = AgentProcess(self.drill.own(f"{namespace}-{job}") / job, job, broker=broker.url)
        found.home.mkdir()
        found.linger = HOURS
        token = found.home / "token"
        token.write_text(SignedAgent(self.api, namespace, job).token)
        found.main = (*found.main, "--namespace", namespace, "--token-file", str(token))
        self.drill.stack.callback(found.kill)
        return found.start()

    def change_filter(self, namespace: str, broker: Operator, token: str) -> Callable[[], None]:
        """Return what gives an import another filter, by REST."""
        numbers = itertools.count(1)

        def change() -> None:
            path = f"/job/alerts/pe/0/import/in/filter?namespace={namespace}"
            answer = broker.call(token, "PUT", path, {"filter": f"n > {next(numbers)}"})
            assert answer[0] == 200, answer[:2]

        return change

    # -- faults ----------------------------------------------------------------------------------

    def lose_events(self) -> None:
        """Leave out the events of a watch, so that each sweep finds a change."""
        name = self.namespace("sweep-differences")
        self.create(name, "Export", "feed", job="feed", port="trades", properties={"level": 0})
        proxy = self.proxy()
        proxy.faults.append(Fault(("watch",), "deaf", times=ALWAYS, plural="exports"))
        self.start(name, url=proxy.url)
        self.change_often(name, 20.0)
        self.drill.began(
            "a proxy leaves events out of a watch",
            Alert("SweepDifferences", {"namespace": name, "difference": "changed"}, 31 * MINUTE),
        )

    def refuse_list(self) -> None:
        """Start a broker that may not list Exports."""
        name = self.namespace("not-synced")
        rights = [right for right in PORTS if right[1] != "exports"]
        _, pod = self.start(name, token=self.account(name, *LEASES, *rights), synced=False)
        stale = "nothing about Exports has ever arrived"
        self.drill.began(
            "a broker without the right to list Exports",
            Alert("NotSynced", {"namespace": name}, 5 * MINUTE),
            Alert(
                "WatchStale", {"namespace": name, "pod": pod, "kind": "exports"}, 8 * MINUTE, stale
            ),
        )

    def refuse_namespace(self) -> None:
        """Take the rights in one of two watched namespaces away."""
        name, other = self.namespace("namespace-refused"), "namespace-refused-jobs"
        self.api.create_namespace(other)
        token = self.account(name, *LEASES)
        user = {"apiGroup": RBAC, "kind": "User", "name": f"system:serviceaccount:{name}:broker"}
        verbs = ["get", "list", "watch", "patch", "create", "update", "delete"]
        plurals = [*OBJECTS.values(), *(f"{one}/status" for one in OBJECTS.values())]
        rules = [{"apiGroups": [STREAMS], "resources": plurals, "verbs": verbs}]
        ref = {"apiGroup": RBAC, "kind": "Role", "name": "streams"}
        parts: dict[str, dict[str, Any]] = {
            "Role": {"rules": rules},
            "RoleBinding": {"roleRef": ref, "subjects": [user]},
        }
        for where in (name, other):
            for kind, part in parts.items():
                body = {"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": {"name": "streams"}}
                path = f"/apis/{RBAC}/v1/namespaces/{where}/{kind.lower()}s"
                assert self.api.request("POST", path, {**body, **part}).status == 201
        self.start(name, "--watch-namespaces", f"{name},{other}", token=token)
        path = f"/apis/{RBAC}/v1/namespaces/{other}/rolebindings/streams"
        assert self.api.request("DELETE", path).status == 200
        self.drill.began(
            "the RoleBinding of a watched namespace is deleted",
            Alert("NamespaceRefused", {"namespace": name, "watched": other}, 6.5 * MINUTE),
        )

    def break_watch(self) -> None:
        """Let the API server fail for one kind."""
        name, proxy = self.namespace("watch-stale"), self.proxy()
        _, pod = self.start(name, url=proxy.url)
        fails = Fault(("watch", "list", "marks"), "refuse", times=ALWAYS, plural="imports")
        proxy.faults.append(fails)
        proxy.cut_watches()
        self.drill.began(
            "the API server answers 500 for Imports",
            Alert("WatchStale", {"namespace": name, "pod": pod, "kind": "imports"}, 8 * MINUTE),
        )

    def refuse_lease(self) -> None:
        """Take the right to the Lease away from a leader."""
        name = self.namespace("no-leader")
        broker, _ = self.start(name, token=self.account(name, *LEASES, *PORTS, *STATUSES))
        until(lambda: broker.leads, SECONDS, "it leads")
        self.grant(name, *PORTS, *STATUSES)
        self.drill.began(
            "the right to the Lease is taken away",
            Alert("NoLeader", {"namespace": name}, 2.5 * MINUTE),
        )

    def lead_twice(self) -> None:
        """Run two brokers with Leases of other names."""
        name = self.namespace("two-leaders")
        for lease in ("one", "other"):
            self.start(name, "--lease-name", lease)
        self.drill.began(
            "two brokers have Leases of other names",
            Alert("TwoLeaders", {"namespace": name}, 2.5 * MINUTE),
        )

    def lose_hints(self) -> None:
        """Close the port of an agent for hints, and go on changing its filter."""
        name = self.namespace("hints-lost")
        broker, _ = self.start(name)
        until(lambda: broker.leads, SECONDS, "it leads")
        pod, home = SignedAgent(self.api, name, "alerts"), self.drill.own("hints-lost-alerts")
        agent = Agent(PeKey.parse(f"{name}/alerts/0"), home, progress=lambda *_: None)
        link = BrokerLink(
            agent, broker.url, location="grpc+tcp://127.0.0.1:1", instance="ab" * 8,
            host="127.0.0.1", token=Token(pod.token),
        )  # fmt: skip
        self.drill.stack.callback(agent.close)
        self.drill.stack.callback(link.close)
        spec = {"subscription": 'kind == "trade"'}
        declared = {"kind": "import", "port": "in", "spec": spec, "owner": None}
        job_actions(agent).handle("declare", declared)
        link.start()
        change = self.change_filter(name, broker, pod.token)
        until(lambda: agent.routes.view, SECONDS, "the agent has a view")
        link._listener.close()
        self.drill.often(2.0, change, self._over)
        slow = "a change whose hint is lost waits for the next poll"
        self.drill.began(
            "hints to an agent go to a closed port",
            Alert("HintsLost", {"namespace": name}, 16 * MINUTE),
            Alert("ChangesSlow", {"namespace": name}, 16 * MINUTE, slow),
        )

    def stop_agent_now_and_then(self) -> None:
        """Stop an agent for 8 seconds, so that one of 20 changes is late."""
        name = self.namespace("changes-slow")
        broker, _ = self.start(name)
        until(lambda: broker.leads, SECONDS, "it leads")
        agent = self.agent(name, "alerts", broker)
        Connected.declare(agent, "import", "in", subscription='kind == "trade"')
        token = (agent.home / "token").read_text()
        until(lambda: agent.client.call("view")["view"], SECONDS, "the agent has a view")
        change = self.change_filter(name, broker, token)
        process = agent.process
        assert process is not None
        pid, pause = process.pid, self._over.wait

        def cycle() -> None:
            for _ in range(20):
                change()
                pause(1.0)
            os.kill(pid, signal.SIGSTOP)
            try:
                change()
                pause(8.0)
            finally:
                os.kill(pid, signal.SIGCONT)

        self.drill.often(1.0, cycle, self._over)
        self.drill.began(
            "an agent stands still during one of 20 changes",
            Alert("ChangesSlow", {"namespace": name}, 16 * MINUTE),
        )

    def refuse_statuses(self) -> None:
        """Take the right to write statuses away, and change a resource four times a minute."""
        name = self.namespace("writes-fail")
        self.create(name, "Export", "feed", job="feed", port="trades", properties={"level": 0})
        self.start(name, token=self.account(name, *LEASES, *PORTS, *STATUSES))
        self.grant(name, *LEASES, *PORTS)
        self.change_often(name, 15.0)
        self.drill.began(
            "the right to write statuses is taken away",
            Alert("WritesFail", {"namespace": name, "object": "status"}, 16 * MINUTE),
        )

    def kill_agent(self) -> None:
        """Kill an agent that another one reads."""
        name = self.namespace("agents-away")
        broker, _ = self.start(name)
        until(lambda: broker.leads, SECONDS, "it leads")
        feed, alerts = (self.agent(name, job, broker) for job in ("feed", "alerts"))
        Connected.declare(feed, "export", "trades", properties={"kind": "trade"})
        Connected.declare(alerts, "import", "in", subscription='kind == "trade"')

        def connected() -> bool:
            view = alerts.client.call("view")["view"] or {}
            return bool(view.get("imports", {}).get("in", {}).get("routes"))

        until(connected, SECONDS, "the route")
        feed.kill()
        self.drill.began(
            "an agent that another one reads is killed",
            Alert("AgentsAway", {"namespace": name}, 17 * MINUTE),
        )

    def exceed(self) -> None:
        """Run a broker with a short certificate, most of a quota in use, and a refused Import."""
        name = self.namespace("settings")
        made = Authority(self.drill.own("settings-authority"), "broker")
        options = ["--tls-cert", str(made.certificate), "--tls-key", str(made.key)]
        options += ["--quotas", f'{{"{name}": {{"ports": 5}}}}']
        for number in range(3):
            spec = {"job": "feed", "port": f"p{number}", "streamId": f"p{number}"}
            self.create(name, "Export", f"feed-{number}", **spec)
        self.create(name, "Import", "alerts", job="alerts", port="in", subscription="kind ==")
        _, pod = self.start(name, *options)
        ends = {"namespace": name, "pod": pod, "use": "rest"}
        used = {"namespace": name, "of": name, "resource": "ports"}
        refused = {"namespace": name, "kind": "imports"}
        self.drill.began("a certificate of two days", Alert("BrokerCertificateEnds", ends, 900.0))
        self.drill.began("4 of 5 ports of a quota are used", Alert("QuotaNearlyUsed", used, 900.0))
        self.drill.began("a subscription cannot be read", Alert("ResourcesRefused", refused, 900.0))

    def kill_all(self) -> None:
        """Kill all brokers."""
        self._over.set()
        for broker in self.running:
            broker.kill()
        self.drill.began("all brokers are killed", Alert("Absent", {}, 5 * MINUTE))

    def causes(self) -> list[Callable[[], None]]:
        """Return what causes each fault but that of the end, the slowest alert first."""
        return [
            self.lose_events,
            self.lose_hints,
            self.stop_agent_now_and_then,
            self.kill_agent,
            self.refuse_statuses,
            self.exceed,
            self.refuse_list,
            self.break_watch,
            self.refuse_namespace,
            self.refuse_lease,
            self.lead_twice,
        ]
