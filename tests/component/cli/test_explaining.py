"""``explain``, ``lint``, ``whatif`` and dry runs: what would be, and why it is as it is."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from streambroker_operator.cli.commands.describe import REMEDIES
from support.brokers.brokers import running_broker
from support.brokers.commands import DOCUMENTS, Cli

LONELY = {"subscription": 'kind == "quote"'}
OTHER = DOCUMENTS.replace("kind: trade", "kind: quote")
"""The Export is of another kind: its route to alerts is cut, one to audit is added."""


@pytest.fixture
async def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> AsyncIterator[Cli]:
    """A broker with an Export, an Import, their route, and an Import that nothing matches."""
    async with running_broker(tmp_path / "broker.db") as (_, rest):
        cli = Cli(rest, capsys, tmp_path)
        assert (await cli("apply", "-f", str(cli.file)))[0] == 0
        assert (await rest("PUT", "/job/audit/pe/1/import/quotes", LONELY)).status == 201
        yield cli


@pytest.mark.parametrize(
    ("words", "import_", "export"),
    [
        (["audit/1/quotes"], "default/audit/1/quotes", None),
        (["audit-1-quotes"], "default/audit/1/quotes", None),
        (["import", "alerts-trades"], "default/alerts/0/trades", None),
        (["import/alerts-trades"], "default/alerts/0/trades", None),
        (["export", "feed-trades"], None, "default/feed/0/trades"),
        (["ex/feed/0/trades"], None, "default/feed/0/trades"),
        (["alerts/0/trades", "feed-trades"], "default/alerts/0/trades", "default/feed/0/trades"),
        (
            ["export", "feed/0/trades", "import", "alerts-trades"],
            "default/alerts/0/trades",
            "default/feed/0/trades",
        ),
    ],
)
async def test_explain_takes_an_import_an_export_or_both(
    cli: Cli, words: list[str], import_: str | None, export: str | None
) -> None:
    code, out, _ = await cli("explain", *words, "-o", "json")
    answer = json.loads(out)

    assert code == 0
    assert (answer["import"], answer["export"]) == (import_, export)


async def test_explain_prints_what_a_person_reads(cli: Cli) -> None:
    code, out, err = await cli("explain", "audit/1/quotes", "feed/0/trades")
    answer = await cli.rest(
        "GET", "/explain?import=default/audit/1/quotes&export=default/feed/0/trades"
    )

    assert (code, err) == (0, "")
    assert out == answer.body["text"] + "\n"
    assert "SubscriptionFalse" in out
    assert '`kind` is "trade"' in out


async def test_explain_shows_as_many_pairs_as_asked_for(cli: Cli) -> None:
    for number in range(3):
        await cli.rest("PUT", f"/job/more/pe/{number}/export/p", {"properties": {"n": number}})
    _, out, _ = await cli("explain", "audit/1/quotes", "--limit", "2", "-o", "json")
    answer = json.loads(out)

    assert (len(answer["pairs"]), answer["total"]) == (2, 4)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["alert-trades"], 1, "no import 'alert-trades' in namespace default. Did you mean"),
        (["nobody/0/port"], 1, "UnknownPort"),
        (["export", "feed/zero/trades"], 2, "'zero' is not a PE number"),
        (["alerts/0/trades", "--limit", "0"], 1, "QueryInvalid"),
    ],
)
async def test_what_cannot_be_explained_is_refused_in_one_line(
    cli: Cli, words: list[str], code: int, said: str
) -> None:
    found, out, err = await cli("explain", *words)

    assert (found, out) == (code, "")
    assert said in err
    assert err.count("\n") == 1


async def test_describe_shows_who_is_not_connected_and_what_to_do(cli: Cli) -> None:
    _, import_, _ = await cli("describe", "audit/1/quotes")
    _, export, _ = await cli("describe", "export/feed-trades")

    assert "  default/feed/0/trades  SubscriptionFalse: " in import_
    assert "Not connected, the nearest first:" in import_
    assert "  default/audit/1/quotes  SubscriptionFalse: " in export
    assert "To do" not in export


async def test_describe_shows_the_reason_of_a_refused_resource_once(cli: Cli) -> None:
    taken = (
        "apiVersion: streambroker.io/v1alpha1\nkind: Export\nmetadata: {name: NAME}\n"
        "spec: {job: j, port: NAME, streamId: s}\n"
    )
    cli.file.write_text("---\n".join(taken.replace("NAME", name) for name in ("one", "two")))
    await cli("apply", "-f", str(cli.file))
    _, out, _ = await cli("describe", "export/two")

    assert out.count("is held by an older Export") == 1
    assert out.splitlines()[-1] == "  " + REMEDIES["StreamIdTaken"]
    assert "default/alerts/0/trades  StreamIdTaken" in out


async def test_describe_says_first_what_is_nearest_to_the_mistake(cli: Cli) -> None:
    await cli.rest("PUT", "/job/typo/pe/0/import/p", {"subscription": 'knid == "trade"'})
    await cli.rest("PUT", "/job/alone/pe/0/export/p", {"properties": {"kind": "lonely"}})
    _, typo, _ = await cli("describe", "typo/0/p")
    _, alone, _ = await cli("describe", "export", "alone/0/p")

    assert typo.partition("To do:\n")[2] == (
        '  `knid == "trade"` is true of no export: no export offers `knid`; did you mean `kind`?\n'
    )
    assert alone.partition("To do:\n")[2].startswith("  SubscriptionFalse: Change")
    assert "no import matches it" not in alone


# ---- what-if -----------------------------------------------------------------------------------


async def test_whatif_shows_routes_with_their_signs_and_ends_with_3_if_some_would_be_cut(
    cli: Cli,
) -> None:
    cli.file.write_text(OTHER)
    code, out, err = await cli("whatif", "-f", str(cli.file))
    routes = (await cli.rest("GET", "/routes")).body["items"]

    assert (code, err) == (3, "")
    assert out.splitlines() == [
        "  + default/feed/0/trades -> default/audit/1/quotes",
        "  - default/feed/0/trades -> default/alerts/0/trades: SubscriptionFalse",
        "  ~ export default/feed/0/trades: properties.kind trade => quote",
        "routes: 1 added, 1 cut, 0 kept, 0 changed; nothing was applied",
    ]
    assert [route["import"] for route in routes] == ["default/alerts/0/trades"]


@pytest.mark.parametrize(("most", "code"), [("0", 3), ("1", 0), ("2", 0)])
async def test_so_many_routes_may_be_cut_as_the_guard_allows(
    cli: Cli, most: str, code: int
) -> None:
    cli.file.write_text(OTHER)
    guarded = await cli("whatif", "-f", str(cli.file), "--max-removed", most)
    dry = await cli("apply", "-f", str(cli.file), "--dry-run=server", "--max-removed", most)
    exports = (await cli.rest("GET", "/exports")).body["items"]

    assert (guarded[0], dry[0]) == (code, code)
    assert guarded[1] == dry[1]
    assert exports[0]["spec"]["properties"]["kind"] == "trade"


async def test_whatif_of_what_is_there_cuts_nothing(cli: Cli) -> None:
    code, out, _ = await cli("whatif", "-f", str(cli.file))

    assert (code, out) == (0, "routes: 0 added, 0 cut, 1 kept, 0 changed; nothing was applied\n")


async def test_whatif_says_how_a_route_would_change(cli: Cli) -> None:
    cli.file.write_text(DOCUMENTS.replace("10.0", "20.0"))
    code, out, _ = await cli("whatif", "-f", str(cli.file))

    assert code == 0
    assert out.splitlines()[0] == (
        "  ~ default/feed/0/trades -> default/alerts/0/trades: filter price > 10.0 => price > 20.0"
    )


async def test_whatif_and_apply_show_another_buffer_though_no_route_changes(cli: Cli) -> None:
    larger = DOCUMENTS.replace("  port: trades\n", "  port: trades\n  buffer: {maxBytes: 2Gi}\n", 1)
    cli.file.write_text(larger)
    _, forecast, _ = await cli("whatif", "-f", str(cli.file))
    _, document, _ = await cli("whatif", "-f", str(cli.file), "-o", "json")
    _, applied, _ = await cli("apply", "-f", str(cli.file))

    line = "  ~ export default/feed/0/trades: buffer.maxBytes 1Gi => 2Gi"
    assert forecast.splitlines()[0] == line
    assert line in applied.splitlines()
    assert json.loads(document)["edited"] == [
        {
            "kind": "Export",
            "port": "default/feed/0/trades",
            "fields": {"buffer.maxBytes": {"was": "1Gi", "now": "2Gi"}},
        }
    ]


async def test_whatif_takes_deletions_and_delete_has_a_dry_run(cli: Cli) -> None:
    code, out, _ = await cli("whatif", "--delete", "export/feed-trades")
    dry = await cli("delete", "export", "feed/0/trades", "--dry-run")
    client = await cli("delete", "export/feed-trades", "--dry-run=client")
    exports = (await cli.rest("GET", "/exports")).body["items"]

    assert (code, dry[0], client[0]) == (3, 3, 0)
    assert "- default/feed/0/trades -> default/alerts/0/trades: ExportRemoved" in out
    assert dry[1] == out
    assert len(exports) == 1


async def test_whatif_names_what_would_be_refused_and_ends_with_1(cli: Cli) -> None:
    cli.file.write_text(DOCUMENTS.replace("price > 10.0", "price >"))
    code, out, _ = await cli("whatif", "-f", str(cli.file), "--delete", "import/nobody/0/port")

    assert code == 1
    lines = out.splitlines()
    assert lines[0].startswith("  ! import default/alerts/0/trades: FilterInvalid: Invalid filter")
    assert lines[1].startswith("  ! delete import default/nobody/0/port: UnknownPort: ")


async def test_whatif_warns_of_what_would_lead_to_nothing_without_refusing_it(cli: Cli) -> None:
    named = {"streamId": "nyse", "application": {"name": "market.Feed"}}
    await cli.rest("PUT", "/job/feed/pe/0/export/first", named)
    cli.file.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "streambroker.io/v1alpha1",
                "kind": "Export",
                "metadata": {"name": "second"},
                "spec": {"job": "feed", "port": "second", **named},
            }
        )
    )
    code, out, _ = await cli("whatif", "-f", str(cli.file))

    assert code == 0
    assert out.splitlines()[0].startswith("  ? export default/feed/0/second: StreamIdTaken: ")


async def test_whatif_answers_json_for_programs(cli: Cli) -> None:
    cli.file.write_text(OTHER)
    code, out, _ = await cli("whatif", "-f", str(cli.file), "-o", "json")
    answer = json.loads(out)

    assert code == 3
    assert (len(answer["added"]), len(answer["cut"]), answer["kept"]) == (1, 1, 0)


async def test_a_dry_run_of_the_client_asks_no_broker(cli: Cli) -> None:
    code, out, _ = await cli(
        "apply", "-f", str(cli.file), "--dry-run=client", url="http://127.0.0.1:1"
    )

    assert code == 0
    assert out.splitlines() == [
        "export default/feed/0/trades can be read (dry run)",
        "import default/alerts/0/trades can be read (dry run)",
    ]


async def test_apply_and_delete_with_a_guard_change_nothing_that_cuts_more(cli: Cli) -> None:
    cli.file.write_text(OTHER)
    kept, reported, _ = await cli("apply", "-f", str(cli.file), "--max-removed", "0")
    export = (await cli.rest("GET", "/job/feed/pe/0/export/trades")).body
    undeleted, _, _ = await cli("delete", "export/feed-trades", "--max-removed", "0")
    done, out, _ = await cli("apply", "-f", str(cli.file), "--max-removed", "1")
    gone, _, _ = await cli("delete", "export/feed-trades", "--max-removed", "1")

    assert (kept, undeleted, done, gone) == (3, 3, 0, 0)
    assert "routes: 1 added, 1 cut, 0 kept, 0 changed; nothing was applied" in reported
    assert export["spec"]["properties"]["kind"] == "trade"
    assert out.splitlines()[-1] == "routes: 1 added, 1 cut, 0 kept, 0 changed"
    assert (await cli.rest("GET", "/exports")).body["items"] == []


async def test_with_a_guard_a_file_is_applied_as_a_whole_or_not_at_all(cli: Cli) -> None:
    cli.file.write_text(DOCUMENTS.replace("GOOG", "SAP").replace("price > 10.0", "price >"))
    guarded, _, err = await cli("apply", "-f", str(cli.file), "--max-removed", "5")
    after = (await cli.rest("GET", "/job/feed/pe/0/export/trades")).body
    fine, _, _ = await cli("delete", "ex/no/0/port", "--ignore-not-found", "--max-removed", "0")

    assert (guarded, fine) == (1, 0)
    assert "FilterInvalid" in err
    assert after["spec"]["properties"]["tickers"] == ["IBM", "GOOG"]


# ---- lint --------------------------------------------------------------------------------------


async def test_lint_prints_what_looks_wrong_and_fails_only_if_asked_to(cli: Cli) -> None:
    code, out, err = await cli("lint")
    strict, same, _ = await cli("lint", "--strict")
    _, as_json, _ = await cli("lint", "-o", "json")
    answer = await cli.rest("GET", "/lint")

    assert (code, strict, err) == (0, 1, "")
    assert out == same == answer.body["text"] + "\n"
    assert "import default/audit/1/quotes" in out
    assert json.loads(as_json) == answer.body


async def test_lint_finds_nothing_where_all_is_well(cli: Cli) -> None:
    await cli("delete", "import/audit-1-quotes")
    code, _, err = await cli("lint", "--strict")

    assert (code, err) == (0, "")


async def test_describe_tells_what_lint_says_of_the_resource(cli: Cli) -> None:
    _, out, _ = await cli("describe", "audit/1/quotes")
    answer = await cli.rest("GET", "/explain?import=default/audit/1/quotes")

    assert answer.body["lint"]
    for finding in answer.body["lint"]:
        assert f"  {finding['message']}\n" in out.partition("To do:")[2]
