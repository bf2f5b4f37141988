"""How much one caller may ask for, and how it is told when that was too much."""

from __future__ import annotations

import asyncio
import dataclasses
import gzip
import json
import re
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streambroker_operator.broker import Broker
from streambroker_operator.rest.guard.rate_limits import RateLimits, read_limit
from streambroker_operator.security.token_buckets import MAX_BUCKETS, TokenBuckets
from support.brokers.brokers import EXPORT, Rest, running_broker

X = "/job/feed/pe/0/export/trades"
PE = "/job/feed/pe/0"
AGENT = {"instance": "0123456789abcdef", "location": "grpc+tcp://127.0.0.1:4711", "hint": None}
TOKEN = "0123456789abcdef0123456789abcdef"
FEW = RateLimits(writes_per_s=0.01, write_burst=3)


async def test_one_change_too_many_is_refused_and_not_made(tmp_path: Path) -> None:
    async with running_broker(tmp_path / "broker.db", FEW) as (_, client):
        answers = [await client("PUT", f"{X}{n}", EXPORT) for n in range(4)]
        made = (await client("GET", "/exports")).body["items"]

    assert [answer.status for answer in answers] == [201, 201, 201, 429]
    assert answers[3].code == "TooManyRequests"
    assert 1 <= int(answers[3].headers["Retry-After"]) <= 100
    assert len(made) == 3


async def test_what_agents_repeat_and_what_is_read_is_not_counted_as_changes(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path / "broker.db", FEW) as (_, client):
        for _ in range(10):
            assert (await client("PUT", PE, AGENT)).status == 200
            assert (await client("GET", PE)).status == 200


async def test_agents_that_are_new_or_say_something_else_are_counted_as_changes(
    tmp_path: Path,
) -> None:
    moved = {**AGENT, "location": "grpc+tcp://127.0.0.1:4712"}
    async with running_broker(tmp_path / "broker.db", FEW) as (_, client):
        new = [(await client("PUT", f"/job/feed/pe/{n}", AGENT)).status for n in range(4)]
        other = await client("PUT", PE, moved)
        same = await client("PUT", PE, AGENT)
        pes = (await client("GET", "/pes")).body["items"]

    assert new == [200, 200, 200, 429]
    assert (other.status, other.code, same.status) == (429, "TooManyRequests", 200)
    assert [(found["pe"], found["location"]) for found in pes] == [
        (n, AGENT["location"]) for n in range(3)
    ]


async def test_new_agents_of_one_job_are_counted_from_however_many_addresses(
    tmp_path: Path,
) -> None:
    async with from_both_addresses(tmp_path, admins(tmp_path)) as (first, second):
        mine = [(await first("PUT", f"/job/a/pe/{n}", AGENT)).status for n in range(2)]
        other = [(await second("PUT", f"/job/a/pe/{n}", AGENT)).status for n in (2, 3)]

    assert (mine, other) == ([200, 200], [200, 429])


async def test_a_whole_cluster_may_start_behind_one_address(tmp_path: Path) -> None:
    limits = RateLimits(writes_per_s=0.01, write_burst=2)
    async with running_broker(tmp_path / "broker.db", limits) as (_, client):
        began = [(await client("PUT", f"/job/j{n}/pe/0", AGENT)).status for n in range(20)]

    assert began == [200] * 20


async def test_a_job_has_so_many_pes_and_a_pe_so_many_ports(tmp_path: Path) -> None:
    limits = RateLimits(pes=2, ports=2)
    async with running_broker(tmp_path / "broker.db", limits) as (_, client):
        for n in range(2):
            assert (await client("PUT", f"/job/feed/pe/{n}", AGENT)).status == 200
            assert (await client("PUT", f"{X}{n}", EXPORT)).status == 201
        refused = [
            await client("PUT", "/job/feed/pe/2", AGENT),
            await client("PUT", "/job/feed/pe/2/export/p", EXPORT),
            await client("PUT", f"{X}2", EXPORT),
        ]
        third = {"apiVersion": "streambroker.io/v1alpha1", "kind": "Import"}
        many = [
            {**third, "spec": {"job": "feed", "port": f"i{n}", "subscription": "a"}}
            for n in range(3)
        ]
        refused.append(await client("POST", "/apply", {"resources": many}))
        changed = await client("PUT", f"{X}1", {**EXPORT, "allowFilter": False})
        other = await client("PUT", f"{PE}/import/p", {"subscription": "a"})
        known = (await client("GET", "/pes")).body["items"]

    assert {(answer.status, answer.code) for answer in refused} == {(422, "LimitReached")}
    assert (changed.status, other.status, len(known)) == (200, 201, 2)


async def test_reads_have_a_limit_of_their_own(tmp_path: Path) -> None:
    limits = RateLimits(reads_per_s=0.01, read_burst=2)
    async with running_broker(tmp_path / "broker.db", limits) as (_, client):
        answers = [(await client("GET", "/pes")).status for _ in range(3)]
        written = await client("PUT", X, EXPORT)

    assert (answers, written.status) == ([200, 200, 429], 201)


async def test_agents_ask_for_views_as_often_as_the_broker_can_answer(tmp_path: Path) -> None:
    async with running_broker(tmp_path / "broker.db") as (_, client):
        await client("PUT", PE, AGENT)
        asked = await asyncio.gather(*(client("GET", PE) for _ in range(450)))

    assert {answer.status for answer in asked} == {200}


async def test_a_caller_is_refused_no_more_once_it_has_waited(tmp_path: Path) -> None:
    # So slow that no pause of a busy machine between two requests is waiting enough.
    limits = RateLimits(writes_per_s=0.25, write_burst=1)
    async with running_broker(tmp_path / "broker.db", limits) as (_, client):
        await client("PUT", X, EXPORT)
        answers = [(await client("PUT", X, EXPORT)).status]
        while answers[-1] == 429:
            answers.append((await client("PUT", X, EXPORT)).status)

    assert (answers[0], answers[-1]) == (429, 200)


@asynccontextmanager
async def from_both_addresses(
    folder: Path, tokens: Path | None, limits: RateLimits = FEW
) -> AsyncIterator[tuple[Rest, Rest]]:
    """Two clients of one broker that has a token file or none, each with its own address."""
    broker = Broker(db=folder / "broker.db", port=0, tokens=tokens, limits=limits)
    await broker.start()
    headers = {} if tokens is None else {"Authorization": f"Bearer {TOKEN}"}
    elsewhere = aiohttp.TCPConnector(local_addr=("127.0.0.2", 0))
    try:
        async with (
            aiohttp.ClientSession(headers=headers) as first,
            aiohttp.ClientSession(headers=headers, connector=elsewhere) as second,
        ):
            yield Rest(broker.url, first), Rest(broker.url, second)
    finally:
        await broker.stop()


async def test_without_tokens_each_address_is_a_caller_of_its_own(tmp_path: Path) -> None:
    async with from_both_addresses(tmp_path, None) as (first, second):
        mine = [(await first("PUT", X, EXPORT)).status for _ in range(4)]
        other = [(await second("PUT", X, EXPORT)).status for _ in range(4)]

    assert (mine, other) == ([201, 200, 200, 429], [200, 200, 200, 429])


async def test_one_token_is_one_caller_from_however_many_addresses(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text(f"tokens: [{{name: ops, token: {TOKEN}, role: admin}}]")
    tokens.chmod(0o600)
    async with from_both_addresses(tmp_path, tokens) as (first, second):
        mine = [(await first("PUT", X, EXPORT)).status for _ in range(2)]
        other = [(await second("PUT", X, EXPORT)).status for _ in range(2)]

    assert (mine, other) == ([201, 200], [200, 429])


async def test_guessing_tokens_is_limited(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text(f"tokens: [{{name: ops, token: {TOKEN}, role: admin}}]")
    tokens.chmod(0o600)
    limits = RateLimits(refusals_per_s=0.01, refusal_burst=3, read_burst=6)
    async with from_both_addresses(tmp_path, tokens, limits) as (first, _):
        shown = [f"Bearer {number:032}" for number in range(10)]
        guesses = [await first("PUT", X, EXPORT, Authorization=token) for token in shown]
        known = [await first("GET", "/exports") for _ in range(3)]

    assert [guess.status for guess in guesses] == [401, 401, 401] + 7 * [429]
    assert [answer.status for answer in known] == [200, 200, 200]


def admins(folder: Path) -> Path:
    """Write a token file with one admin."""
    tokens = folder / "tokens.yaml"
    tokens.write_text(f"tokens: [{{name: ops, token: {TOKEN}, role: admin}}]")
    tokens.chmod(0o600)
    return tokens


@asynccontextmanager
async def followed(client: Rest) -> AsyncIterator[int]:
    """Ask for events and keep the connection; the status that came."""
    async with client.session.get(f"{client.url}/api/subscriptions/events") as answer:
        if answer.status == 200:
            assert await answer.content.readline()
        yield answer.status


@pytest.mark.parametrize(("with_tokens", "elsewhere"), [(False, 200), (True, 429)])
async def test_one_caller_does_not_take_the_places_of_all_who_follow(
    tmp_path: Path, with_tokens: bool, elsewhere: int
) -> None:
    limits = RateLimits(followers_each=2, keepalive_s=0.01)
    tokens = admins(tmp_path) if with_tokens else None
    async with from_both_addresses(tmp_path, tokens, limits) as (first, second):
        async with (
            followed(first) as one,
            followed(first) as two,
            followed(first) as three,
            followed(second) as other,
        ):
            seen = [one, two, three, other]
        again = 429
        while again == 429:
            async with followed(first) as again:
                pass

    assert seen == [200, 200, 429, elsewhere]
    assert again == 200


@pytest.mark.parametrize(("with_tokens", "elsewhere"), [(False, 304), (True, 429)])
async def test_one_caller_waits_for_only_so_many_views(
    tmp_path: Path, with_tokens: bool, elsewhere: int
) -> None:
    tokens = admins(tmp_path) if with_tokens else None
    async with from_both_addresses(tmp_path, tokens, RateLimits(polls_each=2)) as (first, second):
        await first("PUT", PE, AGENT)
        tag = (await first("GET", PE)).headers["ETag"]
        ended = asyncio.as_completed(
            [first("GET", PE + "?wait=60s", If_None_Match=tag) for _ in range(5)]
        )
        refused = [(await next(ended)).code for _ in range(3)]
        other = (await second("GET", PE + "?wait=1ms", If_None_Match=tag)).status
        at_once = [(await first("GET", PE + way)).status for way in ("", "?wait=60s")]
        await first("PUT", X, EXPORT)
        answered = [(await next(ended)).status for _ in range(2)]
        new = (await first("GET", PE)).headers["ETag"]
        again = (await first("GET", PE + "?wait=1ms", If_None_Match=new)).status

    assert refused == ["TooManyRequests"] * 3
    assert (other, at_once) == (elsewhere, [200, 200])
    assert (answered, again) == ([200, 200], 304)


def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    bucket = TokenBuckets(10.0, 2)

    assert [bucket.take("a", 0.0) for _ in range(3)] == [0.0, 0.0, pytest.approx(0.1)]
    assert bucket.take("b", 0.0) == 0.0
    assert bucket.take("a", 0.05) == pytest.approx(0.05)
    assert bucket.take("a", 0.11) == 0.0
    assert [bucket.take("a", 100.0) for _ in range(3)][1:] == [0.0, pytest.approx(0.1)]


@given(
    steps=st.lists(st.floats(0.0, 2.0), min_size=1, max_size=80),
    per_s=st.floats(0.5, 50.0),
    burst=st.integers(1, 20),
)
def test_nobody_gets_more_than_burst_and_rate_together(
    steps: list[float], per_s: float, burst: int
) -> None:
    bucket, now, got = TokenBuckets(per_s, burst), 0.0, 0
    for step in steps:
        now += step
        wait = bucket.take("a", now)
        got += wait == 0.0
        assert 0.0 <= wait <= 1.0 / per_s

    assert got <= burst + now * per_s + 1e-6


@given(
    steps=st.lists(st.floats(0.0, 2.0), min_size=1, max_size=40),
    per_s=st.floats(0.5, 50.0),
    burst=st.integers(1, 20),
)
def test_to_look_at_a_bucket_tells_what_taking_would(
    steps: list[float], per_s: float, burst: int
) -> None:
    bucket, now = TokenBuckets(per_s, burst), 0.0
    for step in steps:
        now += step
        seen = bucket.wait("a", now, 0)
        assert bucket.wait("a", now, burst) > 0.0
        assert seen == pytest.approx(bucket.take("a", now))


def test_the_memory_for_callers_is_bounded() -> None:
    buckets = TokenBuckets(1.0, 1)
    for number in range(MAX_BUCKETS + 100):
        buckets.take(str(number), 0.0)

    assert len(buckets._levels) == MAX_BUCKETS
    assert buckets.take(str(MAX_BUCKETS + 99), 0.0) > 0.0


@pytest.mark.parametrize("length", [64 * 1024 + 1, 1 << 20])
async def test_a_body_above_the_limit_is_refused(tmp_path: Path, length: int) -> None:
    async with running_broker(tmp_path / "broker.db") as (_, client):
        bare = await client("PUT", X, data=b" " * length)
        named = await client("PUT", X, data=b" " * length, Request_Id="a")

    for refused in (bare, named):
        assert (refused.status, refused.code) == (413, "BodyTooLarge")


async def test_the_limit_of_a_body_holds_for_what_is_unpacked(tmp_path: Path) -> None:
    async with running_broker(tmp_path / "broker.db") as (_, client):
        packed = gzip.compress(b" " * (8 << 20))
        refused = await client("PUT", X, data=packed, Content_Encoding="gzip")

    assert len(packed) < 64 * 1024
    assert (refused.status, refused.code) == (413, "BodyTooLarge")


async def test_a_body_that_cannot_be_unpacked_is_refused(tmp_path: Path) -> None:
    async with running_broker(tmp_path / "broker.db") as (broker, _):
        url = f"{broker.url}/api/subscriptions{X}"
        headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
        async with (
            aiohttp.ClientSession() as session,
            session.put(url, data=b"not packed", headers=headers) as answer,
        ):
            problem = await answer.json(content_type="application/problem+json")

    assert (answer.status, problem["code"]) == (400, "NotJson")


@pytest.mark.parametrize(
    ("encoding", "body", "status"),
    [
        ("gzip", gzip.compress(json.dumps(EXPORT).encode()), 201),
        ("identity", json.dumps(EXPORT).encode(), 201),
        ("gzip", gzip.compress(json.dumps(EXPORT).encode())[:-9], 400),
        ("gzip", b"", 400),
        ("deflate", zlib.compress(json.dumps(EXPORT).encode()), 415),
        ("br", b"x", 415),
        ("gzip, gzip", b"x", 415),
    ],
)
async def test_a_body_is_unpacked_or_refused_without_a_trace(
    tmp_path: Path, encoding: str, body: bytes, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_broker(tmp_path / "broker.db") as (_, client):
        answer = await client("PUT", X, data=body, Content_Encoding=encoding)
        after = await client("GET", "/exports")

    assert (answer.status, after.status) == (status, 200)
    assert answer.code in (None, "NotJson")
    assert "Traceback" not in caplog.text
    assert "Unhandled" not in caplog.text


@pytest.mark.parametrize("length", [9 * 1024, 40 * 1024])
async def test_headers_above_the_limit_are_refused_with_a_problem(
    tmp_path: Path, length: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_broker(tmp_path / "broker.db") as (_, client):
        refused = await client("GET", "/exports", X_Long="x" * length)
        usual = await client("GET", "/exports", X_Long="x" * 6 * 1024)

    assert (refused.status, refused.code) == (431, "HeadersTooLarge")
    assert usual.status == 200
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("writes-per-s=0.5", ("writes_per_s", 0.5)),
        ("write-burst=7", ("write_burst", 7)),
        ("pes=1", ("pes", 1)),
        ("write-burst=7.5", None),
        ("write-burst=0", None),
        ("writes-per-s=nan", None),
        ("writes-per-s=inf", None),
        ("writes-per-s=-1", None),
        ("writes-per-s", None),
        ("writes_per_s=1", None),
        ("nothing=1", None),
        ("", None),
    ],
)
def test_a_limit_is_read_as_it_is_written(text: str, found: tuple[str, float] | None) -> None:
    if found is None:
        with pytest.raises(ValueError, match=r"not a limit|above 0"):
            read_limit(text)
    else:
        assert read_limit(text) == found


def test_the_limits_and_their_defaults_are_documented() -> None:
    page = (Path(__file__).parents[3] / "docs/operations.md").read_text()
    section = page.partition("\n## Limits\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*`) \| ([^|]*) \|", section, re.MULTILINE)
    reported: dict[str, float] = {}
    for names, defaults in rows:
        values = [float(text.replace(",", "")) for text in defaults.split(", ")]
        reported.update(zip(re.findall(r"`([^`]*)`", names), values, strict=True))

    assert reported == {
        field.name.replace("_", "-"): field.default for field in dataclasses.fields(RateLimits)
    }
