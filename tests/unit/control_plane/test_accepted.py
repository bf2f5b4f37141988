"""The last accepted generation runs on: in two replicas, whatever is refused, written or killed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streambroker_core.board import AgentRegistered, Board, Status, Synced
from streambroker_core.model import RULE, Kind, PeKey, Resource, kind_of
from streambroker_core.wire.broker.view import View, retain_held_routes
from streambroker_core.wire.manifests.ports import write_spec
from streambroker_core.wire.manifests.rules import write_rule_spec
from streambroker_operator.kubernetes.watch.observed_cache import (
    ObservedCache,
    object_ref,
    parse_object,
)
from support.core.resources import registration

Object = Any
EXPORT, IMPORT = "x", "i"
KINDS: tuple[Kind, Kind] = ("Export", "Import")
PES = (PeKey.parse("default/feed/0"), PeKey.parse("default/alerts/0"))
UID: dict[Kind, str] = {"Export": EXPORT, "Import": IMPORT}
SCHEMA = [{"name": "price", "type": "double"}]
GOOD: dict[Kind, tuple[Object, ...]] = {
    "Export": (
        {"properties": {"kind": "trade"}, "schema": SCHEMA},
        {"properties": {"kind": "trade", "venue": "n"}, "schema": SCHEMA},
    ),
    "Import": (
        {"subscription": 'kind == "trade"'},
        {"subscription": 'kind == "trade"', "filter": "price > 1.0"},
    ),
}
BAD: dict[Kind, tuple[Object, ...]] = {
    "Export": ({"properties": {"a b": 1}, "schema": SCHEMA},),
    "Import": (
        {"subscription": 'kind = "trade"'},
        {"subscription": 'kind == "trade"', "filter": 'price > "much"'},
        {"subscription": 'kind == "trade"', "schema": [{"name": "a", "type": "nosuch"}]},
        {"subscription": 'kind == "trade"', "filter": "price >"},
    ),
}


def body_of(kind: Kind, spec: Object) -> Object:
    job = "feed" if kind == "Export" else "alerts"
    return {
        "apiVersion": "streambroker.io/v1alpha1",
        "kind": kind,
        "metadata": {
            "name": job,
            "namespace": "default",
            "uid": UID[kind],
            "generation": 1,
            "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"job": job, "pe": 0, "port": "trades", **spec},
    }


@dataclass
class Replica:
    """A broker: what it follows, its board, and the events that have not arrived."""

    board: Board = field(default_factory=Board)
    feeds: dict[Kind, ObservedCache] = field(
        default_factory=lambda: {k: ObservedCache(k) for k in KINDS}
    )
    coming: list[Object] = field(default_factory=list)

    def hear(self, kind: Kind | None = None) -> None:
        """Take the next event; of a kind, for each has a watch of its own."""
        body = next((one for one in self.coming if kind in (None, one["kind"])), None)
        if body is None:
            return
        self.coming.remove(body)
        event = self.feeds[body["kind"]].apply(parse_object(body))
        if event is not None:
            self.board.handle(event)

    def status(self, kind: Kind) -> Status:
        found = self.board.reader.status(kind, UID[kind])
        assert found is not None
        return found


class Cluster:
    """An API server with an Export and an Import that match, and two replicas.

    The Export's status is written: what is wrong with a filter is known from its columns.
    """

    def __init__(self) -> None:
        self.version = 1
        self.world = {kind: body_of(kind, GOOD[kind][0]) for kind in KINDS}
        accepted = {"generation": 1, "spec": self.world["Export"]["spec"]}
        self.world["Export"]["status"] = {"accepted": accepted}
        self.replicas = [Replica(), Replica()]
        self.leader = 0
        self.agents: dict[PeKey, View] = {}
        for replica in self.replicas:
            self.begin(replica)
        self.poll(0)

    def poll(self, who: int) -> None:
        """Have both agents take their views from a replica."""
        for pe in PES:
            view = self.replicas[who].board.reader.view(pe)
            assert view is not None
            self.agents[pe] = retain_held_routes(view, self.agents.get(pe))

    def routes(self) -> list[int]:
        """Return how many routes the agents have, of their exports and of their imports."""
        views = self.agents.values()
        exports = [port for view in views for port in view.exports.values()]
        imports = [port for view in views for port in view.imports.values()]
        return [sum(len(port.routes) for port in ports) for ports in (exports, imports)]

    def begin(self, replica: Replica) -> None:
        replica.__init__()  # type: ignore[misc]
        for kind in KINDS:
            feed = replica.feeds[kind]
            found = [feed.read_listed(parse_object(self.world[kind]))]
            for event in feed.apply_list(found, self.version):
                replica.board.handle(event)
        for pe in PES:
            replica.board.handle(AgentRegistered(pe=pe, registration=registration(), version=1))

    def change(self, kind: Kind, **parts: Any) -> None:
        self.version += 1
        body = {**self.world[kind], **parts}
        body["metadata"] = {**body["metadata"], "resourceVersion": str(self.version)}
        if "spec" in parts:
            body["metadata"]["generation"] += 1
        self.world[kind] = body
        for replica in self.replicas:
            replica.coming.append(body)

    def write(self, kind: Kind, spec: Object) -> None:
        self.change(kind, spec=body_of(kind, spec)["spec"])

    def write_status(self, who: int | None = None) -> None:
        """Write what the leader has to say, unless its view of the object is an old one.

        Who does not lead writes what it alone may know, as `PortReconciler.must_write` says.
        """
        who = self.leader if who is None else who
        board = self.replicas[who].board
        for kind in KINDS:
            found: Resource | None = board.reader.get(kind, UID[kind])
            newer = None if found is None else found.rejected
            seen = 0 if found is None else (newer or found).generation
            if found is None or seen != self.world[kind]["metadata"]["generation"]:
                continue
            status = board.reader.status(kind, UID[kind])
            if status is None or (who != self.leader and not self.remembers(found)):
                continue
            conditions = {"Accepted": str(status.accepted), "Held": str(status.held)}
            body: Object = {
                "conditions": [{"type": name, "status": is_} for name, is_ in conditions.items()]
            }
            before = self.world[kind].get("status", {}).get("accepted", {}).get("generation")
            if (
                status.accepted
                or status.running_generation is not None
                or before == found.generation
            ):
                body["accepted"] = {"generation": found.generation, "spec": write_spec(found)}
            if self.world[kind].get("status") != body:
                self.change(kind, status=body)

    def remembers(self, found: Resource) -> bool:
        accepted = self.world[kind_of(found)].get("status", {}).get("accepted", {})
        return found.rejected is not None and found.generation > accepted.get("generation", 0)

    def kill(self, who: int) -> None:
        self.begin(self.replicas[who])
        self.leader = 1 - who

    def step(self, action: str, kind: Kind, pick: int) -> None:
        """Do one thing."""
        if action == "good":
            self.write(kind, GOOD[kind][pick % 2])
        elif action == "bad":
            self.write(kind, BAD[kind][pick % len(BAD[kind])])
        elif action == "hear":
            self.replicas[pick % 2].hear(kind)
        elif action == "status":
            self.write_status()
        elif action == "kill":
            self.kill(pick % 2)
        elif action == "poll":
            self.poll(pick % 2)

    def known(self, kind: Kind) -> bool:
        """Say whether a replica that starts now can know a generation that is valid."""
        return "accepted" in self.world[kind].get("status", {}) or self.valid(kind)

    def valid(self, kind: Kind) -> bool:
        spec = self.world[kind]["spec"]
        return any(spec == body_of(kind, good)["spec"] for good in GOOD[kind])

    def settle(self) -> None:
        for who in (self.leader, 1 - self.leader) * 2:
            for replica in self.replicas:
                while replica.coming:
                    replica.hear()
            self.write_status(who)
        for replica in self.replicas:
            while replica.coming:
                replica.hear()


def versions(board: Board) -> dict[PeKey, str]:
    """Return the versions of views that show anything."""
    return {
        pe: version
        for pe, version in board.reader.versions().items()
        if any(board.reader.ports(pe))
    }


STEPS = st.tuples(
    st.sampled_from(("good", "bad", "bad", "hear", "hear", "hear", "status", "kill", "poll")),
    st.sampled_from(KINDS),
    st.integers(0, 3),
)


@settings(deadline=None, max_examples=100)
@given(plan=st.lists(STEPS, max_size=24))
@example(plan=[("bad", "Import", 0), ("hear", "Import", 0), ("kill", "Import", 0)])
@example(plan=[("status", "Import", 0), ("bad", "Import", 1), ("kill", "Import", 0)])
@example(plan=[("bad", "Import", 0), ("kill", "Import", 0), ("poll", "Import", 0)])
@example(plan=[("bad", "Import", 2), ("kill", "Import", 0), ("poll", "Import", 0)])
@example(
    plan=[
        ("bad", "Import", 1),
        *[("kill", "Import", 0), ("status", "Import", 0)] * 2,
        ("kill", "Import", 1),
        ("poll", "Import", 0),
    ]
)
def test_no_refused_generation_cuts_a_route_and_both_replicas_agree(
    plan: list[tuple[str, Kind, int]],
) -> None:
    """Accept, refuse and kill at every step; what nobody could know is the only exception."""
    cluster = Cluster()
    for action, kind, pick in plan:
        shown = [len(replica.board.reader.routes()) for replica in cluster.replicas]
        cluster.step(action, kind, pick)
        assert cluster.routes() == [1, 1], "an agent has lost its route"
        for who, replica in enumerate(cluster.replicas):
            left = len(replica.board.reader.routes())
            if action != "kill" or who != pick % 2:
                assert left >= shown[who], "a route was cut"
            elif all(map(cluster.known, KINDS)):
                assert left == 1, "a new replica does not know what runs"

    cluster.settle()
    cluster.poll(0)
    assert cluster.routes() == [1, 1]
    one, other = (replica.board for replica in cluster.replicas)
    assert versions(one) == versions(other)
    assert one.reader.statuses() == other.reader.statuses()
    for kind in KINDS:
        status = cluster.replicas[0].status(kind)
        assert status.accepted == cluster.valid(kind)
        if not status.accepted and status.running_generation is not None:
            newest = cluster.world[kind]["metadata"]["generation"]
            assert status.message.startswith(f"generation {newest} is refused: ")
            assert status.message.endswith(f"; generation {status.running_generation} runs")


SIZED = [*SCHEMA, {"name": "size", "type": "bigint"}]
SPECS: dict[Kind, tuple[Object, ...]] = {
    "Export": (
        {"properties": {"kind": "trade"}, "schema": SCHEMA},
        {"properties": {"kind": "trade"}, "schema": SIZED},
        {"properties": {"kind": "other"}, "schema": SIZED},
    ),
    "Import": (
        *(
            {"subscription": 'kind == "trade"', "filter": f"{name} > 1"}
            for name in ("price", "size")
        ),
        {"subscription": 'kind = "trade"'},
    ),
}


@settings(deadline=None, max_examples=100)
@given(
    plan=st.lists(
        st.tuples(
            st.sampled_from(("write", "write", "hear", "hear", "hear", "status", "kill")),
            st.sampled_from(KINDS),
            st.integers(0, 5),
        ),
        max_size=24,
    )
)
def test_replicas_that_see_exports_and_imports_in_different_orders_agree_in_the_end(
    plan: list[tuple[str, Kind, int]],
) -> None:
    """What is accepted depends on the columns of Exports, which change, too."""
    cluster = Cluster()
    for action, kind, pick in plan:
        if action == "write":
            cluster.write(kind, SPECS[kind][pick % 3])
        else:
            cluster.step(action, kind, pick)
    cluster.settle()
    one, other = (replica.board for replica in cluster.replicas)
    assert one.reader.statuses() == other.reader.statuses()
    assert versions(one) == versions(other)


@pytest.mark.parametrize("bad", BAD["Import"])
def test_a_typo_leaves_the_route_as_it_was_until_a_newer_generation_is_valid(bad: Object) -> None:
    cluster = Cluster()
    cluster.write("Import", GOOD["Import"][1])
    cluster.settle()
    before = cluster.replicas[0].board.reader.routes()
    cluster.write("Import", bad)
    cluster.settle()

    status = cluster.replicas[0].status("Import")
    assert (status.accepted, status.running_generation, status.matches) == (False, 2, 1)
    assert cluster.replicas[0].board.reader.routes() == before

    cluster.write("Import", GOOD["Import"][0])
    cluster.settle()
    assert cluster.replicas[0].status("Import").accepted
    assert [route.filter for route in cluster.replicas[0].board.reader.routes()] == [None]


def test_a_filter_that_was_refused_for_all_exports_runs_once_one_has_its_column() -> None:
    cluster = Cluster()
    cluster.write("Import", {"subscription": 'kind == "trade"', "filter": "size > 1"})
    cluster.settle()
    assert cluster.replicas[0].status("Import").running_generation == 1
    sized = [*SCHEMA, {"name": "size", "type": "bigint"}]
    cluster.write("Export", {"properties": {"kind": "trade"}, "schema": sized})
    cluster.settle()

    for replica in cluster.replicas:
        assert replica.status("Import").accepted
        assert [route.filter for route in replica.board.reader.routes()] == ["size > 1"]


def test_a_first_generation_that_is_refused_takes_no_part() -> None:
    replica = Replica()
    first: dict[Kind, Object] = {"Export": GOOD["Export"][0], "Import": BAD["Import"][0]}
    for kind, spec in first.items():
        feed = replica.feeds[kind]
        for event in feed.apply_list([feed.read_listed(parse_object(body_of(kind, spec)))], 1):
            replica.board.handle(event)
    status = replica.status("Import")
    assert (status.accepted, status.running_generation, status.matches) == (False, None, 0)


def rule_body(where: str, generation: int, status: Object | None = None) -> Object:
    spec = {
        "job": "alerts",
        "id": "dear",
        "version": generation,
        "pattern": {"stages": [{"name": "a", "where": where}]},
    }
    body = {**body_of("Import", {}), "kind": RULE, "spec": spec, "status": status or {}}
    body["metadata"] |= {"generation": generation, "resourceVersion": str(generation)}
    return body


def test_a_rule_that_is_refused_leaves_its_last_accepted_version_to_the_job() -> None:
    """Also to a job, and by a broker, that start after it was refused."""
    good, bad = rule_body("price > 1", 1), rule_body("price >", 2)
    boards = [Board(), Board()]
    following = ObservedCache(RULE)
    for event in following.apply_list([following.read_listed(parse_object(good))], 1):
        boards[0].handle(event)
    (rule,) = boards[0].reader.rules
    accepted = {"accepted": {"generation": 1, "spec": write_rule_spec(rule)}}
    bad["status"] = accepted
    later = following.apply(parse_object(bad))
    assert later is not None
    boards[0].handle(later)
    fresh = ObservedCache(RULE)
    boards[1].handle(Synced(kind=RULE, listed=(), version=0))
    for event in fresh.apply_list([fresh.read_listed(parse_object(bad))], object_ref(bad).version):
        boards[1].handle(event)

    for board in boards:
        wanted = board.reader.rules.view_rules(("default", "alerts"))
        assert wanted is not None
        assert [(one.document["version"], one.problem) for one in wanted.rules] == [(1, "")]
        status = board.reader.rules.status(IMPORT)
        assert status is not None
        assert (status.accepted, status.reason, status.running_generation) == (
            False,
            "RuleInvalid",
            1,
        )
