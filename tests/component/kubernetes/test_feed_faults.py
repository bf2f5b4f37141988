"""Feeders on a real API server behind a proxy that misbehaves, in sequences nobody thought of.

They feed a broker's runtime with ports and rules of patterns; changes of ports are made as by REST,
too. After each step nothing may be gone that is still there; after each pause the board is what the
server holds, and so are the views.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streambroker_core.board.events import Unreadable
from streambroker_core.model import AnyKind, Kind, PortKey
from streambroker_core.wire.manifests.ports import read_manifest
from streambroker_operator import cooperative as long_work
from streambroker_operator.errors import RequestError
from streambroker_operator.kubernetes.client.kubeconfig import from_kubeconfig
from streambroker_operator.runtime import feed
from streambroker_operator.storage.write_options import WriteOptions
from support.clusters.api_server import ApiServer
from support.clusters.informer import FeederName, Followed
from support.clusters.objects import ClusterObjects
from support.clusters.proxy import Fault, What
from support.core.resources import registration
from support.kubernetes.object_store import EVERY_KIND, KINDS, object_of

NAMES = ("a", "b", "c")
LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"

Write = tuple[Literal["write", "touch", "delete"], AnyKind, str, int]
writes = st.tuples(
    st.sampled_from(("write", "write", "touch", "delete")),
    st.sampled_from(EVERY_KIND),
    st.sampled_from(NAMES),
    st.integers(0, 2),
)
CHANGES = ("put", "remove", "register")
Change = tuple[Literal["put", "remove", "register"], Kind, str, int]
changes = st.tuples(
    st.sampled_from(("put", *CHANGES)),
    st.sampled_from(KINDS),
    st.sampled_from(NAMES),
    st.integers(0, 1),
)
asked = st.sampled_from(
    (("watch",), ("watch",), ("list",), ("marks",), ("crd",), ("get",), ("list", "marks", "watch"))
)


def fault(how: str, on: tuple[What, ...], **more: int) -> Fault:
    return Fault(on=on, how=how, **more)  # type: ignore[arg-type]  # drawn from its words


refusals = st.builds(
    lambda on, times, said: fault("refuse", on, times=times, status=said[0], retry_after=said[1]),
    asked,
    st.integers(1, 4),
    st.sampled_from(((500, None), (503, None), (503, 1), (429, 1), (429, None), (502, None))),
)
missing = st.builds(
    lambda times: fault("refuse", ("list", "marks", "watch", "crd"), times=times, status=404),
    st.integers(1, 6),
)
cuts = st.builds(
    lambda on, after: fault("cut", on, after=after), asked, st.sampled_from((0, 30, 700, 3000))
)
others = st.sampled_from(
    (
        ("gone", ("watch",)),
        ("gone", ("watch",)),
        ("stale", ("list",)),
        ("stale", ("marks",)),
        ("stale", ("list", "marks")),
        ("silent", ("watch",)),
        ("slow", ("list", "watch")),
        ("hang", ("crd", "marks", "get")),
    )
).map(lambda words: fault(words[0], words[1]))
faults = st.one_of(refusals, missing, cuts, others)
words = st.sampled_from(("cut", "relist", "sweep", "pause", "pause"))
steps = st.lists(
    st.one_of(writes, writes, changes, changes, faults, faults, words),
    min_size=6,
    max_size=20,
)


def take(objects: ClusterObjects, followed: Followed, write: Write) -> None:
    """Write, and say beforehand what may go because of it.

    Who ever was not to be read may go and come until the board is right again.
    """
    action, kind, name, variant = write
    if action == "touch":
        objects.touch(kind, name, variant)
        return
    found = objects.api.request("GET", objects.path(kind, name))
    known = found.body["metadata"]["uid"] if found.status == 200 else ""
    may_go = action == "delete" or variant == 2
    if may_go:
        followed.call(lambda: followed.steady.discard(known))
    if action == "delete":
        objects.delete(kind, name)
    elif objects.write(kind, name, variant) != known and not may_go:
        now = objects.api.request("GET", objects.path(kind, name)).body["metadata"]["uid"]
        followed.call(lambda: followed.steady.add(now))


async def change(followed: Followed, namespace: str, change: Change) -> str | None:
    """Make a change as by REST; return the uid of what was made by it."""
    action, kind, name, variant = change
    key = PortKey(namespace=namespace, job=name, pe=0, port="p")
    if not followed.board.reader.synced:
        return None
    if action == "register":
        agent = registration(f"grpc+tcp://127.0.0.1:{4711 + variant}", hint=None)
        await followed.runtime.register(
            key.owner, replace(agent, instance=f"{variant:016x}"), "account"
        )
        return None
    if action == "remove":
        known = followed.runtime.store.get(kind, key)
        followed.steady.discard("" if known is None else known.resource.uid)
        await followed.runtime.delete(kind, key)
        return None
    resource = read_manifest(object_of(kind, name, variant, namespace=namespace))
    written = await followed.runtime.put(resource, options=WriteOptions(force=True))
    return written.stored.resource.uid if written.stored.created else None


def make(objects: ClusterObjects, followed: Followed, what: Change) -> None:
    """Make a change as by REST, which may be refused; what it made has to stay."""
    refused = 0
    try:
        made = followed.wait_for(change(followed, objects.namespace, what))
    except RequestError as error:
        made, refused = None, error.status
    assert refused in (0, 404, 409, 422)
    if made is not None:
        followed.call(lambda: followed.steady.add(made))


def play(objects: ClusterObjects, followed: Followed, plan: list[object]) -> None:
    namespaces = [objects.namespace]
    for step in plan:
        if isinstance(step, Fault):
            followed.proxy.faults.append(step)
        elif step == "cut":
            followed.call(followed.proxy.cut_watches)
        elif step in ("relist", "sweep"):
            followed.demand(step)
        elif step == "pause":
            followed.await_scan(objects.api, namespaces)
        else:
            act: Any = make if step[0] in CHANGES else take  # type: ignore[index]
            act(objects, followed, step)
        assert followed.torn == []
    followed.await_scan(objects.api, namespaces)


@pytest.mark.slow
@pytest.mark.parametrize("feeder", ["reflector", "kopf"])
def test_whatever_goes_wrong_nothing_is_torn_down_and_the_board_comes_right(
    api: ApiServer, namespace: str, feeder: FeederName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One feeder lives through all examples, each from where the one before has left it."""
    # Lists are as short here as others are long.
    monkeypatch.setattr(long_work, "TURN_S", -1.0)
    monkeypatch.setattr(feed, "_RESOURCES_PER_TURN", 1)
    objects = ClusterObjects(api, namespace)
    access = from_kubeconfig(api.kubeconfig())
    with Followed(access, feeder, [namespace]).running() as followed:

        @settings(
            max_examples=200 if LONG else 12,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(plan=steps)
        def play_all(plan: list[object]) -> None:
            followed.call(followed.proxy.faults.clear)
            play(objects, followed, plan)

        play_all()


@pytest.mark.parametrize("feeder", ["reflector", "kopf"])
def test_an_import_whose_first_generation_was_never_seen_is_held(
    api: ApiServer, namespace: str, feeder: FeederName
) -> None:
    objects = ClusterObjects(api, namespace)
    uid = objects.write("Import", "b", 0)
    objects.touch("Import", "b", 1)
    objects.write("Import", "b", 2)
    with Followed(from_kubeconfig(api.kubeconfig()), feeder, [namespace]).running() as followed:
        followed.await_scan(api, [namespace])
        entry = followed.entries()[uid]
        assert isinstance(entry, Unreadable)
        assert entry.held
