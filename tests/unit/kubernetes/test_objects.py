"""What the API server's refusals and silences come to, which a real one seldom shows."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from streambroker_core.board import Board, ImportApplied
from streambroker_operator.errors import RequestError, StoreError
from streambroker_operator.kubernetes.apply.port_store import KubernetesStore, read_secret
from streambroker_operator.kubernetes.client.documents import Document
from streambroker_operator.kubernetes.client.http_api import Answer, ApiUnreachableError
from streambroker_operator.kubernetes.client.managed_fields import AGENT, API
from streambroker_operator.kubernetes.client.objects import Objects
from streambroker_operator.kubernetes.replicas.agent_endpoints import agent_status
from streambroker_operator.storage.write_options import WriteOptions
from support.core.resources import board_of, import_of, pe, registration
from support.kubernetes.fake_server import Api, Call

ALERTS = replace(import_of("alerts/trades", uid="i", filter="price > 1.0"), name="alerts")
CHANGED = replace(ALERTS, filter="price > 2.0")
STALE = Answer(status=409, body={"message": "the object has been modified"})


@dataclass
class Scripted(Api):
    """An API server that says what it was told to say, and holds one Import."""

    answers: list[Answer | Exception] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)
    queries: list[Mapping[str, str]] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)
    generation: int = 1
    uid: str = "i"
    uids: list[str] = field(default_factory=list)
    status: Any = None

    async def take(self, call: Call) -> Answer:
        self.asked.append((call.method, call.path))
        if call.method == "GET" and call.path.endswith("/alerts"):
            self.uid = self.uids.pop(0) if self.uids else self.uid
            return Answer(status=200, body=self.live())
        self.queries.append(call.query)
        self.bodies.append(call.body)
        found = self.answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def live(self) -> Any:
        return {
            "apiVersion": "streambroker.io/v1alpha1",
            "kind": "Import",
            "metadata": {
                "name": "alerts",
                "namespace": "default",
                "uid": self.uid,
                "generation": self.generation,
                "resourceVersion": "12",
            },
            "spec": {
                "job": "alerts",
                "port": "trades",
                "subscription": 'kind == "trade"',
                "filter": "price > 1.0",
            },
            **({} if self.status is None else {"status": self.status}),
        }

    def done(self) -> Answer:
        return Answer(status=200, body=self.live())


def store_of(api: Scripted, board: Board | None = None) -> KubernetesStore:
    filled = board_of(ALERTS) if board is None else board
    return KubernetesStore(Objects(api), filled.reader, secret=b"s" * 32)


def failure(status: int, message: str = "no", **more: Any) -> Answer:
    body: Any = {"kind": "Status", "message": message, **more}
    return Answer(status=status, body=body, retry_after_s=3.0)


async def refused(api: Scripted) -> RequestError:
    with pytest.raises(RequestError) as caught:
        await store_of(api).put(CHANGED, touched=(("filter",),))
    return caught.value


async def test_what_changed_meanwhile_is_read_again_up_to_three_times() -> None:
    api = Scripted()
    api.answers = [STALE, STALE, STALE, api.done()]
    stored = await store_of(api).put(CHANGED, touched=(("filter",),))
    assert stored.changed
    assert [method for method, _ in api.asked] == ["GET", "PATCH"] * 4
    again = Scripted(answers=[STALE] * 9)
    error = await refused(again)
    assert (error.status, error.code) == (503, "ChangedMeanwhile")
    assert len(again.answers) == 5


async def test_what_is_written_is_counted_by_what_came_of_it() -> None:
    api = Scripted()
    objects = Objects(api)
    store = KubernetesStore(objects, board_of(ALERTS).reader, secret=b"s" * 32)
    api.answers = [STALE, api.done()]
    await store.put(CHANGED, touched=(("filter",),))
    for answer in (failure(403), failure(503), ApiUnreachableError("gone")):
        api.answers = [answer]
        with pytest.raises(RequestError):
            await store.put(CHANGED, touched=(("filter",),))

    assert objects.writes == {
        ("spec", "conflict"): 1,
        ("spec", "done"): 1,
        ("spec", "refused"): 1,
        ("spec", "failed"): 2,
    }


async def test_an_agent_that_registers_writes_a_status() -> None:
    api = Scripted()
    objects = Objects(api)
    store = KubernetesStore(objects, board_of(ALERTS).reader, secret=b"s" * 32)
    api.answers = [api.done()]
    await store.register(ALERTS.key.owner, registration())

    assert objects.writes == {("status", "done"): 1}


async def test_the_callers_condition_is_looked_at_before_each_attempt() -> None:
    api = Scripted()
    api.answers = [STALE, api.done()]
    seen: list[str | None] = []

    def check(current: str | None) -> None:
        seen.append(current)
        api.generation = 2
        if current != "i.1":
            raise RequestError(412, "ConditionFailed", "it is another one now")

    with pytest.raises(RequestError) as caught:
        await store_of(api).put(CHANGED, touched=(("filter",),), options=WriteOptions(check=check))
    assert caught.value.status == 412
    assert seen == ["i.1", "i.2"]
    assert [method for method, _ in api.asked].count("PATCH") == 1


async def test_a_write_states_the_very_object_strictly_and_without_force() -> None:
    api = Scripted()
    api.answers = [api.done()]
    await store_of(api).put(CHANGED, touched=(("filter",),))
    assert api.queries == [{"fieldManager": API, "fieldValidation": "Strict"}]
    assert api.bodies[0]["metadata"] == {
        "name": "alerts",
        "namespace": "default",
        "uid": "i",
        "resourceVersion": "12",
    }
    assert api.bodies[0]["spec"] == {"filter": "price > 2.0"}


async def test_what_is_as_it_should_be_is_not_written() -> None:
    api = Scripted()
    stored = await store_of(api).put(ALERTS)
    assert not stored.changed
    assert [method for method, _ in api.asked] == ["GET"]


async def test_a_write_without_an_answer_may_have_been_done() -> None:
    error = await refused(Scripted(answers=[ApiUnreachableError("refused")]))
    assert (error.status, error.code, error.headers["Retry-After"]) == (503, "ApiServerAway", "5")
    assert "It may have been done" in str(error)
    assert "Routes stay as they are." in str(error)


@pytest.mark.parametrize(
    ("answer", "status", "code"),
    [
        (failure(429), 503, "ApiServerAway"),
        (failure(503), 503, "ApiServerAway"),
        (failure(401), 503, "ApiServerAway"),
        (failure(404), 503, "ApiServerAway"),  # the kind is not there: its definition is going
        (failure(403), 403, "NotPermitted"),
        (failure(422), 422, "ResourceInvalid"),
        (failure(405), 502, "ResourceInvalid"),
        (Answer(status=200), 503, "ApiServerAway"),
    ],
)
async def test_a_refusal_says_who_has_to_do_what(answer: Answer, status: int, code: str) -> None:
    error = await refused(Scripted(answers=[answer]))
    assert (error.status, error.code) == (status, code)
    if answer.status in (429, 503):
        assert error.headers["Retry-After"] == "3"


async def test_an_object_that_went_meanwhile_is_looked_for_again() -> None:
    api = Scripted()
    api.answers = [failure(404, details={"name": "alerts"}), api.done()]
    assert (await store_of(api).put(CHANGED, touched=(("filter",),))).changed


async def test_changes_of_one_object_by_this_process_wait_for_each_other() -> None:
    api = Scripted()
    api.answers = [api.done()] * 20
    store = store_of(api)
    await asyncio.gather(*(store.put(CHANGED, touched=(("filter",),)) for _ in range(20)))
    assert [method for method, _ in api.asked] == ["GET", "PATCH"] * 20


async def test_a_status_goes_to_the_resource_it_was_meant_for_and_to_no_successor() -> None:
    api = Scripted(uid="another")
    store = store_of(api)
    await store.register(pe("alerts"), registration())
    assert [method for method, _ in api.asked] == ["GET"]
    assert store.pes()[0].registration == registration()


async def test_an_agent_is_written_into_the_status_once() -> None:
    api = Scripted()
    wanted = {
        "endpoint": {
            "instance": "0123456789abcdef",
            "location": "grpc+tcp://127.0.0.1:4711",
            "hint": "127.0.0.1:9",
        },
        "serviceAccount": "spark",
    }
    api.status = wanted
    api.answers = [api.done()]
    api.status = None
    store = store_of(api)
    version = await store.register(pe("alerts"), registration(), "spark")
    assert version == 12
    assert api.asked[-1][1].endswith("/imports/alerts/status")
    assert api.bodies[0]["status"] == wanted
    assert api.queries[0]["fieldManager"] == AGENT
    assert await store.register(pe("alerts"), registration(), "spark") == version
    assert len(api.asked) == 2
    assert store.owner(pe("alerts")) == "spark"


async def test_a_job_of_another_account_is_refused_whatever_wrote_that() -> None:
    api = Scripted(status={"serviceAccount": "spark"})
    store = store_of(api)
    for _ in range(2):
        with pytest.raises(RequestError) as caught:
            await store.register(pe("alerts"), registration(), "intruder")
        assert (caught.value.status, caught.value.code) == (403, "NotYours")
    assert api.bodies == []


async def test_a_registration_that_reached_only_some_of_its_resources_is_reported_by_the_feed() -> (
    None
):
    more = replace(import_of("alerts/more", uid="j"), name="alerts")
    api = Scripted()
    store = store_of(api, board_of(ALERTS, more))
    api.status = agent_status(registration(), None)
    written = api.done()
    api.status, api.uid = None, "i"
    api.answers = [written, failure(503)]
    api.uids = ["i", "j"]
    with pytest.raises(RequestError):
        await store.register(pe("alerts"), registration())
    assert store.pes() == []
    agent = store.registrations.observe(written.body)
    assert agent is not None
    assert agent.registration == registration()


async def test_a_resource_that_comes_after_its_agent_learns_of_it() -> None:
    api = Scripted()
    board = board_of()
    store = store_of(api, board)
    await store.register(pe("alerts"), registration())
    assert api.asked == []
    board.handle(ImportApplied(import_=ALERTS, version=12))
    store.registrations.observe(api.live())
    api.answers = [failure(503), api.done()]
    for _ in range(3):
        await store.registrations.announce()
    assert [method for method, _ in api.asked] == ["GET", "PATCH"] * 2


class Refusing(Scripted):
    """Refuses every write of the Import ``alerts``, and takes those of ``zebra``."""

    def one(self, name: str, status: Any = None) -> Any:
        live = self.live()
        live["metadata"] |= {"name": name, "uid": name}
        live["spec"] |= {"job": name}
        return live if status is None else {**live, "status": status}

    async def take(self, call: Call) -> Answer:
        self.asked.append((call.method, call.path))
        name = "alerts" if "/alerts" in call.path else "zebra"
        if call.method == "GET":
            return Answer(status=200, body=self.one(name))
        if name == "alerts":
            return failure(403)
        return Answer(status=200, body=self.one(name, call.body["status"]))


async def test_a_resource_that_cannot_learn_of_its_agent_holds_no_other_up() -> None:
    api, board = Refusing(), board_of()
    store = store_of(api, board)
    for job in ("alerts", "zebra"):
        await store.register(pe(job), registration())
        resource = replace(import_of(f"{job}/trades", uid=job), name=job)
        board.handle(ImportApplied(import_=resource, version=12))
        store.registrations.observe(api.one(job))
    for _ in range(20):
        await store.registrations.announce()

    written = [path for method, path in api.asked if method == "PATCH"]
    assert sum("/zebra/" in path for path in written) == 1
    assert sum("/alerts/" in path for path in written) == 5


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (failure(404), "does not exist"),
        (Answer(status=200, body={"metadata": {}, "data": {"key": "*"}}), "not base64"),
        (Answer(status=200, body={"metadata": {}, "data": {"key": "AAAA"}}), "has 3 bytes"),
        (Answer(status=200, body={"metadata": {}}), "has 0 bytes"),
    ],
)
async def test_a_secret_that_cannot_be_used_is_named(answer: Answer, words: str) -> None:
    with pytest.raises(StoreError) as caught:
        await read_secret(Objects(Scripted(answers=[answer])), "streams", "broker")
    assert "streams/broker" in str(caught.value)
    assert words in str(caught.value)


async def test_a_missing_secret_is_made_and_one_that_another_replica_made_is_taken() -> None:
    """Of two that make it at the same time one gets 409, and both read the same."""
    body: Document = {"metadata": {}, "data": {"key": base64.b64encode(b"k" * 32).decode()}}
    there = Answer(status=200, body=body)
    for made in (Answer(status=201, body={"metadata": {}}), failure(409)):
        api = Scripted(answers=[failure(404), made, there])
        assert await read_secret(Objects(api), "streams", "broker", create=True) == b"k" * 32
        assert [method for method, _ in api.asked] == ["GET", "POST", "GET"]


async def test_a_secret_that_may_not_be_made_is_an_error() -> None:
    api = Scripted(answers=[failure(404), failure(403)])
    with pytest.raises(RequestError) as caught:
        await read_secret(Objects(api), "streams", "broker", create=True)
    assert "create the Secret streams/broker" in str(caught.value)


async def test_the_secret_is_what_the_kubernetes_secret_holds() -> None:
    body: Document = {"metadata": {}, "data": {"key": base64.b64encode(b"k" * 32).decode()}}
    api = Scripted(answers=[Answer(status=200, body=body)])
    assert await read_secret(Objects(api), "streams", "broker") == b"k" * 32
    assert api.asked == [("GET", "/api/v1/namespaces/streams/secrets/broker")]
