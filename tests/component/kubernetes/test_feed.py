"""Both feeders on a real API server: the board is what the server holds, whatever happens to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from streambroker_core.board import ExportRemoved, FeedAdvanced, FeedLost, Status, Synced
from streambroker_core.model import RULE, PortKey
from streambroker_core.wire.manifests.ports import OBJECTS, read_manifest
from streambroker_operator.kubernetes.client.kubeconfig import from_kubeconfig
from streambroker_operator.kubernetes.watch.kopf_feeder import ChildConfig, KopfFeeder
from support.clusters.api_server import GROUP, ApiServer
from support.clusters.informer import CALM, HASTY, FeederName, Followed
from support.clusters.objects import ClusterObjects
from support.clusters.proxy import Fault, What
from support.kubernetes.object_store import object_of
from support.processes.waiting import until

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

FEEDERS: tuple[FeederName, FeederName] = ("reflector", "kopf")
both = pytest.mark.parametrize("feeder", FEEDERS)
one_now_and_both_at_length = pytest.mark.parametrize(
    "feeder", ["kopf", pytest.param("reflector", marks=pytest.mark.long)]
)
"""For what takes an API server of its own, and many seconds."""


@pytest.fixture
def objects(api: ApiServer, namespace: str) -> ClusterObjects:
    return ClusterObjects(api, namespace)


@pytest.fixture
def own(own_api: ApiServer) -> ClusterObjects:
    return ClusterObjects(own_api, "default")


def follow(objects: ClusterObjects, feeder: FeederName, **how: Any) -> Followed:
    access = from_kubeconfig(objects.api.kubeconfig())
    return Followed(access, feeder, **{"namespaces": [objects.namespace], **how})


def await_kopf(followed: Followed) -> None:
    """Wait until kopf, if it is the one, watches: only then does it tell of what happens."""
    feeder = followed.feeder
    if isinstance(feeder, KopfFeeder):
        proxy = followed.proxy
        until(
            lambda: {a.plural for a in proxy.asked if a.what == "watch"} == set(OBJECTS.values()),
            40.0,
            "kopf watches all kinds",
        )


def end_kopf(feeder: KopfFeeder) -> None:
    """Kill kopf's process, once there is one."""
    process = until(lambda: feeder.process, 20.0, "kopf runs")
    os.kill(process.pid, signal.SIGKILL)


def pair(objects: ClusterObjects, name: str) -> set[str]:
    """Create an Export and an Import; return their uids."""
    return {objects.write("Export", name), objects.write("Import", name)}


# ---- what happens every day ------------------------------------------------------------------


@both
def test_what_is_created_changed_and_deleted_is_on_the_board(
    objects: ClusterObjects, feeder: FeederName
) -> None:
    pair(objects, "first")
    with follow(objects, feeder, timing=CALM).running() as followed:
        followed.await_scan(objects.api, [objects.namespace])
        await_kopf(followed)
        followed.steady = set(followed.entries())
        pair(objects, "second")
        objects.write("Import", "first", 1)
        followed.await_scan(objects.api, [objects.namespace])
        followed.steady = set()
        objects.delete("Export", "first")
        followed.await_scan(objects.api, [objects.namespace])

        assert len(followed.entries()) == 3
        assert followed.health().relists == 2
        assert feeder == "kopf" or followed.health().missed_deletions == 0
        assert getattr(followed.feeder, "starts", 1) == 1


def test_an_old_list_does_not_take_what_a_write_of_ones_own_has_shown_already(
    objects: ClusterObjects,
) -> None:
    with follow(objects, "reflector", timing=CALM).running() as followed:
        followed.await_synced()
        proxy, feed = followed.proxy, followed.feeder.feeds["Export"]
        version = feed.cache.max_version
        silent = Fault(on=("watch",), how="silent", plural="exports")
        proxy.faults.append(silent)
        followed.call(proxy.cut_watches)
        until(lambda: silent not in proxy.faults, 20.0, "a watch that tells nothing")
        key = PortKey(namespace=objects.namespace, job="first", pe=0, port="p")
        made = followed.wait_for(
            followed.runtime.put(
                read_manifest(object_of("Export", "first", 0, namespace=objects.namespace))
            )
        )
        followed.steady = {made.stored.resource.uid}
        assert (feed.cache.max_version, feed.health.relists) == (version, 1)

        proxy.faults += [
            Fault(on=("watch",), how="refuse", status=404, plural="exports"),
            Fault(on=("list",), how="stale", plural="exports"),
        ]
        followed.call(proxy.release)
        until(lambda: feed.health.relists == 2, 20.0, "another list")
        followed.await_scan(objects.api, [objects.namespace])

        assert proxy.faults == []
        assert followed.call(lambda: followed.runtime.store.get("Export", key)) is not None
        assert not [
            event for event in followed.events if getattr(event, "reason", "") == "Restored"
        ]


@both
def test_a_status_moves_the_point_alone(objects: ClusterObjects, feeder: FeederName) -> None:
    objects.write("Export", "first")
    with follow(objects, feeder, timing=CALM).running() as followed:
        followed.await_synced()
        await_kopf(followed)
        reported = len(followed.events)
        before = followed.call(lambda: followed.board.reader.point)
        objects.touch("Export", "first", 7)
        until(
            lambda: followed.call(lambda: followed.board.reader.point) > before,
            20.0,
            "the point moves",
        )

        assert {type(event) for event in followed.events[reported:]} <= {FeedAdvanced}


@both
def test_what_cannot_be_read_is_reported_and_the_generation_before_it_runs_on(
    objects: ClusterObjects, feeder: FeederName
) -> None:
    pair(objects, "first")
    with follow(objects, feeder, timing=CALM).running() as followed:
        followed.await_synced()
        await_kopf(followed)
        uid = objects.write("Export", "first", 2)

        def status() -> Status:
            found = followed.call(lambda: followed.board.reader.status("Export", uid))
            assert found is not None
            return found

        until(lambda: not status().accepted, 20.0, "it is refused")
        assert (status().reason, status().running_generation) == ("PropertyInvalid", 1)
        assert followed.call(followed.board.reader.routes) != []

        objects.write("Export", "first", 0)
        until(lambda: status().accepted, 20.0, "it is accepted again")


@both
def test_a_feed_at_rest_writes_nothing(objects: ClusterObjects, feeder: FeederName) -> None:
    pair(objects, "first")
    before = len(objects.api.writes())
    with follow(objects, feeder).running() as followed:
        followed.await_synced()
        await_kopf(followed)
        until(lambda: followed.health().relists >= 2, 10.0, "both kinds are listed")
        sweeps = len([a for a in followed.proxy.asked if a.what == "marks"])
        until(
            lambda: len([a for a in followed.proxy.asked if a.what == "marks"]) >= sweeps + 4,
            20.0,
            "it sweeps",
        )

    assert objects.api.writes()[before:] == []


@pytest.fixture
def three(api: ApiServer, namespace: str) -> Iterator[list[ClusterObjects]]:
    names = [namespace, *(f"test-{uuid4().hex[:12]}" for _ in range(2))]
    for name in names[1:]:
        api.create_namespace(name)
    yield [ClusterObjects(api, name) for name in names]
    for name in names[1:]:
        api.remove_namespace(name)


@both
def test_of_several_namespaces_only_those_named_are_followed(
    three: list[ClusterObjects], feeder: FeederName
) -> None:
    for objects in three:
        pair(objects, "first")
    names = [objects.namespace for objects in three]
    with follow(three[0], feeder, timing=CALM, namespaces=names[:2]).running() as followed:
        followed.await_scan(three[0].api, names[:2])
        await_kopf(followed)
        for objects in three:
            pair(objects, "second")
        three[1].delete("Export", "first")
        followed.await_scan(three[0].api, names[:2])

        assert len(followed.entries()) == 7


@both
def test_all_namespaces_can_be_followed(three: list[ClusterObjects], feeder: FeederName) -> None:
    names = [objects.namespace for objects in three]
    with follow(three[0], feeder, timing=CALM, namespaces=[]).running() as followed:
        followed.await_synced()
        await_kopf(followed)
        made = {uid for objects in three for uid in pair(objects, "first")}
        until(lambda: made <= set(followed.entries()), 20.0, f"all of {names} are there")


@both
def test_the_last_resource_can_go_without_a_word(
    objects: ClusterObjects, feeder: FeederName
) -> None:
    """An API server has its own way to write an empty list of metadata."""
    objects.write("Export", "last")
    with follow(objects, feeder).running() as followed:
        followed.await_scan(objects.api, [objects.namespace])
        uid = next(iter(followed.entries()))
        known = followed.feeder.feeds["Export"].cache._objects
        gone = {**known}
        objects.delete("Export", "last")
        until(lambda: not followed.entries(), 20.0, "it is gone")
        followed.call(lambda: known.update(gone))
        until(lambda: uid not in known, 20.0, "the sweep finds it missing")

        assert followed.health().missed_deletions >= 1


def test_a_sweep_counts_what_nobody_reported(objects: ClusterObjects) -> None:
    uid = objects.write("Export", "first")
    with follow(objects, "reflector").running() as followed:
        followed.await_synced()
        feed = followed.feeder.feeds["Export"]

        def miss_the_last_event() -> None:
            known = feed.cache._objects[uid]
            known.version = known.confirmed_version = known.version - 1

        followed.call(miss_the_last_event)
        until(lambda: followed.call(lambda: feed.health.resyncs) > 2, 20.0, "it is swept")

        assert followed.call(lambda: dict(feed.health.missed_changes)) == {"changed": 1}


def test_lists_are_asked_for_in_pages_and_as_they_are_now(objects: ClusterObjects) -> None:
    for number in range(12):
        objects.write("Export", f"n{number}")
    with follow(objects, "reflector", timing=CALM).running() as followed:
        followed.await_scan(objects.api, [objects.namespace])
        lists = [a.path for a in followed.proxy.asked if a.what == "list" and a.plural == "exports"]
        encodings = {a.headers.get("Accept-Encoding") for a in followed.proxy.asked}

    assert len(lists) == 3
    assert not any("resourceVersion" in path for path in lists)
    assert encodings == {"identity"}


# ---- what happens to servers -----------------------------------------------------------------


@one_now_and_both_at_length
def test_deletions_while_the_api_server_was_away_are_found(
    own: ClusterObjects, feeder: FeederName
) -> None:
    """They happen at another API server of the same etcd; the first one is killed meanwhile."""
    steady = pair(own, "stays")
    pair(own, "goes")
    with follow(own, feeder).running() as followed:
        followed.steady = steady
        followed.await_scan(own.api, ["default"])
        await_kopf(followed)
        with own.api.second() as other:
            own.api.stop()
            there = ClusterObjects(other, "default")
            for kind in ("Export", "Import"):
                there.delete(kind, "goes")
            pair(there, "new")
            there.write("Import", "stays", 1)
            own.api.start()
        followed.await_scan(own.api, ["default"])

        assert steady <= set(followed.entries())
        pair(own, "later")
        followed.await_scan(own.api, ["default"])


@one_now_and_both_at_length
def test_a_board_stays_while_etcd_is_away(own: ClusterObjects, feeder: FeederName) -> None:
    steady = pair(own, "stays")
    with follow(own, feeder).running() as followed:
        followed.steady = steady
        followed.await_scan(own.api, ["default"])
        own.api.etcd.stop()
        until(lambda: followed.health().last_error, 40.0, "the feed notices")

        assert set(followed.entries()) == steady

        own.api.etcd.start()
        until(lambda: answers(own.api), 60.0, "the server is back")
        pair(own, "new")
        followed.await_scan(own.api, ["default"], 90.0)


def answers(api: ApiServer) -> bool:
    try:
        return api.request("GET", "/readyz").status == 200
    except OSError:
        return False


def crd(api: ApiServer, plural: str) -> str:
    return f"{CRDS}/{plural}.streambroker.io"


@both
def test_an_updated_definition_loses_nothing(own: ClusterObjects, feeder: FeederName) -> None:
    """The watches end; what is deleted at that moment is in no watch's events."""
    steady = pair(own, "stays")
    pair(own, "goes")
    with follow(own, feeder).running() as followed:
        followed.steady = steady
        followed.await_scan(own.api, ["default"])
        await_kopf(followed)
        found = own.api.request("GET", crd(own.api, "exports")).body
        columns = found["spec"]["versions"][0]["additionalPrinterColumns"]
        columns.append({"name": "Uid", "type": "string", "jsonPath": ".metadata.uid"})
        answer = own.api.request("PUT", crd(own.api, "exports"), found)
        assert answer.status == 200, answer
        own.delete("Export", "goes")
        own.write("Export", "new")
        followed.await_scan(own.api, ["default"])


@one_now_and_both_at_length
def test_a_deleted_definition_leaves_the_board_and_the_next_list_decides(
    own: ClusterObjects, feeder: FeederName
) -> None:
    steady = pair(own, "stays") | pair(own, "too")
    definition = own.api.request("GET", crd(own.api, "exports")).body
    with follow(own, feeder).running() as followed:
        followed.steady = set(steady)
        followed.await_scan(own.api, ["default"])
        await_kopf(followed)
        own.api.request("DELETE", crd(own.api, "exports"))
        until(lambda: followed.health().reason == "CrdMissing", 30.0, "the loss is noticed")
        until(lambda: own.api.request("GET", f"{GROUP}/exports").status == 404, 30.0, "it is gone")

        assert FeedLost(kind="Export", reason="CrdMissing") in followed.events
        assert set(followed.entries()) == steady
        assert not [event for event in followed.events if isinstance(event, ExportRemoved)]

        followed.steady = set()
        own.api.apply_crds()
        followed.await_scan(own.api, ["default"])
        assert (
            definition["metadata"]["uid"]
            != own.api.request("GET", crd(own.api, "exports")).body["metadata"]["uid"]
        )
        pair(own, "new")
        followed.await_scan(own.api, ["default"])
        assert followed.health().reason == ""


@one_now_and_both_at_length
def test_while_one_definition_is_gone_the_other_kind_is_followed(
    own: ClusterObjects, feeder: FeederName
) -> None:
    pair(own, "first")
    with follow(own, feeder, timing=CALM).running() as followed:
        followed.await_scan(own.api, ["default"])
        await_kopf(followed)
        own.api.request("DELETE", crd(own.api, "exports"))
        until(lambda: followed.health().reason == "CrdMissing", 30.0, "the loss is noticed")
        until(lambda: own.api.request("GET", f"{GROUP}/exports").status == 404, 30.0, "it is gone")
        if isinstance(followed.feeder, KopfFeeder):
            starts = followed.feeder.starts
            end_kopf(followed.feeder)
            until(lambda: followed.feeder.starts > starts, 20.0, "kopf is started again")  # type: ignore[attr-defined]
        made = own.write("Import", "new")
        until(lambda: made in followed.entries(), 20.0, "the other kind is followed")
        own.delete("Import", "new")
        until(lambda: made not in followed.entries(), 20.0, "its deletion is told")

        assert followed.health().reason == "CrdMissing"


@pytest.mark.slow
@one_now_and_both_at_length
def test_after_a_restore_of_etcd_the_list_decides_and_what_persists_is_kept(
    own: ClusterObjects, feeder: FeederName, tmp_path: Path
) -> None:
    steady = pair(own, "stays")
    pair(own, "deleted-later")
    own.api.stop()
    own.api.etcd.save(tmp_path / "copy")
    own.api.start()
    with follow(own, feeder).running() as followed:
        followed.steady = steady
        followed.await_scan(own.api, ["default"])
        await_kopf(followed)
        for kind in ("Export", "Import"):
            own.delete(kind, "deleted-later")
        for number in range(5):
            pair(own, f"made-later-{number}")
        own.touch("Export", "stays", 1)
        followed.await_scan(own.api, ["default"])
        before = followed.call(lambda: followed.board.reader.point)
        own.api.stop()
        own.api.etcd.restore(tmp_path / "copy")
        own.api.start()
        followed.await_scan(own.api, ["default"], 90.0)

        assert followed.call(lambda: followed.board.reader.point) < before
        lost = [event for event in followed.events if isinstance(event, FeedLost)]
        assert {event.reason for event in lost} == {"Restored"}
        pair(own, "new")
        followed.await_scan(own.api, ["default"])


def test_a_compaction_alone_is_nothing(own: ClusterObjects) -> None:
    pair(own, "first")
    with follow(own, "reflector", timing=CALM).running() as followed:
        followed.await_scan(own.api, ["default"])
        own.api.etcd.compact()
        pair(own, "second")
        followed.await_scan(own.api, ["default"])

        assert followed.health().relists == 2


# ---- what happens on the way -----------------------------------------------------------------

EVERYTHING: tuple[What, ...] = ("crd", "list", "watch", "marks")


@pytest.mark.parametrize(
    "fault",
    [
        Fault(on=EVERYTHING, how="refuse", status=503, retry_after=1, times=4),
        Fault(on=EVERYTHING, how="refuse", status=429, retry_after=1, times=3),
        Fault(on=EVERYTHING, how="refuse", status=500, times=6),
        Fault(on=("crd", "list"), how="refuse", status=404, times=6),
        Fault(on=("list",), how="cut", after=600, times=4),
        Fault(on=("list",), how="hang", times=1),
        Fault(on=("list", "watch"), how="slow", times=4),
        Fault(on=("watch",), how="gone", times=4),
    ],
    ids=lambda fault: f"{fault.how}-{fault.status}",
)
def test_a_feed_starts_in_spite_of_what_happens(objects: ClusterObjects, fault: Fault) -> None:
    for number in range(7):
        pair(objects, f"n{number}")
    followed = follow(objects, "reflector")
    followed.proxy.faults.append(replace(fault))
    with followed.running():
        until(lambda: followed.proxy.faults == [], 40.0, "all has happened")
        followed.await_scan(objects.api, [objects.namespace])
        ports = [e for e in followed.events if isinstance(e, Synced) and e.kind != RULE]

        assert [e for e in ports if len(tuple(e.listed)) != 7] == []


@both
@pytest.mark.parametrize(
    "fault",
    [
        Fault(on=EVERYTHING, how="refuse", status=404, times=8),
        Fault(on=("watch",), how="refuse", status=500, times=8),
        Fault(on=("watch",), how="refuse", status=429, retry_after=1, times=3),
        Fault(on=("watch",), how="gone", times=4),
    ],
    ids=lambda fault: f"{fault.how}-{fault.status}",
)
def test_a_feed_goes_on_in_spite_of_what_happens(
    objects: ClusterObjects, feeder: FeederName, fault: Fault
) -> None:
    steady = pair(objects, "stays")
    pair(objects, "goes")
    with follow(objects, feeder).running() as followed:
        followed.steady = steady
        followed.await_scan(objects.api, [objects.namespace])
        await_kopf(followed)
        followed.proxy.faults.append(replace(fault))
        followed.call(followed.proxy.cut_watches)
        objects.delete("Export", "goes")
        until(lambda: followed.proxy.faults == [], 40.0, "all has happened")
        pair(objects, "new")
        followed.await_scan(objects.api, [objects.namespace])


@both
def test_a_server_that_is_not_there_for_a_while_leaves_the_board(
    objects: ClusterObjects, feeder: FeederName
) -> None:
    steady = pair(objects, "stays")
    pair(objects, "goes")
    with follow(objects, feeder).running() as followed:
        followed.steady = steady
        followed.await_scan(objects.api, [objects.namespace])
        await_kopf(followed)
        asked = len(followed.proxy.asked)
        followed.proxy.down = True
        followed.call(followed.proxy.cut_watches)
        objects.delete("Export", "goes")
        until(lambda: len(followed.proxy.asked) > asked + 10, 40.0, "it is asked in vain")
        assert len(followed.entries()) == 4
        followed.proxy.down = False
        pair(objects, "new")
        followed.await_scan(objects.api, [objects.namespace])


# ---- what happens to feeders -----------------------------------------------------------------


def test_a_watch_that_is_silent_is_given_up(objects: ClusterObjects) -> None:
    with follow(objects, "reflector", timing=HASTY).running() as followed:
        followed.proxy.faults.append(Fault(on=("watch",), how="silent", times=2))
        followed.await_synced()
        pair(objects, "first")
        followed.await_scan(objects.api, [objects.namespace])
        until(lambda: followed.health().relists > 2, 20.0, "a list is asked for")


def test_kopf_is_started_again_when_it_is_killed(objects: ClusterObjects) -> None:
    steady = pair(objects, "stays")
    pair(objects, "goes")
    with follow(objects, "kopf").running() as followed:
        followed.steady = steady
        followed.await_scan(objects.api, [objects.namespace])
        await_kopf(followed)
        feeder = followed.feeder
        assert isinstance(feeder, KopfFeeder)
        end_kopf(feeder)
        objects.delete("Export", "goes")
        until(lambda: feeder.starts >= 2, 20.0, "kopf is started again")
        pair(objects, "new")
        followed.await_scan(objects.api, [objects.namespace])


def test_kopf_ends_with_its_parent(objects: ClusterObjects) -> None:
    """A parent that is killed closes nothing but its end of the pipe."""
    access = from_kubeconfig(objects.api.kubeconfig())
    order = ChildConfig(access=access, namespaces=("default",), page=5, server_s=20, call_s=4.0)
    process = subprocess.Popen(
        [sys.executable, "-m", "streambroker_operator.kubernetes.watch.kopf_child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(order.encode() + b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"[]\n"
        process.stdin.close()
        try:
            assert process.wait(10) == 0
        finally:
            process.kill()


def test_a_stranger_is_informed_and_learns_nothing(objects: ClusterObjects) -> None:
    access = from_kubeconfig(objects.api.kubeconfig("stranger"))
    with Followed(access, "reflector", [objects.namespace]).running() as followed:
        until(lambda: "403" in followed.health().last_error, 20.0, "the refusal is told")

        assert not followed.health().synced
        assert [event for event in followed.events if isinstance(event, Synced)] == []
