"""Statuses are written few at a time, not too fast, by the leader only, and until they stand."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from streambroker_operator.kubernetes.client.http_api import Answer, ApiUnreachableError
from streambroker_operator.kubernetes.client.rate_limiter import (
    FIRST_IN_FLIGHT,
    MAX_IN_FLIGHT,
    SLOW_FACTOR,
    WriteRateLimiter,
)
from streambroker_operator.kubernetes.status.conditions import StatusBody
from streambroker_operator.kubernetes.status.writer import Name, StatusWrite, StatusWriter
from support.clusters.calls import true
from support.kubernetes.fake_server import Call, FakeApi
from support.virtual.loop import run


class Source:
    """Wants each status written once."""

    def __init__(self) -> None:
        self.wanted: dict[str, int] = {}
        self.there: dict[str, int] = {}
        self.more: StatusBody = {}

    def build(self, name: Name) -> StatusWrite | None:
        uid = name[1]
        wanted = self.wanted.get(uid)
        if wanted is None or self.there.get(uid) == wanted:
            return None
        status: StatusBody = {"matches": wanted, **self.more}
        return StatusWrite(kind=name[0], namespace="jobs", name=f"r-{uid}", uid=uid, status=status)

    def on_written(self, write: StatusWrite, answer: Mapping[str, Any]) -> None:
        self.there[write.uid] = write.status["matches"]


class Bench:
    def __init__(
        self, *answers: Answer | Exception, delay_s: float = 0.0, per_s: float = 0.0
    ) -> None:
        self.answers = list(answers)
        self.source = Source()
        self.leads = True
        self.remembered: set[Name] = set()
        self.api = FakeApi(self.answer, delay_s)
        self.writer = StatusWriter(
            self.api,
            self.source,
            leads=lambda: self.leads,
            must_write=lambda name: name in self.remembered,
            rate_limiter=WriteRateLimiter(per_s),
        )

    def answer(self, call: Call) -> Answer:
        found = self.answers.pop(0) if self.answers else Answer(status=200)
        if isinstance(found, Exception):
            raise found
        return found

    def want(self, uid: str, value: int = 1, *, urgent: bool = False, live: bool = False) -> None:
        self.source.wanted[uid] = value
        self.writer.offer(("Export", uid), urgent=urgent, live=live)

    async def settled(self) -> float:
        assert await true(lambda: self.writer.is_idle, 600.0)
        return asyncio.get_running_loop().time()

    def run(self, *wanted: str) -> float:
        async def main() -> float:
            for uid in wanted:
                self.want(uid)
            return await self.settled()

        return run(main(), self.writer.run())


def test_a_status_is_applied_by_its_manager() -> None:
    bench = Bench()
    bench.run("a")

    (call,) = bench.api.calls
    assert call.method == "PATCH"
    assert call.path == "/apis/streambroker.io/v1alpha1/namespaces/jobs/exports/r-a/status"
    assert call.query["fieldManager"] == "streambroker-status"
    assert call.body["status"] == {"matches": 1}
    assert "resourceVersion" not in call.body["metadata"]


def test_a_status_is_written_without_a_version_that_the_crd_does_not_declare() -> None:
    refusal: Any = {"message": "…: .status.schemaVersion: field not declared in schema"}
    bench = Bench(Answer(status=500, body=refusal))
    bench.source.more = {"schemaVersion": {"number": 2}}
    bench.run("a")

    statuses = [call.body["status"] for call in bench.api.calls]
    assert statuses == [{"matches": 1, "schemaVersion": {"number": 2}}, {"matches": 1}]
    assert (bench.writer.writes["done"], bench.writer.writes["failed"]) == (1, 0)


def test_a_limited_rate_lets_a_burst_go_at_once_and_the_rest_as_it_says() -> None:
    bench = Bench(per_s=40.0)
    count = 20 + 200

    took = bench.run(*map(str, range(count)))

    assert len(bench.api.calls) == count
    assert 200 / 40.0 <= took <= 200 / 40.0 + 2


def test_ten_thousand_changes_take_one_write_each_within_a_minute() -> None:
    bench = Bench(delay_s=0.02)
    took = bench.run(*map(str, range(10_000)))

    assert took <= 60
    assert len(bench.api.calls) == 10_000
    assert bench.api.most == MAX_IN_FLIGHT


class BusyServer(FakeApi):
    """An API server that takes some requests at a time, and the others after them."""

    def __init__(self, places: int) -> None:
        super().__init__(self.serve)
        self.places = asyncio.Semaphore(places)

    async def serve(self, call: Call) -> Answer:
        async with self.places:
            await asyncio.sleep(0.05)
            return Answer(status=200)


def test_an_api_server_that_makes_requests_wait_gets_few_at_a_time() -> None:
    bench, busy = Bench(), BusyServer(2)
    bench.api = busy
    bench.writer = StatusWriter(busy, bench.source, leads=lambda: True)

    took = bench.run(*map(str, range(1000)))

    assert busy.most <= 2 * SLOW_FACTOR + 2
    assert took <= 1.1 * 1000 * 0.05 / 2


def test_a_server_that_refuses_gets_one_request_at_a_time_until_it_takes_some() -> None:
    bench = Bench(*[Answer(status=429, retry_after_s=1.0)] * 6, delay_s=0.01)
    bench.run(*map(str, range(10)))

    first = bench.api.calls[0].at
    early = [call.at - first for call in bench.api.calls[FIRST_IN_FLIGHT:6]]
    assert early == sorted(set(early))
    assert len(bench.source.there) == 10


def test_what_stands_there_costs_no_request() -> None:
    bench = Bench()
    bench.source.there["a"] = 1

    bench.run("a")

    assert bench.api.calls == []
    assert bench.writer.writes["unchanged"] == 1


def test_the_newest_is_written_once() -> None:
    bench = Bench()

    async def main() -> None:
        for value in range(5):
            bench.want("a", value)
            await asyncio.sleep(0.1)
        await bench.settled()

    run(main(), bench.writer.run())

    assert [call.body["status"]["matches"] for call in bench.api.calls] == [4]


def test_what_changes_while_it_is_written_is_written_again_unasked() -> None:
    bench = Bench(delay_s=0.5)

    async def main() -> None:
        bench.want("a", 1)
        assert await true(lambda: len(bench.api.calls) == 1)
        bench.want("a", 2)
        await bench.settled()

    run(main(), bench.writer.run())

    assert bench.source.there == {"a": 2}


def test_a_replica_that_does_not_lead_writes_only_what_it_alone_remembers() -> None:
    bench = Bench()
    bench.leads, bench.remembered = False, {("Export", "a")}
    bench.run("a", "b")
    assert [call.path.rpartition("/r-")[2] for call in bench.api.calls] == ["a/status"]


def test_refused_resources_come_first() -> None:
    bench = Bench(delay_s=0.1)

    async def main() -> None:
        for uid in map(str, range(100)):
            bench.want(uid)
        await asyncio.sleep(1.0)
        bench.want("bad", urgent=True)
        await bench.settled()

    run(main(), bench.writer.run())

    order = [call.path.split("/")[-2] for call in bench.api.calls]
    assert order.index("r-bad") <= 20


def test_statuses_of_jobs_that_run_come_before_those_that_are_merely_there() -> None:
    bench = Bench(per_s=10.0)

    async def main() -> None:
        for uid in map(str, range(1000)):
            bench.want(uid)
        await asyncio.sleep(3.0)
        bench.want("live", live=True)
        assert await true(lambda: "live" in bench.source.there, 2.0)

    run(main(), bench.writer.run())

    assert len(bench.api.calls) < 100


@pytest.mark.parametrize(
    "failure",
    [
        Answer(status=409),
        Answer(status=429, retry_after_s=3.0),
        Answer(status=500),
        Answer(status=503),
        ApiUnreachableError("connection refused"),
    ],
)
def test_what_failed_is_tried_again(failure: Answer | Exception) -> None:
    bench = Bench(failure, failure)
    bench.run("a")

    assert bench.source.there == {"a": 1}
    assert len(bench.api.calls) == 3
    assert bench.writer.writes["conflict"] + bench.writer.writes["failed"] == 2
    first, second, third = (call.at for call in bench.api.calls)
    assert third - second > 0.4
    if isinstance(failure, Answer) and failure.retry_after_s:
        assert second - first >= failure.retry_after_s


def test_a_server_in_trouble_is_left_alone_by_all() -> None:
    bench = Bench(*[Answer(status=429, retry_after_s=5.0)] * FIRST_IN_FLIGHT, delay_s=0.01)
    bench.run(*map(str, range(50)))

    times = [call.at for call in bench.api.calls]
    assert len([at for at in times if at < times[0] + 5.0]) == FIRST_IN_FLIGHT


@pytest.mark.parametrize("status", [404, 400, 403, 422])
def test_what_can_never_be_written_is_dropped(status: int) -> None:
    bench = Bench(Answer(status=status, body={"message": "no"}))
    bench.run("a")

    assert len(bench.api.calls) == 1
    figures = bench.writer.writes
    assert (figures["missing"], figures["refused"]) == ((1, 0) if status == 404 else (0, 1))


def test_refusals_in_one_namespace_are_counted_and_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(*[Answer(status=403, body={"message": "no"})] * 2000)
    bench.run(*map(str, range(2000)))

    assert bench.writer.writes["refused"] == 2000
    assert len(caplog.messages) == 1


def test_who_does_not_lead_writes_nothing() -> None:
    bench = Bench()
    bench.leads = False
    bench.run("a")

    assert bench.api.calls == []


def test_who_stops_leading_writes_nothing_more() -> None:
    bench = Bench(per_s=40.0)

    async def main() -> None:
        for uid in map(str, range(120)):
            bench.want(uid)
        await asyncio.sleep(1.5)
        bench.leads = False
        bench.writer.drop_all()
        before = len(bench.api.calls)
        await asyncio.sleep(10)
        assert len(bench.api.calls) == before

    run(main(), bench.writer.run())

    assert 20 <= len(bench.api.calls) < 120


def test_what_waits_when_leading_ends_is_not_written() -> None:
    bench = Bench()

    async def main() -> None:
        bench.want("a")
        bench.leads = False
        await bench.settled()

    run(main(), bench.writer.run())

    assert bench.api.calls == []


def test_a_resource_that_went_meanwhile_is_not_written() -> None:
    bench = Bench()

    async def main() -> None:
        bench.want("a")
        del bench.source.wanted["a"]
        await bench.settled()

    run(main(), bench.writer.run())

    assert bench.api.calls == []


def test_a_source_that_does_not_take_in_what_was_written_stops_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()

    def broken(write: StatusWrite, answer: Mapping[str, Any]) -> None:
        bench.source.there[write.uid] = write.status["matches"]
        raise ZeroDivisionError

    bench.source.on_written = broken  # type: ignore[method-assign]

    async def main() -> None:
        for value in (1, 2):
            bench.want("a", value)
            await bench.settled()

    run(main(), bench.writer.run())

    assert len(bench.api.calls) == 2
    assert "cannot process the answer" in caplog.text


def test_a_source_that_fails_on_one_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    draw = bench.source.build

    def broken(name: Name) -> StatusWrite | None:
        if name[1] == "bad":
            raise ZeroDivisionError
        return draw(name)

    bench.source.build = broken  # type: ignore[method-assign]
    bench.run("bad", "good")

    assert bench.source.there == {"good": 1}
    assert "cannot build the status" in caplog.text
