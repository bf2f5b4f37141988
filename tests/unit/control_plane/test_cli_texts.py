"""What the command line reads and shows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streambroker_core.errors import ManifestError
from streambroker_operator.cli.io.manifest_files import read_value
from streambroker_operator.cli.io.options import one_of
from streambroker_operator.cli.io.yaml_format import dump_all
from streambroker_operator.cli.output.table import Table, render_document, render_items


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("5.5", 5.5),
        ("true", True),
        ('"5"', "5"),
        ("[IBM, 5]", ["IBM", 5]),
        ("2026-01-02", "2026-01-02"),
        ("", ""),
        ("two words", "two words"),
    ],
)
def test_values_are_read_as_yaml_but_dates_stay_text(text: str, value: Any) -> None:
    assert read_value(text) == value


@pytest.mark.parametrize("text", ["[", "{a: 1, a: 2}", "!!python/object:x {}", "[" * 5000])
def test_what_is_not_plain_yaml_is_refused(text: str) -> None:
    with pytest.raises(ManifestError):
        read_value(text)


@pytest.mark.parametrize(
    "text", ["0123", "-07", "1_000", "1_0.5", "0b11", "0X1F", "-0x1F", "0x1_F", "{a: 0123}"]
)
def test_what_kubectl_reads_in_another_way_is_refused(text: str) -> None:
    with pytest.raises(ManifestError, match="kubectl reads"):
        read_value(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-0.5", -0.5),
        ("0x1F", 31),
        ("0o17", 15),
        ("yes", True),
        ("no", False),
        ("yacht", "yacht"),
        ("1_a", "1_a"),
        ("07-11", "07-11"),
    ],
)
def test_what_kubectl_reads_alike_is_read(text: str, value: Any) -> None:
    assert read_value(text) == value


@pytest.mark.parametrize("text", ["0123", "1_000", "0b11", "y", "N", "-0x1F", "0o17", "1e3", "on"])
def test_texts_are_shown_so_that_they_are_read_back(text: str) -> None:
    assert read_value(dump_all([{"a": text}])) == {"a": text}


def test_what_kubectl_takes_for_a_boolean_is_shown_in_quotes() -> None:
    assert dump_all([{"n": "y", "no": "x"}]) == "'n': 'y'\n'no': x\n"


def test_columns_are_as_wide_as_their_longest_cell() -> None:
    table = Table[tuple[str, str]]({"A": lambda row: row[0], "B": lambda row: row[1]})

    assert table.text([("long", "x")]) == "A     B\nlong  x\n"


def test_long_texts_are_cut_in_tables_only() -> None:
    item = {
        "metadata": {},
        "spec": {"job": "j", "pe": 0, "port": "p", "subscription": "x" * 100},
        "status": {"matches": 2, "reason": "Accepted"},
    }

    assert "x" * 59 + "…" in render_items("imports", [item], "table")
    assert "x" * 100 in render_document([item], "json")


def test_an_import_by_name_shows_that_it_wants_streams() -> None:
    spec = {"streams": [{"applicationName": "a", "streamId": "s"}, {"streamId": "t"}]}
    item = {"metadata": {}, "spec": {"job": "j", "pe": 0, "port": "p", **spec}, "status": {}}

    assert "stream a/s, stream t" in render_items("imports", [item], "table")


@pytest.mark.parametrize("word", ["text", "table"])
def test_the_two_words_for_what_people_read_are_one(word: str) -> None:
    assert (one_of("text", "json")(word), one_of("table", "json")(word)) == ("text", "table")


def test_an_empty_list_has_no_rows() -> None:
    assert render_items("pes", [], "table") == ""
    assert json.loads(render_document([], "json"))["items"] == []
