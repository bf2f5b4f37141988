"""The Lease of a process: kept, lost in time, released, and never a reason to stop."""

from __future__ import annotations

import asyncio

import pytest

from streambroker_operator.kubernetes.client.http_api import Answer
from streambroker_operator.kubernetes.replicas.lease import Lease, new_identity
from support.kubernetes.fake_server import FakeApi, LeaseServer
from support.virtual.loop import run


class Bench:
    """Candidates before one API server."""

    def __init__(self) -> None:
        self.server = LeaseServer()
        self.api = FakeApi(self.server.handle)
        self.reported: list[tuple[str, bool, float]] = []

    def candidate(self, name: str) -> Lease:
        def changed(leads: bool) -> None:
            self.reported.append((name, leads, asyncio.get_running_loop().time()))

        return Lease(
            self.api,
            namespace="streams",
            name="streambroker",
            identity=new_identity(name),
            on_change=changed,
        )

    def leaders(self) -> list[tuple[str, bool]]:
        return [(name, leads) for name, leads, _ in self.reported]


def test_the_first_makes_the_lease_and_keeps_it() -> None:
    bench = Bench()
    lease = bench.candidate("a")

    async def main() -> None:
        await asyncio.sleep(100)
        assert lease.leads

    run(main(), lease.run())

    assert bench.leaders() == [("a", True)]
    methods = [call.method for call in bench.api.calls]
    assert methods[:2] == ["GET", "POST"]
    assert set(methods[2:]) == {"PUT"}
    assert 45 <= len(methods) <= 55


def test_the_second_waits_and_only_reads() -> None:
    bench = Bench()
    first, second = bench.candidate("a"), bench.candidate("b")

    async def main() -> None:
        await asyncio.sleep(100)

    async def later() -> None:
        await asyncio.sleep(1)
        await second.run()

    run(main(), first.run(), later())

    assert bench.leaders() == [("a", True)]
    assert second.holder.startswith("a_")
    assert not second.writes


def test_a_server_that_is_away_ends_leading_and_nothing_else() -> None:
    bench = Bench()
    lease = bench.candidate("a")

    async def main() -> None:
        await asyncio.sleep(9)
        bench.server.down = True
        await asyncio.sleep(60)
        assert not lease.leads
        bench.server.down = False
        await asyncio.sleep(5)
        assert lease.leads

    run(main(), lease.run())

    assert bench.leaders() == [("a", True), ("a", False), ("a", True)]
    assert 17.0 <= bench.reported[1][2] <= 19.0


def test_a_request_that_hangs_ends_leading_in_time() -> None:
    bench = Bench()
    lease = bench.candidate("a")

    async def main() -> None:
        await asyncio.sleep(9)
        bench.server.hangs = asyncio.Event()
        await asyncio.sleep(60)

    run(main(), lease.run())

    assert bench.leaders() == [("a", True), ("a", False)]
    assert 17.0 <= bench.reported[1][2] <= 19.0


def test_an_answer_that_got_lost_costs_one_turn() -> None:
    bench = Bench()
    lease = bench.candidate("a")

    async def main() -> None:
        await asyncio.sleep(9)
        bench.server.lost = True
        await asyncio.sleep(3)
        bench.server.lost = False
        await asyncio.sleep(30)

    run(main(), lease.run())

    assert bench.leaders() == [("a", True)]


def test_a_lease_that_was_deleted_is_made_again() -> None:
    bench = Bench()
    lease = bench.candidate("a")

    async def main() -> None:
        await asyncio.sleep(9)
        bench.server.lease = None
        await asyncio.sleep(9)
        assert lease.leads

    run(main(), lease.run())

    assert bench.server.lease is not None


def test_who_ends_in_order_lets_others_lead_within_three_seconds() -> None:
    bench = Bench()
    first, second = bench.candidate("a"), bench.candidate("b")

    async def main() -> float:
        one = asyncio.ensure_future(first.run())
        await asyncio.sleep(1)
        two = asyncio.ensure_future(second.run())
        await asyncio.sleep(20)
        one.cancel()
        await first.release()
        released = asyncio.get_running_loop().time()
        await asyncio.sleep(5)
        two.cancel()
        return released

    released = run(main())

    assert bench.leaders() == [("a", True), ("a", False), ("b", True)]
    assert bench.reported[2][2] - released <= 3.0
    assert bench.server.lease is not None
    assert bench.server.lease["leaseTransitions"] == 1


@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_who_is_killed_is_followed_within_sixteen_seconds_at_the_worst(
    monkeypatch: pytest.MonkeyPatch, spread: float
) -> None:
    monkeypatch.setattr("random.random", lambda: spread)

    def took(begins: float, lives: float) -> float:
        bench = Bench()
        first, second = bench.candidate("a"), bench.candidate("b")

        async def main() -> float:
            one = asyncio.ensure_future(first.run())
            await asyncio.sleep(begins)
            two = asyncio.ensure_future(second.run())
            await asyncio.sleep(lives)
            one.cancel()
            killed = asyncio.get_running_loop().time()
            await asyncio.sleep(30)
            two.cancel()
            return killed

        killed = run(main())
        assert ("b", True) in bench.leaders()
        return bench.reported[-1][2] - killed

    found = [took(0.1 * begins, 20.05 + 0.3 * n) for begins in range(1, 21) for n in range(8)]

    # Half a second is left for the requests.
    assert 11.0 <= min(found) <= max(found) <= 15.5


def test_who_does_not_know_what_became_of_a_renewal_releases_all_the_same() -> None:
    bench = Bench()
    lease = bench.candidate("a")

    async def main() -> None:
        task = asyncio.ensure_future(lease.run())
        await asyncio.sleep(9)
        bench.server.lost = True
        await asyncio.sleep(1.5)
        task.cancel()
        bench.server.lost = False
        await lease.release()

    run(main())

    assert bench.server.lease is not None
    assert bench.server.lease["holderIdentity"] == ""


def test_a_renewal_that_is_served_late_does_not_keep_the_lease_from_being_released() -> None:
    bench = Bench()
    lease = bench.candidate("a")

    async def main() -> None:
        task = asyncio.ensure_future(lease.run())
        await asyncio.sleep(9)
        task.cancel()
        bench.server.late = True
        await lease.release()

    run(main())

    assert bench.server.lease is not None
    assert bench.server.lease["holderIdentity"] == ""


def test_a_server_that_is_away_does_not_keep_a_process_from_ending() -> None:
    bench = Bench()
    lease = bench.candidate("a")

    async def main() -> float:
        task = asyncio.ensure_future(lease.run())
        await asyncio.sleep(9)
        task.cancel()
        bench.server.hangs = asyncio.Event()
        begun = asyncio.get_running_loop().time()
        await lease.release()
        return asyncio.get_running_loop().time() - begun

    assert run(main()) <= 2.1
    assert bench.leaders()[-1] == ("a", False)


def test_what_is_no_lease_is_never_written_over() -> None:
    api = FakeApi(lambda call: Answer(status=200, body={"kind": "Status"}))
    lease = Lease(api, namespace="streams", name="streambroker", identity="a")

    async def main() -> bool:
        await asyncio.sleep(60)
        return lease.leads

    assert not run(main(), lease.run())
    assert {call.method for call in api.calls} == {"GET"}


def test_a_refusal_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    api = FakeApi(lambda call: Answer(status=403, body={"message": "forbidden"}))
    lease = Lease(api, namespace="streams", name="streambroker", identity="a")

    async def main() -> bool:
        await asyncio.sleep(60)
        return lease.leads

    assert not run(main(), lease.run())

    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_two_processes_of_one_host_are_distinguished() -> None:
    assert new_identity("broker-0") != new_identity("broker-0")
