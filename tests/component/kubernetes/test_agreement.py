"""What the CRDs take and what core takes is the same, for any mixture of good and bad fields.

Left out is what the API server cannot see and the broker therefore tells in the status:
names of properties, lists of two kinds or with null, numbers beyond int64, types that Spark
does not know, expressions that cannot be read. Samples and `test_values` have those.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streambroker_core.errors import StreambrokerError
from support.clusters.api_server import GROUP, ApiServer
from support.kubernetes.samples import accepted

NAMES: list[Any] = [
    "a",
    "market.Feed",
    "",
    "é" * 126,
    "é" * 127,
    "x" * 253,
    "x" * 254,
    " ",
    None,
    5,
    [],
    {},
]
COLUMNS: list[Any] = [
    [],
    None,
    {},
    "price",
    [None],
    ["price"],
    [{"name": "a", "type": "DOUBLE"}],
    [{"name": "a b", "type": "array<struct<x:int>>"}],
    [{"name": "a", "type": "int"}, {"name": "a", "type": "int"}],
    [{"name": "", "type": "int"}],
    [{"name": "a", "type": ""}],
    [{"name": "a"}],
    [{"name": "a", "type": None}],
    [{"name": "a", "type": "int", "nullable": True}],
]
COMMON: dict[str, list[Any]] = {
    "job": ["feed", "0", "a" * 63, "a" * 64, "Feed", "-a", "a-", "a.b", "", "é", "a\n", 5, None],
    "pe": [0, 1, 65535, 65536, -1, 1.5, "0", True, None, []],
    "port": ["trades", "_", "T-1", "p" * 63, "p" * 64, "1p", "-p", "a.b", "", "é", "a\n", 5, None],
    "application": [
        {},
        None,
        "market.Feed",
        [],
        {"title": "x"},
        *({"name": name} for name in NAMES),
        *({"scope": name} for name in NAMES),
    ],
    "schema": COLUMNS,
    "colour": ["red"],
}
SIZES: list[Any] = [
    *("1Gi", "10k", "999999999Gi", "1000000000Gi", "0", "1.5Gi", "1GB", ""),
    *(1, 10**18, 0, -1, 1.5, True, None, []),
]
DURATIONS: list[Any] = [
    "1s",
    "0s",
    "1h30m",
    "250ms",
    "9" * 13 + "s",
    "1m" * 17,
    "1",
    "1 s",
    "",
    "s",
    60,
    None,
]
EXPORT: dict[str, list[Any]] = {
    **COMMON,
    "streamId": [*NAMES, "trades", "trades", "trades", None, None],
    "properties": [
        {},
        {"a": 1},
        {"a": 1.5, "b": "x", "c": True, "d": [1, 2.5], "e": [], "f": None},
        {"a": {}},
        {"a": {"b": 1}},
        {"a": [[]]},
        {"a": [{}]},
        {"a": ["x" * 1025]},
        {"a": "é" * 1024},
        {"a": "é" * 1025},
        {"a": [True] * 257},
        [],
        "a",
        5,
        None,
        None,
    ],
    "allowFilter": [True, False, "true", 1, None],
    "congestionPolicy": ["wait", "drop", "Drop", "block", "", 5, None],
    "buffer": [
        {},
        None,
        [],
        "1Gi",
        {"size": 1},
        *(
            {"maxBytes": size}
            for size in ("1Gi", "10k", 1, 10**18, 0, -1, 1.5, "0", "1.5Gi", "1GB")
        ),
        *({"maxBytes": size} for size in SIZES),
        *({"maxAge": text} for text in DURATIONS),
        *({"grace": text} for text in DURATIONS),
        *({"waitLimit": text} for text in DURATIONS),
    ],
    "allowedNamespaces": [
        [],
        None,
        ["lab"],
        ["*"],
        ["lab", "*"],
        ["lab", "lab"],
        ["lab-*"],
        ["Lab"],
        [""],
        [5],
        [None],
        "lab",
        ["n" * 64],
    ],
    "revoked": [
        [],
        None,
        ["lab"],
        ["lab/alerts"],
        ["lab", "lab/alerts"],
        ["lab", "lab"],
        ["lab/alerts/0"],
        ["lab/"],
        ["/alerts"],
        ["*"],
        ["lab/*"],
        ["Lab/alerts"],
        [""],
        [5],
        "lab",
        ["n" * 63 + "/" + "j" * 63],
        ["n" * 64],
        ["n/" + "j" * 64],
    ],
}
TEXTS: list[Any] = ["", " ", "\t\n", "a == 1", "a == 1 && b == 2", 5, [], None, None]
IMPORT: dict[str, list[Any]] = {
    **COMMON,
    "subscription": TEXTS,
    "streams": [
        [],
        None,
        None,
        {},
        "s",
        ["s"],
        [None],
        [{}],
        [{"streamId": "s"}],
        [{"streamId": "s"}, {"streamId": "s", "applicationName": "a"}],
        [{"streamId": "s"}, {"streamId": "s", "applicationName": ""}],
        [{"streamId": "s"}, {"streamId": "s", "applicationName": None}],
        [{"streamId": "s", "scope": "x"}],
        *([{"streamId": name}] for name in NAMES),
        *([{"streamId": "s", "applicationName": name}] for name in NAMES),
    ],
    "applicationScope": NAMES,
    "filter": TEXTS,
    "onCongestion": ["inherit", "drop", "wait", "", None],
    "start": ["latest", "earliest", "now", "", 0, None],
}
SOUND: dict[str, dict[str, Any]] = {
    "Export": {"job": "feed", "port": "trades", "streamId": "s"},
    "Import": {"job": "alerts", "port": "trades"},
}


@st.composite
def specs(draw: st.DrawFn, kind: str) -> dict[str, Any]:
    """Draw a sound spec of which up to three fields are something else."""
    pool = EXPORT if kind == "Export" else IMPORT
    names = draw(st.lists(st.sampled_from(sorted(pool)), min_size=1, max_size=3, unique=True))
    return {**SOUND[kind], **{name: draw(st.sampled_from(pool[name])) for name in names}}


def refusal_of_core(document: dict[str, Any]) -> str:
    """Return why core refuses a document, or an empty text."""
    try:
        accepted(document)
    except StreambrokerError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("kind", ["Export", "Import"])
@given(data=st.data())
def test_core_takes_a_spec_if_and_only_if_the_api_server_does(
    api: ApiServer, kind: str, data: st.DataObject
) -> None:
    document = {
        "apiVersion": "streambroker.io/v1alpha1",
        "kind": kind,
        "metadata": {"name": "sample"},
        "spec": data.draw(specs(kind)),
    }
    path = f"{GROUP}/namespaces/default/{kind.lower()}s?dryRun=All&fieldValidation=Strict"
    answer = api.request("POST", path, document)
    refused = refusal_of_core(document)

    assert answer.status in (201, 400, 422), answer.message
    assert (answer.status == 201) == (refused == ""), (answer.message, refused)


@pytest.mark.parametrize(
    ("kind", "name"), [("Export", name) for name in EXPORT] + [("Import", name) for name in IMPORT]
)
def test_core_takes_a_field_if_and_only_if_the_api_server_does(
    api: ApiServer, kind: str, name: str
) -> None:
    path = f"{GROUP}/namespaces/default/{kind.lower()}s?dryRun=All&fieldValidation=Strict"
    differ = []
    for value in (EXPORT if kind == "Export" else IMPORT)[name]:
        spec = {**SOUND[kind], name: value}
        if name == "properties":
            del spec["streamId"]
        document = {
            "apiVersion": "streambroker.io/v1alpha1",
            "kind": kind,
            "metadata": {"name": "sample"},
            "spec": spec,
        }
        answer = api.request("POST", path, document)
        refused = refusal_of_core(document)
        if (answer.status == 201) != (refused == ""):
            differ.append((value, answer.message, refused))

    assert differ == []
