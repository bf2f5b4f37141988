"""``get``, ``describe`` and ``delete``: how resources are named, and what is shown of them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from streambroker_client import connection
from streambroker_operator.broker import Broker
from streambroker_operator.cli.commands import describe
from streambroker_operator.rest.guard.rate_limits import RateLimits
from support.brokers.brokers import Rest, running_broker
from support.brokers.commands import Cli, CliProcess

LONELY = {"subscription": 'kind == "quote"'}
REGISTRATION = {
    "instance": "0123456789abcdef",
    "location": "grpc+tcp://10.0.0.9:4711",
    "hint": None,
}


@pytest.fixture
async def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> AsyncIterator[Cli]:
    """A broker with an Export, an Import, their route, and an Import that nothing matches."""
    async with running_broker(tmp_path / "broker.db") as (_, rest):
        cli = Cli(rest, capsys, tmp_path)
        assert (await cli("apply", "-f", str(cli.file)))[0] == 0
        assert (await rest("PUT", "/job/audit/pe/1/import/quotes", LONELY)).status == 201
        assert (await rest("PUT", "/job/alerts/pe/0", REGISTRATION)).status == 200
        yield cli


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["exports"], ["export/feed-trades"]),
        (["export"], ["export/feed-trades"]),
        (["ex"], ["export/feed-trades"]),
        (["im"], ["import/alerts-trades", "import/audit-1-quotes"]),
        (["ex,im", "alerts-trades"], ["import/alerts-trades"]),
        (["export/feed-trades"], ["export/feed-trades"]),
        (["export", "feed-trades"], ["export/feed-trades"]),
        (["export", "feed", "0", "trades"], ["export/feed-trades"]),
        (["export", "feed/0/trades"], ["export/feed-trades"]),
        (["export/feed/0/trades"], ["export/feed-trades"]),
        (["feed/0/trades"], ["export/feed-trades"]),
        (["default/feed/0/trades"], ["export/feed-trades"]),
        (
            ["im", "alerts-trades", "audit/1/quotes"],
            ["import/alerts-trades", "import/audit-1-quotes"],
        ),
        (
            ["export/feed-trades", "im/alerts-trades"],
            ["export/feed-trades", "import/alerts-trades"],
        ),
        (["pe", "audit/1"], ["pe/audit/1"]),
        (["audit/1"], ["pe/audit/1"]),
        (["pes"], ["pe/alerts/0", "pe/audit/1", "pe/feed/0"]),
        (["routes", "alerts/0/trades"], ["route/default/feed/0/trades:default/alerts/0/trades"]),
    ],
)
async def test_resources_are_named_as_kubectl_users_guess(
    cli: Cli, words: list[str], names: list[str]
) -> None:
    code, out, err = await cli("get", *words, "-o", "name")

    assert (code, err) == (0, "")
    assert out.splitlines() == names


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["exports", "feed-trade"], "no export 'feed-trade' in namespace default. Did you mean"),
        (["import/alert-trades"], "Did you mean 'alerts-trades'?"),
        (["feed/0/trads"], "Did you mean 'feed/0/trades'?"),
        (["pe", "aduit/1"], "Did you mean 'audit/1'?"),
        (["lab/feed/0/trades"], "in namespace lab"),
        (["routes", "feed/0/nope"], "UnknownRoute"),
    ],
)
async def test_a_name_that_nothing_has_is_refused_with_the_nearest(
    cli: Cli, words: list[str], said: str
) -> None:
    code, out, err = await cli("get", *words)

    assert (code, out) == (1, "")
    assert said in err
    assert "`streambroker get " in err
    assert err.count("\n") == 1


async def test_json_of_one_named_resource_is_the_resource_and_of_more_a_list(cli: Cli) -> None:
    _, one, _ = await cli("get", "export/feed-trades", "-o", "json")
    _, some, _ = await cli("get", "all", "-o", "json")
    _, as_yaml, _ = await cli("get", "ex", "feed-trades", "-o", "yaml")

    assert json.loads(one)["metadata"]["name"] == "feed-trades"
    kinds = [item["kind"] for item in json.loads(some)["items"]]
    assert kinds == ["Export", "Import", "Import", "PE", "PE", "PE", "Route"]
    assert [item["kind"] for item in yaml.safe_load_all(as_yaml)] == ["Export"]


async def test_what_get_shows_as_yaml_can_be_applied_again(cli: Cli) -> None:
    _, shown, _ = await cli("get", "feed/0/trades", "im/alerts-trades", "-o", "yaml")
    cli.file.write_text(shown)
    code, out, _ = await cli("apply", "-f", str(cli.file))

    assert code == 0
    assert out.count("unchanged") == 2


async def test_all_namespaces_show_their_name_first(cli: Cli) -> None:
    await cli.rest("PUT", "/job/feed/pe/0/export/other?namespace=lab", {"streamId": "s"})
    _, out, _ = await cli("get", "exports", "-A")
    lines = [line.split() for line in out.splitlines()]

    assert lines[0][:3] == ["NAMESPACE", "NAME", "PORT"]
    assert [line[0] for line in lines[1:]] == ["default", "lab"]


async def test_a_list_is_read_whole_though_the_broker_answers_in_pages(cli: Cli) -> None:
    for number in range(7):
        await cli.rest("PUT", f"/job/many/pe/0/export/p{number}", {"streamId": f"s{number}"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "PAGE_SIZE", 3)
        _, out, _ = await cli("get", "exports", "-o", "name")

    assert len(out.splitlines()) == 8


async def test_describe_shows_the_resource_its_routes_and_what_to_do(cli: Cli) -> None:
    _, export, _ = await cli("describe", "export", "feed-trades")
    _, pe, _ = await cli("describe", "pe", "feed/0")
    _, registered, _ = await cli("describe", "pe/alerts/0")
    _, route, _ = await cli("describe", "route", "feed/0/trades")

    assert "Port:        default/feed/0/trades" in export
    assert "  -> default/alerts/0/trades  wait  filter price > 10.0" in export
    assert "kind: trade" in export
    assert "never registered" in pe
    assert "grpc+tcp://10.0.0.9:4711" in registered
    assert "never registered" not in registered
    assert "Policy:  wait" in route
    assert "  Rows/s:      -" in route
    assert "To do" not in registered


async def test_get_and_describe_say_that_an_export_has_ended(cli: Cli) -> None:
    view = (await cli.rest("GET", "/job/feed/pe/0")).headers["ETag"]
    shown = []
    polls: list[dict[str, Any]] = [{}, {"Ended": "trades"}]
    for said in polls:
        await cli.rest("GET", "/job/feed/pe/0", If_None_Match=view, **said)
        _, row, _ = await cli("get", "exports", "--no-headers")
        _, described, _ = await cli("describe", "export", "feed-trades")
        shown.append((row.split()[-2], "  Ended:    yes" in described))
    _, imports, _ = await cli("get", "imports", "--no-headers")

    assert shown == [("Accepted", False), ("Ended", True)]
    assert "Ended" not in imports


async def test_describe_shows_what_of_an_export_is_not_in_its_bucket(cli: Cli) -> None:
    shown = []
    for uploads in (None, {}, {"seconds": 90, "bytes": 5 << 20}, {"error": "s3://rows: it fails."}):
        port = {} if uploads is None else {"storage": uploads}
        await cli.rest("PUT", "/job/feed/pe/0/report", {"exports": {"trades": port}})
        _, described, _ = await cli("describe", "export", "feed-trades")
        shown.append([line for line in described.splitlines() if line.startswith("  Stored: ")])

    assert shown[:2] == [[], ["  Stored:   yes"]]
    assert shown[2][0].startswith("  Stored:   no (Behind) At least 1 MiB are not uploaded, for at")
    assert shown[3][0].startswith("  Stored:   no (StorageUnavailable) s3://rows: it fails. Less")


async def test_describe_and_top_show_a_failed_query_until_it_is_over(cli: Cli) -> None:
    failed = {"reason": "DataLoss", "message": "A query failed."}
    described, listed = [], []
    for health in (None, {}, {"imports": {"trades": failed}}, {}):
        body: dict[str, Any] = {} if health is None else {"health": health}
        await cli.rest("PUT", "/job/alerts/pe/0/report", body)
        _, out, _ = await cli("describe", "import", "alerts-trades")
        described.append([line for line in out.splitlines() if line.startswith("  Healthy: ")])
        _, out, _ = await cli("top", "--once")
        listed.append(("PROBLEM" in out, "import: DataLoss" in out))

    fine = ["  Healthy:  yes"]
    assert described == [[], fine, ["  Healthy:  no (DataLoss) A query failed."], fine]
    assert listed == [(False, False), (False, False), (True, True), (False, False)]


async def test_a_pe_shows_when_its_agent_was_heard_of(cli: Cli) -> None:
    _, out, _ = await cli("get", "pes")
    _, registered, _ = await cli("describe", "pe/alerts/0")
    rows = {line.split()[0]: line.split() for line in out.splitlines()}
    seen = rows["PE"].index("SEEN")

    assert re.fullmatch(r"\d+s", rows["alerts/0"][seen])
    assert rows["feed/0"][seen] == "-"
    assert re.search(r"^Seen:      \d+s ago$", registered, re.MULTILINE)


async def test_describe_asks_after_an_agent_that_is_silent(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(describe, "SILENT_S", -1.0)
    _, silent, _ = await cli("describe", "pe/alerts/0")

    assert re.search(r"To do:\n  Its agent has not reported for \d+s: is the job", silent)


async def test_an_agent_is_heard_of_by_what_it_reports_and_not_by_who_reads_its_view(
    cli: Cli,
) -> None:
    async def seen() -> dict[str, str | None]:
        items = (await cli.rest("GET", "/pes")).body["items"]
        return {f"{item['job']}/{item['pe']}": item["seen"] for item in items}

    await cli.rest("GET", "/job/feed/pe/0")
    before = await seen()
    await cli.rest("PUT", "/job/feed/pe/0/report", {"exports": {}})
    after = await seen()

    assert before["feed/0"] is None
    assert after["feed/0"] is not None


async def test_exports_are_selected_by_a_subscription(cli: Cli) -> None:
    for number, kind in enumerate(("trade", "quote")):
        body = {"properties": {"kind": kind, "level": number}}
        await cli.rest("PUT", f"/job/more/pe/0/export/p{number}", body)
    await cli.rest("PUT", "/job/more/pe/0/export/named", {"streamId": "trade"})
    _, trades, _ = await cli("get", "exports", "--match", 'kind == "trade"', "-o", "name")
    _, levels, _ = await cli("get", "ex", "--match", "level < 5", "-o", "json")
    wrong, _, said = await cli("get", "exports", "--match", "kind =")
    other, _, usage = await cli("get", "imports", "--match", "kind == 1")

    assert trades.split() == ["export/feed-trades", "export/more-0-p0"]
    assert [item["spec"]["port"] for item in json.loads(levels)["items"]] == ["p0", "p1"]
    assert (wrong, other) == (1, 2)
    assert "SubscriptionInvalid" in said
    assert said.splitlines()[-1] == "       ^"
    assert "--match tests the properties of exports" in usage


async def test_exports_are_found_by_words_that_people_read(cli: Cli) -> None:
    body = {"streamId": "s", "description": "Orders of the shop", "tags": ["gold"]}
    await cli.rest("PUT", "/job/more/pe/0/export/orders", body)
    _, found, _ = await cli("get", "exports", "--search", "GOLD shop", "-o", "name")
    _, columns, _ = await cli("get", "exports", "--search", "price", "-o", "name")
    _, both, _ = await cli(
        "get", "exports", "--search", "gold", "--match", 'kind == "trade"', "-o", "name"
    )
    other, _, usage = await cli("get", "imports", "--search", "gold")
    _, described, _ = await cli("describe", "export/more-0-orders")

    assert (found.split(), columns.split(), both) == (
        ["export/more-0-orders"],
        ["export/feed-trades"],
        "",
    )
    assert other == 2
    assert "--search finds exports" in usage
    assert "  description: Orders of the shop" in described


async def test_a_catalog_is_printed_as_asyncapi_and_for_backstage(cli: Cli) -> None:
    _, document, _ = await cli("catalog")
    _, entities, _ = await cli("catalog", "-o", "backstage", "-A")

    assert list(json.loads(document)["channels"]) == ["default.feed.0.trades"]
    assert [one["kind"] for one in yaml.safe_load_all(entities)] == ["API", "Component"]


async def test_rows_can_be_had_alone(cli: Cli) -> None:
    _, exports, _ = await cli("get", "exports", "--no-headers")
    _, both, _ = await cli("get", "exports,imports", "--no-headers")

    assert [line.split()[0] for line in exports.splitlines()] == ["feed-trades"]
    assert [line.split()[0] for line in both.splitlines()] == [
        "feed-trades",
        "alerts-trades",
        "audit-1-quotes",
    ]


async def test_nothing_is_said_beside_the_rows_where_scripts_do_not_take_it_for_one(
    cli: Cli,
) -> None:
    found = await cli("get", "exports", "-n", "nope")
    names = await cli("get", "exports,imports", "-n", "nope", "-o", "name")
    listed = await cli("get", "exports", "-n", "nope", "-o", "json")

    assert found == (0, "", "streambroker: no exports in namespace nope\n")
    assert names == (0, "", "streambroker: no exports, imports in namespace nope\n")
    assert (json.loads(listed[1])["items"], listed[2]) == ([], "")


async def test_describe_shows_some_of_many_routes_and_where_the_others_are(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(describe, "MAX_ROUTES", 1)
    for number in range(3):
        await cli.rest("PUT", f"/job/more/pe/0/import/p{number}", {"subscription": "level < 5"})
    await cli.rest("PUT", "/job/feed/pe/0/export/trades/property/level", 1)
    _, out, _ = await cli("describe", "export", "feed-trades")

    assert "… and 3 more: `streambroker get routes default/feed/0/trades`" in out


async def test_describe_says_why_an_import_with_a_bad_filter_gets_nothing(cli: Cli) -> None:
    columns = {"schema": [{"name": "cost", "type": "double"}], "properties": {"kind": "trade"}}
    await cli.rest("PUT", "/job/other/pe/0/export/trades", columns)
    code, out, _ = await cli("describe", "import", "alerts/0/trades")

    assert code == 0
    assert "default/other/0/trades  FilterInvalid:" in out
    assert "<- default/feed/0/trades" in out


@pytest.mark.parametrize(
    "words",
    [
        ["export", "feed-trades"],
        ["export/feed-trades"],
        ["ex", "feed/0/trades"],
        ["export", "feed", "0", "trades"],
    ],
)
async def test_delete_takes_every_way_to_name_a_port(cli: Cli, words: list[str]) -> None:
    code, out, _ = await cli("delete", *words)

    assert code == 0
    assert out.splitlines()[0] == "export default/feed/0/trades deleted"
    assert out.splitlines()[-1].startswith("routes: 0 added, 1 cut, ")
    assert (await cli.rest("GET", "/exports")).body["items"] == []


async def test_delete_of_what_is_not_there_can_be_no_failure(cli: Cli) -> None:
    refused, _, err = await cli("delete", "export", "feed/0/trade")
    fine, out, quiet = await cli("delete", "export", "feed/0/trade", "--ignore-not-found")

    assert (refused, fine) == (1, 0)
    assert "UnknownPort" in err
    assert "Did you mean 'feed/0/trades'?" in err
    assert (out, quiet) == ("", "")


async def test_a_pe_is_withdrawn_once_it_has_no_port(cli: Cli) -> None:
    code, _, err = await cli("delete", "pe", "audit/1")
    assert code == 1
    assert "PortsRemain" in err

    await cli("delete", "import/audit-1-quotes")
    assert await cli("delete", "pe", "audit/1") == (0, "pe default/audit/1 deleted\n", "")
    assert (await cli.rest("GET", "/job/audit/pe/1")).status == 404


async def test_pes_that_nobody_misses_go_at_once_and_no_others(cli: Cli) -> None:
    await cli("delete", "import/audit-1-quotes", "import/alerts-trades")
    gone = await cli("delete", "pes", "--all")
    left = {item["job"] for item in (await cli.rest("GET", "/pes")).body["items"]}
    refused = await cli("delete", "exports", "--all")

    assert gone == (0, "pe default/audit/1 deleted\n", "")
    assert left == {"alerts", "feed"}
    assert refused[0] == 2
    assert "`streambroker delete pes --all`" in refused[2]


async def test_a_port_is_set_by_its_address_or_its_name(cli: Cli) -> None:
    await cli("set-filter", "alerts/0/trades", "price > 1.0")
    first = await cli.rest("GET", "/job/alerts/pe/0/import/trades/filter")
    await cli("set-filter", "alerts-trades", "price > 2.0")
    second = await cli.rest("GET", "/job/alerts/pe/0/import/trades/filter")
    await cli("set-properties", "feed/0/trades", "kind=quote")
    code, out, _ = await cli("set-properties", "feed-trades")

    assert [first.body["filter"], second.body["filter"]] == ["price > 1.0", "price > 2.0"]
    assert (code, out.splitlines()[0]) == (
        0,
        "export default/feed/0/trades properties set: {} (routes: 0 kept, 0 added, 1 cut)",
    )


async def test_the_token_goes_with_every_request(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tokens.yaml"
    file.write_text("tokens: [{name: me, token: correct-horse-battery, role: admin}]")
    mine = tmp_path / "mine"
    mine.write_text("correct-horse-battery\n")
    broker = Broker(db=tmp_path / "guarded.db", port=0, tokens=file)
    await broker.start()
    try:
        without = await cli("get", url=broker.url)
        by_file = await cli("--token-file", str(mine), "get", url=broker.url)
        monkeypatch.setenv("STREAMBROKER_TOKEN", "correct-horse-battery")
        by_environment = await cli("get", url=broker.url)
        monkeypatch.setenv("STREAMBROKER_TOKEN", "wrong-horse")
        wrong = await cli("get", url=broker.url)
    finally:
        await broker.stop()

    assert (without[0], by_file[0], by_environment[0], wrong[0]) == (1, 0, 0, 1)
    assert "TokenMissing" in without[2]
    assert "--token-file" in without[2]
    assert "TokenWrong" in wrong[2]


async def test_who_stops_reading_ends_the_command_without_a_word(cli: Cli) -> None:
    process = CliProcess(cli.rest.url, "watch")
    try:
        process.close_output()
        code, said = await _ended(process, cli.rest)
    finally:
        process.kill()

    assert (code, said) == (130, "")


async def _ended(process: CliProcess, rest: Rest) -> tuple[int, str]:
    """Change something until the command notices that nobody reads."""
    ended = asyncio.ensure_future(process.end())
    level = 0
    while not ended.done():
        level += 1
        await rest("PUT", "/job/feed/pe/0/export/trades/property/level", level)
        await asyncio.wait([ended], timeout=0.05)
    return await ended


async def test_a_broker_that_says_later_is_asked_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = Broker(
        db=tmp_path / "slow.db", port=0, limits=RateLimits(writes_per_s=1.0, write_burst=1)
    )
    await broker.start()
    try:
        async with aiohttp.ClientSession() as session:
            cli = Cli(Rest(broker.url, session), capsys, tmp_path)
            applied = await cli("apply", "-f", str(cli.file))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(connection, "MAX_RETRY_S", 0.0)
                refused = await cli("apply", "-f", str(cli.file))
    finally:
        await broker.stop()

    assert applied[0] == 0
    assert applied[1].count("created") == 2
    assert refused[0] == 1
    assert "TooManyRequests" in refused[2]


async def test_the_columns_of_an_export_are_printed_in_other_languages(cli: Cli) -> None:
    printed = {}
    for form in ("ddl", "avro", "protobuf", "jsonschema"):
        code, printed[form], _ = await cli("schema", "feed/0/trades", "-o", form)
        assert code == 0
    code, default, _ = await cli("schema", "feed-trades")

    assert (code, default) == (0, printed["ddl"])
    assert default == "`price` double\n"
    assert json.loads(printed["avro"])["name"] == "Trades"
    assert "optional double price = 1;" in printed["protobuf"]
    assert list(json.loads(printed["jsonschema"])["properties"]) == ["price"]


async def test_an_export_without_columns_has_no_schema(cli: Cli) -> None:
    await cli.rest("PUT", "/job/other/pe/0/export/none", {"streamId": "s"})
    code, _, error = await cli("schema", "other/0/none")

    assert code == 2
    assert "has no columns yet" in error


async def test_describe_shows_the_version_of_an_exports_columns(cli: Cli) -> None:
    shown = []
    for version in ({"number": 1}, {"number": 2, "since": "2026-11-30T06:00:00Z"}):
        port = {"schemaVersion": version}
        await cli.rest("PUT", "/job/feed/pe/0/report", {"exports": {"trades": port}})
        _, described, _ = await cli("describe", "export", "feed-trades")
        shown += [line for line in described.splitlines() if line.startswith("  Schema: ")]

    assert shown == [
        "  Schema:   version 1",
        "  Schema:   version 2, since 2026-11-30T06:00:00Z",
    ]


async def test_what_an_export_says_cannot_control_the_terminal(cli: Cli) -> None:
    text = "é\x85\x9b31m\u202eevil\x7f"
    await cli.rest("PUT", "/job/more/pe/0/export/odd", {"streamId": "s", "description": text})
    for words in (
        ("get", "export/more-0-odd", "-o", "json"),
        ("get", "export/more-0-odd", "-o", "yaml"),
        ("catalog",),
        ("catalog", "-o", "backstage"),
    ):
        _, out, _ = await cli(*words)
        assert out.replace("\n", "").isprintable(), words
        loaded = json.loads(out) if "yaml" not in words and len(words) != 3 else None
        assert loaded is None or text in json.dumps(loaded, ensure_ascii=False), words


async def test_a_message_of_an_agent_stays_on_its_line(cli: Cli) -> None:
    failed = {"reason": "DataLoss", "message": "It failed.\nTo do:\n  nothing"}
    await cli.rest("PUT", "/job/alerts/pe/0/report", {"health": {"imports": {"trades": failed}}})
    _, out, _ = await cli("describe", "import", "alerts-trades")
    assert "  Healthy:  no (DataLoss) It failed. To do:   nothing\n" in out
