"""Lineage of a broker, as a real receiver gets it and checks it by the official schemas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from streambroker_core.model import PeKey
from streambroker_operator import lineage
from streambroker_operator.broker import Broker
from streambroker_operator.cli.app import main
from streambroker_operator.lineage import LineageSender, LineageTarget, read_url, retry_delay_s
from support.brokers.brokers import EXPORT, IMPORT, BrokerProcess, Rest, running_broker
from support.brokers.lineage import DROP, Receiver, name_of, receiver
from support.clusters.calls import true

FEED = "/job/feed/pe/0/export/trades"
ALERTS = "/job/alerts/pe/0/import/in"
DATASET, EXPORTER, IMPORTER = "default.feed.0.trades", "default.feed.0", "default.alerts.0"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage, "WINDOW_S", 0.05)
    monkeypatch.setattr(lineage, "MAX_DELAY_S", 0.1)


@asynccontextmanager
async def sending(
    db: Path, target: Receiver, **settings: Any
) -> AsyncIterator[tuple[Rest, LineageSender]]:
    """Run a broker that sends its lineage."""
    async with running_broker(db, lineage=LineageTarget(url=target.url, **settings)) as found:
        yield found[1], sender_of(found[0])


def sender_of(broker: Broker) -> LineageSender:
    assert broker._lineage is not None
    return broker._lineage


async def connect(rest: Rest) -> None:
    await rest("PUT", FEED, EXPORT)
    await rest("PUT", ALERTS, IMPORT)


async def connected(rest: Rest, got: Receiver, sender: LineageSender) -> int:
    """Connect both jobs, and return how many events that made."""
    await connect(rest)
    await got.until_named(IMPORTER, 1)
    assert await true(lambda: sender.pending == 0)
    return len(got.events)


def imports(event: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what the job of an event reads."""
    facets = [dataset["inputFacets"] for dataset in event["inputs"]]
    return [one for each in facets for one in each["streambroker_subscription"]["imports"]]


async def test_what_is_put_becomes_jobs_and_datasets(tmp_path: Path) -> None:
    async with receiver() as got, sending(tmp_path / "db", got) as (rest, sender):
        await connect(rest)
        reader = await got.until_named(IMPORTER, 1)
        exporter = await got.until_named(EXPORTER, 1)
        await got.until_named(DATASET, 1)
        assert await true(lambda: sender.pending == 0)

        assert [one["name"] for one in reader["inputs"]] == [DATASET]
        assert imports(reader)[0]["filter"] == "price > 10.0"
        assert [one["name"] for one in exporter["outputs"]] == [DATASET]
        assert sender.results == {"sent": len(got.events)}
        assert got.tokens == {None}


async def test_a_change_sends_what_it_concerns_and_nothing_else(tmp_path: Path) -> None:
    async with receiver() as got, sending(tmp_path / "db", got) as (rest, sender):
        before = await connected(rest, got, sender)
        await rest("PUT", f"{ALERTS}/filter", {"filter": "price > 20.0"})
        event = await got.until_named(IMPORTER, 2)
        assert await true(lambda: sender.pending == 0)

        assert imports(event)[0]["filter"] == "price > 20.0"
        assert [name_of(one) for one in got.events[before:]] == [IMPORTER]


async def test_a_change_that_lineage_does_not_show_sends_nothing(tmp_path: Path) -> None:
    async with receiver() as got, sending(tmp_path / "db", got) as (rest, sender):
        before = await connected(rest, got, sender)
        changed = await rest("PATCH", FEED, {"spec": {"schemaPolicy": "none"}})
        assert changed.body["changed"]
        await rest("PUT", "/job/last/pe/0/import/in", IMPORT)
        await got.until_named("default.last.0", 1)

        assert [name_of(one) for one in got.events[before:]] == ["default.last.0"]


async def test_many_changes_within_the_window_are_one_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with receiver() as got, sending(tmp_path / "db", got) as (rest, sender):
        before = await connected(rest, got, sender)
        with monkeypatch.context() as held:
            held.setattr(sender, "_collect", lambda: None)  # The window does not end yet.
            for price in range(30):
                await rest("PUT", f"{ALERTS}/filter", {"filter": f"price > {price}.0"})
        event = await got.until_named(IMPORTER, 2)
        await rest("PUT", "/job/last/pe/0/import/in", IMPORT)
        await got.until_named("default.last.0", 1)

        assert imports(event)[0]["filter"] == "price > 29.0"
        assert [name_of(one) for one in got.events[before:]] == [IMPORTER, "default.last.0"]


async def test_an_export_that_is_deleted_is_dropped_and_its_jobs_lose_it(tmp_path: Path) -> None:
    async with receiver() as got, sending(tmp_path / "db", got) as (rest, sender):
        await connect(rest)
        await got.until_named(IMPORTER, 1)
        await rest("DELETE", FEED)
        dropped = await got.until_named(DATASET, 2)
        ended = await got.until_named(EXPORTER, 2)
        reader = await got.until_named(IMPORTER, 2)

        facets = dropped["dataset"]["facets"]
        assert facets["lifecycleStateChange"]["lifecycleStateChange"] == "DROP"
        assert facets["schema"]["_deleted"] is True
        assert (ended["outputs"], reader["inputs"]) == ([], [])
        assert await true(lambda: sender.pending == 0)
        assert list(sender._sent) == [PeKey("default", "alerts", 0)]  # Others take no memory.

        await rest("PUT", FEED, EXPORT)
        made = await got.until_named(DATASET, 3)
        again = made["dataset"]["facets"]
        assert again["lifecycleStateChange"]["lifecycleStateChange"] == "CREATE"


async def test_failures_of_the_receiver_lose_nothing_and_the_latest_content_is_sent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failures = [503, DROP, 429, 404, 503]
    async with receiver(*failures) as got, sending(tmp_path / "db", got) as (rest, sender):
        await rest("PUT", FEED, EXPORT)
        assert await true(lambda: got.attempts > 0)
        assert await true(lambda: sender.problem != "")
        await rest("PATCH", FEED, {"spec": {"description": "Trades"}})
        event = await got.until_named(DATASET, 1)
        assert await true(lambda: sender.pending == 0)

        assert event["dataset"]["facets"]["documentation"]["description"] == "Trades"
        assert sender.results["failed"] == len(failures)
        assert sender.problem == ""
    said = [one.getMessage() for one in caplog.records if one.name == "streambroker.lineage"]
    assert "will be retried: HTTP 503 as the test wants" in said[0]
    assert said[-1] == "lineage is sent again"


async def test_a_receiver_that_is_away_does_not_hold_up_the_broker(tmp_path: Path) -> None:
    gone = Receiver(url="http://127.0.0.1:1/api/v1/lineage")
    async with sending(tmp_path / "db", gone) as (rest, sender):
        await connect(rest)
        assert await true(lambda: sender.results["failed"] > 1)
        assert (await rest("GET", "/routes")).body["items"]
        assert sender.pending == 3
        assert "Connect" in sender.problem


async def test_an_event_that_is_refused_is_not_sent_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with receiver(422) as got, sending(tmp_path / "db", got) as (rest, sender):
        await connect(rest)
        assert await true(lambda: sender.pending == 0 and len(got.events) == 2)
        await rest("PUT", "/job/last/pe/0/import/in", IMPORT)
        await got.until_named("default.last.0", 1)

        assert sender.results == {"refused": 1, "sent": 3}
        assert "is refused and not sent again: HTTP 422 as the test wants" in caplog.text


async def test_an_event_that_always_fails_does_not_hold_up_the_others(tmp_path: Path) -> None:
    async with receiver() as got, sending(tmp_path / "db", got) as (rest, sender):
        got.hated = DATASET
        await connect(rest)
        await got.until_named(EXPORTER, 1)
        await got.until_named(IMPORTER, 1)
        assert await true(lambda: sender.pending == 1)
        got.hated = ""
        await got.until_named(DATASET, 1)


async def test_a_broker_that_starts_sends_everything_once(tmp_path: Path) -> None:
    async with running_broker(tmp_path / "db") as (_, rest):
        await connect(rest)
    async with receiver() as got, sending(tmp_path / "db", got, token="t") as (_, sender):
        await got.until_named(IMPORTER, 1)
        assert await true(lambda: sender.pending == 0)

        assert sorted(map(name_of, got.events)) == [IMPORTER, EXPORTER, DATASET]
        assert got.tokens == {"Bearer t"}


async def test_a_broker_that_does_not_lead_sends_nothing_and_all_of_it_once_it_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with receiver() as got, sending(tmp_path / "db", got) as (rest, sender):
        before = await connected(rest, got, sender)
        with monkeypatch.context() as led:
            led.setattr(sender, "_leads", lambda: False)
            await rest("PUT", "/job/last/pe/0/import/in", IMPORT)
            assert await true(lambda: not sender._sent)
            assert len(got.events) == before
        await got.until_named("default.last.0", 1)
        assert await true(lambda: sender.pending == 0)

        names = [EXPORTER, IMPORTER, DATASET, "default.last.0"]
        assert sorted(map(name_of, got.events[before:])) == sorted(names)


async def test_a_reader_of_changes_that_falls_behind_starts_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with receiver() as got, sending(tmp_path / "db", got) as (rest, sender):
        await connect(rest)
        await got.until_named(IMPORTER, 1)
        assert await true(lambda: sender.pending == 0)
        with monkeypatch.context() as held:
            held.setattr(sender, "_collect", lambda: None)
            await rest("DELETE", FEED)
            monkeypatch.setattr(sender._runtime.change_log, "events_after", lambda *_: None)
        dropped = await got.until_named(DATASET, 2)
        await got.until_named(EXPORTER, 2)

        facets = dropped["dataset"]["facets"]
        assert facets["lifecycleStateChange"]["lifecycleStateChange"] == "DROP"


async def test_a_broker_that_stops_waits_for_no_receiver(tmp_path: Path) -> None:
    never = asyncio.Event()

    class Silent(Receiver):
        async def handle(self, request: Any) -> Any:
            self.attempts += 1
            await never.wait()

    got = Silent()
    async with receiver(into=got), sending(tmp_path / "db", got) as (rest, sender):
        await rest("PUT", FEED, EXPORT)
        assert await true(lambda: got.attempts == 1)
        await asyncio.wait_for(sender.stop(), 60.0)
        never.set()


async def test_an_error_in_the_sender_leaves_the_broker_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with receiver() as got, sending(tmp_path / "db", got) as (rest, sender):
        monkeypatch.setattr(sender, "_build", lambda key: {}[key])
        await rest("PUT", FEED, EXPORT)
        assert await true(lambda: sender.problem != "")

        assert (await rest("GET", FEED)).status == 200
        assert "lineage is not sent any more" in caplog.text


async def test_the_command_sends_to_the_url_with_the_token_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMBROKER_LINEAGE_TOKEN", "t")
    async with receiver() as got:
        monkeypatch.setenv("STREAMBROKER_LINEAGE_URL", str(URL(got.url).origin()))
        arguments = ("--port", "0", "--lineage-namespace", "prod")
        process = BrokerProcess(tmp_path / "db", *arguments)
        async with aiohttp.ClientSession() as session:
            rest = Rest(await asyncio.to_thread(process.url), session)
            await rest("PUT", FEED, EXPORT)
            event = await got.until_named(DATASET, 1)
            await got.until_named(EXPORTER, 1)
        process.process.terminate()
        status, _ = await asyncio.to_thread(process.end, 60.0)
        assert status == 0

        assert event["dataset"]["namespace"] == "streambroker://prod"
        assert got.tokens == {"Bearer t"}


@pytest.mark.parametrize(
    ("arguments", "token", "message"),
    [
        (["up", "--lineage-url", "marquez"], "t", "--lineage-url: 'marquez' is not a URL"),
        (["operator", "--lineage-url", "h:1"], "t", "--lineage-url: 'h:1' is not a URL"),
        (["up", "--lineage-namespace", "a b"], "t", "--lineage-namespace: 'a b' is not a name"),
        (["up", "--lineage-url", "http://h"], "a b", "STREAMBROKER_LINEAGE_TOKEN is not a token"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(
    arguments: list[str],
    token: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("STREAMBROKER_LINEAGE_TOKEN", token)
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_delays_grow_up_to_a_limit_and_are_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert retry_delay_s(0, 0.5) == lineage.WINDOW_S
    for failures, longest in ((1, 4.0), (2, 8.0), (4, 32.0), (5, 60.0), (5000, 60.0)):
        assert retry_delay_s(failures, 1.0) == longest
        assert retry_delay_s(failures, 0.0) == longest / 2


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://marquez:5000", "http://marquez:5000/api/v1/lineage"),
        ("https://h/", "https://h/api/v1/lineage"),
        ("https://h/openlineage?key=1", "https://h/openlineage?key=1"),
    ],
)
def test_a_url_without_a_path_gets_that_of_receivers(text: str, url: str) -> None:
    assert read_url(text) == url


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("marquez:5000", "write http://HOST"),
        ("ftp://marquez", "write http://HOST"),
        ("http://", "write http://HOST"),
        ("http://[", "write http://HOST"),
        ("https://me:secret@marquez", "set STREAMBROKER_LINEAGE_TOKEN instead"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as raised:
        read_url(text)
    assert "secret" not in str(raised.value)
