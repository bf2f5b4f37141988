"""The command line against a real broker."""

from __future__ import annotations

import io
import json

import pytest
import yaml

from streambroker_operator.cli import main
from support.brokers.commands import DOCUMENTS, Cli


async def test_apply_tells_what_it_did_with_each_document(cli: Cli) -> None:
    code, out, err = await cli("apply", "-f", str(cli.file))
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "export default/feed/0/trades created",
        "import default/alerts/0/trades created",
        "  + default/feed/0/trades -> default/alerts/0/trades",
        "routes: 1 added, 0 cut, 0 kept, 0 changed",
    ]
    assert "unchanged" in (await cli("apply", "-f", str(cli.file)))[1]
    cli.file.write_text(DOCUMENTS.replace("10.0", "20.0"))
    again = (await cli("apply", "-f", str(cli.file)))[1].splitlines()

    assert again[:2] == [
        "export default/feed/0/trades unchanged",
        "import default/alerts/0/trades configured",
    ]
    assert again[2].endswith(": filter price > 10.0 => price > 20.0")


async def test_apply_reads_the_standard_input(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(DOCUMENTS))
    code, _, _ = await cli("apply", "-f", "-", "-n", "lab")

    assert code == 0
    assert (await cli.rest("GET", "/exports?namespace=lab")).body["items"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (DOCUMENTS.replace("kind: Import", "kind: Pod"), "document 3: kind is 'Pod'"),
        (DOCUMENTS.replace("port: trades", "prot: trades"), "document 1: spec.prot"),
        (DOCUMENTS + "\n---\n[", "is not YAML"),
        (DOCUMENTS.replace("  job: feed", "  job: feed\n  job: meed"), "occurs twice"),
        (DOCUMENTS.replace("GOOG", "5"), "Invalid property `tickers`"),
        ("", "holds no resource"),
        ("\t", "is not YAML"),
    ],
)
async def test_a_file_with_a_fault_is_not_applied_at_all(cli: Cli, text: str, said: str) -> None:
    cli.file.write_text(text)
    code, out, err = await cli("apply", "-f", str(cli.file))

    assert (code, out) == (1, "")
    assert said in err
    assert (await cli.rest("GET", "/exports")).body["items"] == []


async def test_a_file_that_is_not_there_is_named(cli: Cli) -> None:
    code, _, err = await cli("apply", "-f", "no-such.yaml")

    assert code == 2
    assert "Errno" not in err
    assert "no-such.yaml" in err


async def test_get_shows_tables(applied: Cli) -> None:
    _, out, _ = await applied("get")
    _, wide, _ = await applied("get", "imports", "-o", "wide")
    other = await applied("get", "routes", "-n", "lab")
    _, everywhere, _ = await applied("get", "routes", "-A")

    lines = [line.split() for line in out.splitlines()]
    assert ["NAME", "PORT", "OFFERS", "MATCHES", "STATE", "AGE"] in lines
    assert [
        "feed-trades",
        "feed/0/trades",
        'kind="trade"',
        'tickers=["IBM",',
        '"GOOG"]',
        "1",
        "Accepted",
    ] in [line[:-1] for line in lines]
    assert "default/feed/0/trades" in wide
    assert other == (0, "", "streambroker: no routes in namespace lab\n")
    assert "price > 10.0" in everywhere


async def test_get_answers_json_and_yaml_for_programs(applied: Cli) -> None:
    _, as_json, _ = await applied("get", "exports", "-o", "json")
    _, as_yaml, _ = await applied("get", "imports", "-o", "yaml")

    assert json.loads(as_json)["items"][0]["metadata"]["name"] == "feed-trades"
    (import_,) = yaml.safe_load_all(as_yaml)
    assert import_["spec"]["filter"] == "price > 10.0"


async def test_a_filter_is_changed_while_routes_stay(applied: Cli) -> None:
    code, out, _ = await applied("set-filter", "alerts", "0", "trades", "price > 99.5")
    shown = await applied.rest("GET", "/job/alerts/pe/0/import/trades/filter")

    assert (code, out) == (
        0,
        "import default/alerts/0/trades filter set (routes: 1 kept, 0 added, 0 cut)\n",
    )
    assert shown.body == {"filter": "price > 99.5"}


async def test_a_subscription_and_properties_are_changed(applied: Cli) -> None:
    _, cut, _ = await applied("set-properties", "feed", "0", "trades", "kind=quote", "n=5", "x=")
    _, added, _ = await applied("set-subscription", "alerts", "0", "trades", "n == 5")
    shown = await applied.rest("GET", "/job/feed/pe/0/export/trades/properties")
    await applied("set-properties", "feed", "0", "trades", "{n: [1, 2]}")
    mapping = await applied.rest("GET", "/job/feed/pe/0/export/trades/properties")

    assert "  - default/feed/0/trades -> default/alerts/0/trades: SubscriptionFalse" in cut
    assert "  + default/feed/0/trades -> default/alerts/0/trades" in added
    assert shown.body == {"kind": "quote", "n": 5, "x": ""}
    assert mapping.body == {"n": [1, 2]}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("set-filter", "alerts", "0", "nope", "a == 1"), "UnknownPort"),
        (("set-filter", "nobody", "0", "trades", "a == 1"), "UnknownPE"),
        (("set-properties", "feed", "0", "trades", "a={b: 1}"), "PropertyInvalid"),
        (("set-properties", "feed", "0", "trades", "a=["), "is not YAML"),
        (("delete", "export", "feed", "0", "nope"), "UnknownPort"),
    ],
)
async def test_a_refusal_is_one_line_and_exit_code_1(
    applied: Cli, arguments: tuple[str, ...], said: str
) -> None:
    code, out, err = await applied(*arguments)

    assert (code, out) == (1, "")
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("delete", "export", "feed", "0"), "export|import JOB PE PORT"),
        (("delete",), "-f FILE"),
        (("set-filter", "alerts/zero/trades", "a == 1"), "'zero' is not a PE number"),
        (("set-properties", "feed", "0", "trades", "kind"), "NAME=VALUE"),
        (("set-properties", "feed", "0", "trades", "a=1", "a=2"), "'a' is repeated"),
    ],
)
async def test_wrong_usage_is_exit_code_2(
    applied: Cli, arguments: tuple[str, ...], said: str
) -> None:
    code, out, err = await applied(*arguments)

    assert (code, out) == (2, "")
    assert said in err


async def test_delete_takes_a_port_or_a_file(applied: Cli) -> None:
    code, out, _ = await applied("delete", "export", "feed", "0", "trades")
    assert (code, out.splitlines()) == (
        0,
        [
            "export default/feed/0/trades deleted",
            "  - default/feed/0/trades -> default/alerts/0/trades: ExportRemoved",
            "routes: 0 added, 1 cut, 0 kept, 0 changed",
        ],
    )
    await applied("apply", "-f", str(applied.file))
    code, out, _ = await applied("delete", "-f", str(applied.file))

    assert (code, out.count("deleted")) == (0, 2)
    assert (await applied.rest("GET", "/imports")).body["items"] == []


async def test_a_broker_that_is_away_is_said_with_the_remedy_and_exit_code_4(cli: Cli) -> None:
    code, out, err = await cli("get", url="http://127.0.0.1:1")
    assert (code, out) == (4, "")
    assert "BrokerUnavailable: No broker answers at http://127.0.0.1:1" in err
    assert "with the same --db as before, or set STREAMBROKER_URL" in err
    assert err.count("\n") == 1

    code, _, err = await cli("get", url="ftp://x")
    assert (code, "http://" in err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["get", "exprot"], "There is no kind 'exprot'"),
        (["get", "exprots"], "Did you mean 'exports'?"),
        (["get", "improt/x"], "Did you mean 'import'?"),
        (["gte"], "There is no command 'gte'. Did you mean 'get'?"),
        (["-n", "lab", "discribe", "x"], "Did you mean 'describe'?"),
        (["get", "exports", "-o", "jsno"], "Did you mean 'json'?"),
        (["get", "--wide"], "--wide"),
        ([], "COMMAND"),
        (["apply"], "-f"),
        (["whatif"], "-f FILE"),
        (["whatif", "-f", "x", "--max-removed", "-1"], "--max-removed"),
        (["delete", "exports"], "Name one export"),
        (["delete", "all"], "Name one export"),
        (["top", "exports"], "`top` shows routes"),
        (["top", "--interval", "0"], "0.1"),
        (["explain", "a/0/p", "export", "b/0/q", "export", "c/0/r"], "one too many"),
        (["get", "--token-file", "no-such-file"], "cannot be read"),
        (["set-filter", "alerts", "0", "a == 1"], "JOB/PE/PORT or JOB PE PORT"),
        (["get", "--request-timeout", "soon"], "write seconds"),
        (["operator", "--drain", "soon"], "not a number of seconds"),
        (["operator", "--drain", "-1"], "from 0 to 600"),
        (["operator", "--statuses-per-s", "-1"], "neither 0 nor a number from 0.1"),
    ],
)
def test_wrong_usage_is_one_line_with_the_word_that_was_probably_meant(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["--url", "http://127.0.0.1:1", *arguments])
    out, err = capsys.readouterr()

    assert (code, out) == (2, "")
    assert err.startswith("streambroker: Usage: ")
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "text", "code", "column"),
    [
        ("set-filter", "price >", "FilterInvalid", 7),
        ("set-filter", "price > 1 &&\n  cost = 2", "FilterInvalid", 7),
        ("set-subscription", "kind = 3", "SubscriptionInvalid", 5),
    ],
)
async def test_an_expression_that_cannot_be_read_is_shown_with_a_caret_under_the_place(
    applied: Cli, command: str, text: str, code: str, column: int
) -> None:
    exit_code, out, err = await applied(command, "alerts/0/trades", text)
    message, line, caret = err.splitlines()

    assert (exit_code, out) == (1, "")
    assert message.startswith(f"streambroker: {code}: Invalid ")
    assert line == "  " + text.splitlines()[-1]
    assert caret == "  " + " " * column + "^"


async def test_an_expression_in_a_file_is_pointed_at_too(cli: Cli) -> None:
    cli.file.write_text(DOCUMENTS.replace('kind == "trade"', "kind == trade ||"))
    code, _, err = await cli("apply", "-f", str(cli.file))

    assert code == 1
    assert "import default/alerts/0/trades: Invalid subscription" in err
    assert err.splitlines()[1] == "  kind == trade ||"


async def test_a_port_that_an_older_resource_has_stays_with_it(applied: Cli) -> None:
    applied.file.write_text(DOCUMENTS.replace("feed-trades", "another").replace("IBM", "SAP"))
    code, _, err = await applied("apply", "-f", str(applied.file))
    found = await applied.rest("GET", "/job/feed/pe/0/export/trades")

    assert code == 1
    assert "PortTaken" in err
    assert "belongs to 'feed-trades', which is older" in err
    assert found.body["metadata"]["name"] == "feed-trades"
    assert found.body["spec"]["properties"]["tickers"] == ["IBM", "GOOG"]


async def test_two_documents_for_one_port_are_refused_before_anything_is_sent(cli: Cli) -> None:
    twice = (
        DOCUMENTS + "---" + DOCUMENTS.split("---", maxsplit=1)[0].replace("feed-trades", "another")
    )
    cli.file.write_text(twice)
    code, _, err = await cli("apply", "-f", str(cli.file))

    assert code == 1
    assert "document 4 is for port default/feed/0/trades, which document 1 also declares" in err
    assert (await cli.rest("GET", "/exports")).body["items"] == []
