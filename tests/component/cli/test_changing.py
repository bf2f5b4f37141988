"""Changes from the command line touch what was named, once, or say what they did not do."""

from __future__ import annotations

import io
import json
import re

import pytest
import yaml

from streambroker_operator.cli import main
from streambroker_operator.cli.output import changes as forecast
from streambroker_operator.rest import diagnose
from support.brokers.brokers import Rest
from support.brokers.commands import DOCUMENTS, Cli

MINE = """
apiVersion: streambroker.io/v1alpha1
kind: Import
metadata: {name: mine}
spec: {job: alerts, port: trades, subscription: 'kind == "quote"'}
"""
BAD_FILTER = """
apiVersion: streambroker.io/v1alpha1
kind: Import
metadata: {name: bad}
spec: {job: bad, port: p, subscription: 'kind == "trade"', filter: nocol > 3}
"""


def written(cli: Cli, name: str, text: str) -> str:
    path = cli.file.parent / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return str(path)


async def names(rest: Rest, kind: str) -> list[str]:
    items = (await rest("GET", f"/{kind}")).body["items"]
    return [item["metadata"]["name"] for item in items]


def export_of(number: int) -> str:
    return (
        f"---\napiVersion: streambroker.io/v1alpha1\nkind: Export\nmetadata: {{name: e{number}}}\n"
        f"spec: {{job: many, port: p{number}, properties: {{n: {number}}}}}\n"
    )


# ---- deleting by file ----------------------------------------------------------------------------


async def test_deleting_by_file_leaves_a_resource_of_another_name_and_all_others(
    applied: Cli,
) -> None:
    both = written(applied, "mine.yaml", DOCUMENTS.split("\n---\n")[0] + "\n---\n" + MINE)
    code, out, err = await applied("delete", "-f", both)
    dry, shown, reported = await applied("delete", "-f", both, "--dry-run")

    said = "delete import default/alerts/0/trades: Import default/alerts/0/trades is "
    assert (code, dry, out) == (1, 1, "")
    assert f"PortTaken: {said}'alerts-trades', not 'mine'." in err
    assert "0 of 2 deleted, 1 refused, 1 not tried" in err
    assert "  ! delete import default/alerts/0/trades: PortTaken: " in shown
    assert reported == ""
    assert await names(applied.rest, "imports") == ["alerts-trades"]
    assert await names(applied.rest, "exports") == ["feed-trades"]


async def test_deleting_by_file_passes_over_another_name_if_missing_ones_are_no_failure(
    applied: Cli,
) -> None:
    both = written(applied, "mine.yaml", DOCUMENTS.split("\n---\n")[0] + "\n---\n" + MINE)
    code, out, err = await applied("delete", "-f", both, "--ignore-not-found")

    assert (code, out.count("deleted")) == (0, 1)
    assert "is 'alerts-trades', not 'mine'; it stays" in err
    assert await names(applied.rest, "imports") == ["alerts-trades"]


async def test_a_whatif_of_a_deletion_minds_the_name(applied: Cli) -> None:
    code, out, err = await applied("whatif", "--delete", "import/mine")

    assert (code, out) == (1, "")
    assert "There is no import 'mine'" in err


async def test_what_is_not_there_is_no_failure_by_name_either(applied: Cli) -> None:
    for words in (["export/nope"], ["export", "nope"], ["pe", "nope/0"]):
        code, out, err = await applied("delete", *words, "--ignore-not-found")
        assert (code, out, err) == (0, "", "")


async def test_a_port_alone_is_enough_to_delete_if_one_resource_has_it(applied: Cli) -> None:
    await applied.rest("PUT", "/job/alerts/pe/0/import/both", {"subscription": "a == 1"})
    await applied.rest("PUT", "/job/alerts/pe/0/export/both", {"properties": {"b": 1}})
    both = await applied("delete", "alerts/0/both")
    one = await applied("delete", "alerts/0/trades")

    assert (both[0], one[0]) == (2, 0)
    assert "export/alerts/0/both and import/alerts/0/both" in both[2]


# ---- files -------------------------------------------------------------------------------------


async def test_all_files_are_applied_in_their_order(cli: Cli) -> None:
    first, second = written(cli, "a.yaml", export_of(1)), written(cli, "b.yaml", export_of(2))
    code, out, _ = await cli("apply", "-f", second, "-f", first)
    gone, deleted, _ = await cli("delete", "-f", first, "-f", second)

    assert (code, gone) == (0, 0)
    assert re.findall(r"many/0/(p\d)", out) == ["p2", "p1"]
    assert deleted.count("deleted") == 2


async def test_a_what_if_is_about_all_files(applied: Cli) -> None:
    other = written(applied, "b.yaml", DOCUMENTS.replace("kind: trade", "kind: quote"))
    solo = written(applied, "solo.yaml", export_of(1))
    code, out, _ = await applied("whatif", "-f", other, "-f", solo)

    assert (code, "1 cut" in out) == (3, True)


async def test_a_directory_is_all_its_yaml_files(cli: Cli) -> None:
    written(cli, "d/2.yaml", export_of(2))
    written(cli, "d/1.yaml", export_of(1))
    written(cli, "d/readme.txt", "[")
    code, out, _ = await cli("apply", "-f", str(cli.file.parent / "d"))

    assert (code, re.findall(r"many/0/(p\d)", out)) == (0, ["p1", "p2"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (export_of(1), "is for port default/many/0/p1, which "),
        (export_of(1).replace("p1", "px"), "is for the name 'e1', which "),
    ],
)
async def test_two_files_for_one_port_or_of_one_name_are_refused(
    cli: Cli, text: str, said: str
) -> None:
    first, second = written(cli, "a.yaml", export_of(1)), written(cli, "b.yaml", text)
    code, out, err = await cli("apply", "-f", first, "-f", second)
    twice, _, again = await cli("apply", "-f", first, "-f", first)

    assert (code, out, twice) == (1, "", 2)
    assert said + f"{first}, document 1 also declares" in err
    assert "is repeated" in again
    assert await names(cli.rest, "exports") == []


async def test_what_get_shows_can_be_applied_again(applied: Cli) -> None:
    for output in ("json", "yaml"):
        _, shown, _ = await applied("get", "-o", output)
        code, out, err = await applied("apply", "-f", written(applied, "shown." + output, shown))

        assert (code, out.count("unchanged")) == (0, 2), err
        assert "note: PEs and Routes are skipped" in err


async def test_a_list_of_kubectl_is_read_and_what_is_not_kept_is_said(cli: Cli) -> None:
    export = yaml.safe_load(export_of(1))
    export["metadata"] |= {
        "labels": {"a": "b"},
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"},
        "managedFields": [],
        "ownerReferences": [],
        "finalizers": ["x"],
        "selfLink": "/x",
    }
    whole = {"apiVersion": "v1", "kind": "List", "metadata": {}, "items": [export]}
    code, out, err = await cli("apply", "-f", written(cli, "list.json", json.dumps(whole)))

    assert (code, "created" in out) == (0, True)
    assert err.count("\n") == 1
    assert "labels and annotations are not kept" in err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("nam: nyx", "metadata.nam is not known here; did you mean name?"),
        ("name: nyx, namspace: lab", "metadata.namspace is not known here; did you mean namesp"),
    ],
)
async def test_a_typo_in_the_metadata_is_refused(cli: Cli, change: str, said: str) -> None:
    file = written(cli, "a.yaml", export_of(1).replace("name: e1", change))
    code, out, err = await cli("apply", "-f", file)

    assert (code, out) == (1, "")
    assert said in err


async def test_every_fault_of_a_file_is_reported(cli: Cli) -> None:
    two = export_of(1).replace("port:", "prot:") + export_of(2).replace("n: 2", "n: {a: 1}")
    code, out, err = await cli("apply", "-f", written(cli, "a.yaml", two + export_of(3)))
    first, second = err.splitlines()

    assert (code, out) == (1, "")
    assert "document 1: spec.prot is not known here; did you mean port?" in first
    assert "document 2: Invalid property `n`" in second


# ---- all or nothing ----------------------------------------------------------------------------


async def test_nothing_is_applied_if_any_document_would_be_refused(cli: Cli) -> None:
    half = DOCUMENTS + "\n---\n" + BAD_FILTER + export_of(1)
    code, out, err = await cli("apply", "-f", written(cli, "half.yaml", half))

    assert (code, out) == (1, "")
    assert "FilterInvalid: import default/bad/0/p: " in err
    assert "0 of 4 applied, 1 refused, 3 not tried" in err
    assert await names(cli.rest, "exports") == []


async def test_of_many_documents_it_is_said_how_many_were_applied(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecast, "MAX_CHANGES", 2)
    text = "".join(map(export_of, range(3)))
    taken = MINE.replace("mine", "taken").replace("job: alerts", "job: other")
    await cli("apply", "-f", written(cli, "t.yaml", taken))
    bad = text + "\n---\n" + taken.replace("name: taken", "name: another") + export_of(9)
    code, out, err = await cli("apply", "-f", written(cli, "many.yaml", bad))
    fine, _, _ = await cli("apply", "-f", written(cli, "fine.yaml", text))
    guarded = await cli("apply", "-f", written(cli, "fine.yaml", text), "--max-removed", "0")

    assert (code, fine, guarded[0]) == (1, 0, 2)
    assert out.count("created") == 2
    assert "PortTaken" in err
    assert err.splitlines()[-1] == "streambroker: 2 of 5 applied, 1 refused, 2 not tried"


async def test_a_file_with_more_documents_than_a_what_if_takes_is_applied(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecast, "MAX_REQUEST_BYTES", 100)
    many = "".join(map(export_of, range(4)))
    code, out, reported = await cli("apply", "-f", written(cli, "many.yaml", many))
    monkeypatch.setattr(forecast, "MAX_CHANGES", 3)
    asked, _, err = await cli("whatif", "-f", written(cli, "many.yaml", many))

    assert (code, out.count("created"), asked) == (0, 4, 2)
    assert "takes at most 3 changes, these are 4" in err
    assert (
        "4 changes are too many for one request; they are sent in 4 parts of at most 1,000"
        in reported
    )


async def test_what_concerns_too_many_routes_goes_in_halves_unless_they_are_counted(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnose, "MAX_ROUTES", -1)
    guarded = await cli("apply", "-f", str(cli.file), "--max-removed", "0")
    before = await names(cli.rest, "exports")
    code, out, err = await cli("apply", "-f", str(cli.file))

    assert (guarded[0], before) == (1, [])
    assert "ForecastTooLarge" in guarded[2]
    assert (code, out.count("created")) == (0, 2)
    assert err == (
        "streambroker: note: 2 changes affect too many routes at once; they are sent in two"
        " halves\n"
    )


async def test_a_renamed_property_cuts_nothing_if_both_ends_are_in_one_file(applied: Cli) -> None:
    text = DOCUMENTS.replace("{kind: trade", "{type: trade").replace("'kind == ", "'type == ")
    file = written(applied, "b.yaml", text)
    code, out, _ = await applied("apply", "-f", file, "--max-removed", "0")

    assert code == 0
    assert out.splitlines()[-1] == "routes: 0 added, 0 cut, 1 kept, 0 changed"


CUTTING = DOCUMENTS.replace("kind: trade", "kind: quote")


async def test_apply_that_would_cut_a_route_changes_nothing_if_it_cannot_ask(applied: Cli) -> None:
    other = written(applied, "b.yaml", CUTTING)
    code, out, err = await applied("apply", "-f", other)
    kept = (await applied.rest("GET", "/job/feed/pe/0/export/trades")).body
    allowed, _, _ = await applied("apply", "-f", other, "--yes")

    assert (code, allowed) == (3, 0)
    assert kept["spec"]["properties"]["kind"] == "trade"
    assert "routes: 0 added, 1 cut, 0 kept, 0 changed; nothing was applied" in out
    assert err.splitlines() == [
        "streambroker: note: apply cuts routes only with --yes or --max-removed N",
        "streambroker: WouldCut: 1 route would be cut, 0 may be; nothing was changed.",
    ]


@pytest.mark.parametrize(
    ("answer", "code", "kind"), [("y\n", 0, "quote"), ("\n", 3, "trade"), ("no\n", 3, "trade")]
)
async def test_at_a_terminal_apply_asks_before_it_cuts_a_route(
    applied: Cli, monkeypatch: pytest.MonkeyPatch, answer: str, code: int, kind: str
) -> None:
    monkeypatch.setattr(forecast, "is_terminal", lambda _=None: True)
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    ended, out, _ = await applied("apply", "-f", written(applied, "b.yaml", CUTTING))
    now = (await applied.rest("GET", "/job/feed/pe/0/export/trades")).body

    assert (ended, now["spec"]["properties"]["kind"]) == (code, kind)
    assert "Apply, and cut 1 route? [y/N] " in out


async def test_a_command_cannot_both_limit_and_allow_cut_routes(cli: Cli) -> None:
    code, _, err = await cli("apply", "-f", str(cli.file), "--yes", "--max-removed", "1")
    assert code == 2
    assert "--max-removed" in err


async def test_a_guard_that_holds_says_so_on_the_standard_error(applied: Cli) -> None:
    other = written(applied, "b.yaml", DOCUMENTS.replace("kind: trade", "kind: quote"))
    code, _, err = await applied("apply", "-f", other, "--max-removed", "0")
    gone, out, reported = await applied("delete", "export/feed-trades", "--max-removed", "0")

    assert (code, gone) == (3, 3)
    assert err == ("streambroker: WouldCut: 1 route would be cut, 0 may be; nothing was changed.\n")
    assert reported == err
    assert out.endswith("nothing was deleted\n")


# ---- values ------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["kind=null", "kind=~", "{kind: null}"])
async def test_null_is_no_value_of_a_property(applied: Cli, word: str) -> None:
    code, out, err = await applied("set-properties", "feed-trades", word)
    file = written(applied, "a.yaml", export_of(1).replace("n: 1", "n: null"))
    refused, _, reported = await applied("apply", "-f", file)

    assert (code, out, refused) == (1, "", 1)
    assert "PropertyInvalid: Invalid property `kind`: it is null; leave it out" in err
    assert f"PropertyInvalid: {file}, document 1: Invalid property `n`" in reported


async def test_numbers_are_those_of_yaml_1_2_and_what_is_stored_is_shown(applied: Cli) -> None:
    code, out, _ = await applied(
        "set-properties", "feed-trades", "t=12:30:45", "n=0o14", "v=1_a", "q=no", "e=1e3", "h=0x1f"
    )
    _, shown, _ = await applied("get", "exports", "-o", "yaml")
    again, reported, _ = await applied("apply", "-f", written(applied, "shown.yaml", shown))

    assert code == 0
    assert ': t="12:30:45" n=12 v="1_a" q=false e=1000 h=31 (routes: ' in out
    assert yaml.safe_load(shown)["spec"]["properties"]["t"] == "12:30:45"
    assert (again, "unchanged" in reported) == (0, True)


@pytest.mark.parametrize("text", ["1e3", "09", "0o17", "12:30", "1_0", "2026-01-02", "no"])
async def test_a_text_that_looks_like_something_else_stays_a_text(applied: Cli, text: str) -> None:
    await applied.rest("PUT", "/job/feed/pe/0/export/trades/properties", {"p": text})
    _, shown, _ = await applied("get", "exports", "-o", "yaml")
    _, reported, _ = await applied("apply", "-f", written(applied, "shown.yaml", shown))

    assert "unchanged" in reported


async def test_an_import_that_a_change_leaves_without_a_route_learns_why(applied: Cli) -> None:
    code, out, err = await applied("set-subscription", "alerts-trades", "knid == 5")
    fine = await applied("set-subscription", "import", "alerts-trades", 'kind == "trade"')

    assert (code, "subscription set" in out) == (0, True)
    assert "note: " in err
    assert "knid" in err
    assert (fine[0], fine[2]) == (0, "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["set-subscription", "alerts", "kind", "==", "trade"], "alerts 'kind == trade'`"),
        (["set-filter", "import/a/zero/p", "x == 1"], "'zero' is not a PE number"),
        (["delete", "export", "a", "pe/b/0"], "is of another kind"),
        (["get", "export", "a", "import", "b"], "'import' is a kind"),
        (["explain", "export"], "Name one"),
        (["set-filter", "export/a", "x == 1"], "'export/a' is not of kind import"),
        (["apply", "streams.yaml"], "Did you mean `-f streams.yaml`?"),
        (["up", "--port", "99999"], "write 0 to 65535"),
        (["--url", "http://x:1/api", "get"], "write --url http://host:port"),
        (["diff"], "`whatif` shows"),
        (["get", "-o", "wid"], "Did you mean 'wide'? See"),
        (["get", "-o", "jsonpath={.items}"], "use json, and select with jq"),
        (["get", "export", "default/feed-trades"], "`-n default`"),
        ([], "Give a COMMAND"),
    ],
)
def test_a_wrong_command_line_learns_what_to_write(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(words)
    out, err = capsys.readouterr()

    assert (code, out) == (2, "")
    assert said in err
    assert "?." not in err
    assert err.count("\n") == 1


def test_help_and_the_release_are_commands_and_options(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--version"]) == 0
    assert re.fullmatch(r"streambroker \d.*\n", capsys.readouterr().out)
    assert main(["help"]) == 0
    assert "whatif" in capsys.readouterr().out
    assert main(["help", "whatif"]) == 0
    assert "default 0" in " ".join(capsys.readouterr().out.split())
    assert main(["help", "nonsense"]) == 2


async def test_a_resource_of_the_other_kind_is_named(applied: Cli) -> None:
    _, _, err = await applied("explain", "feed-trades")
    code, out, _ = await applied("get", "feed-trades", "-o", "name")
    top, _, reported = await applied("top", "nope/0/x")
    shown, routes, _ = await applied("top", "feed-trades")

    assert "it is an export: write export/feed-trades" in err
    assert (code, out) == (0, "export/feed-trades\n")
    assert (top, "UnknownPort" in reported, shown) == (1, True, 0)
    assert " feed/0/trades " in routes


async def test_a_pe_is_named_as_a_port_is(applied: Cli) -> None:
    words = (["pe", "alerts", "0"], ["pe/alerts/0"], ["pe/default/alerts/0"], ["alerts/0"])
    found = [await applied("get", *word, "-o", "name") for word in words]

    assert found == [(0, "pe/alerts/0\n", "")] * 4


async def test_a_long_expression_is_cut_around_what_is_wrong(applied: Cli) -> None:
    _, _, err = await applied("set-filter", "alerts-trades", "price > 1 && " * 100 + "price >")
    line, caret = err.splitlines()[1:]

    assert len(line) < 80
    assert caret.index("^") == len(line)
    assert line.endswith("price >")


async def test_names_of_everywhere_can_be_used_again(applied: Cli) -> None:
    await applied.rest("PUT", "/job/feed/pe/0/export/p?namespace=lab", {"properties": {"a": 1}})
    _, out, _ = await applied("get", "-A", "-o", "name")

    assert {"export/lab/feed/0/p", "pe/lab/feed/0"} <= set(out.split())
    assert ">" not in out
    for name in out.split():
        assert (await applied("get", name))[0] == 0, name


async def test_of_several_deletions_all_are_made_or_none(
    applied: Cli,
) -> None:
    words = ["export/feed/0/trades", "export/feed/0/nope", "import/alerts/0/trades"]
    code, out, err = await applied("delete", *words)

    assert (code, out) == (1, "")
    assert "UnknownPort" in err.splitlines()[0]
    assert err.splitlines()[1] == "streambroker: 0 of 3 deleted, 1 refused, 2 not tried"
    assert len(await names(applied.rest, "exports")) == 1
