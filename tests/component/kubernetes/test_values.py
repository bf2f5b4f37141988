"""The same YAML means the same through Kubernetes and through the broker's own store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from streambroker_core.errors import PropertyError
from streambroker_core.expression import parse
from streambroker_core.model import Export
from streambroker_core.wire.manifests.ports import read_manifest
from streambroker_operator.cli import main
from support.brokers.brokers import Rest, running_broker
from support.clusters.api_server import GROUP, ApiServer

DOCUMENT = """
apiVersion: streambroker.io/v1alpha1
kind: Export
metadata: {{name: sample}}
spec:
  job: feed
  port: trades
  properties:
    x: {}
"""

VALUES: dict[str, tuple[Any, str]] = {
    "5": (5, "x % 2 == 1"),
    "5.0": (5, "x % 2 == 1 && x == 5"),
    "1e3": (1000, "x & 8 == 8"),
    "-0.0": (0, "x == 0 && x >> 1 == 0"),
    "0x1F": (31, "x == 31"),
    "1.5": (1.5, "x * 2.0 == 3.0"),
    "1e-320": (1e-320, "x > 0.0 && x < 1e-300"),
    "9007199254740993": (2**53 + 1, "x == 9007199254740993 && x > 9007199254740992"),
    "9223372036854775807": (2**63 - 1, "x == 9223372036854775807"),
    "-9223372036854775808": (-(2**63), "x < -9223372036854775807"),
    "[2.0, 3.5]": ([2, 3.5], "2 in x && x[0] % 2 == 0 && x[1] == 3.5"),
    "[]": ([], "has(x)"),
    "'5'": ("5", 'x == "5"'),
    "true": (True, "x == true"),
    "on": (True, "x == true"),
    "[true, no]": ([True, False], "false in x"),
    "12:30:45": ("12:30:45", 'startsWith(x, "12:")'),
    "2026-01-02": ("2026-01-02", 'endsWith(x, "-02")'),
    "blé": ("blé", 'x == "blé"'),
    '"a\\tb"': ("a\tb", 'contains(x, "\\t")'),
}
"""What is written, what it is, and a subscription that is true of it."""

OTHERWISE = {"0123": 83, "1_000": 1000, "0b11": 3, "-0x1F": -31}
"""What kubectl reads in its own way, and as what."""

BEYOND = ("9223372036854775808", "-9223372036854775809", "1e30")


@asynccontextmanager
async def applied(folder: Path, text: str) -> AsyncIterator[tuple[int, Rest]]:
    """Apply a document to a broker over SQLite, start that anew, and yield the exit code."""
    file, db = folder / "document.yaml", folder / "broker.db"
    file.write_text(text)
    async with running_broker(db) as (_, rest):
        code = await asyncio.to_thread(main, ["--url", rest.url, "apply", "-f", str(file)])
    async with running_broker(db) as (_, rest):
        yield code, rest


def through_kubernetes(api: ApiServer, namespace: str, text: str) -> object:
    """Apply a document by kubectl and return what the API server has then."""
    done = api.kubectl("-n", namespace, "apply", "-f", "-", stdin=text)
    assert done.returncode == 0, done.stderr
    return api.request("GET", f"{GROUP}/namespaces/{namespace}/exports/sample").body


async def through_the_store(folder: Path, text: str) -> object:
    """Apply a document by the command line and return what a new broker has then."""
    async with applied(folder, text) as (code, rest):
        assert code == 0
        return (await rest("GET", "/job/feed/pe/0/export/trades")).body


def properties(manifest: object) -> dict[str, Any]:
    """Return the properties as the broker takes them."""
    found = read_manifest(manifest)
    assert isinstance(found, Export)
    assert found.properties is not None
    return dict(found.properties)


@pytest.mark.parametrize("written", VALUES)
async def test_a_value_means_the_same_through_both_doors(
    api: ApiServer, namespace: str, tmp_path: Path, written: str
) -> None:
    value, subscription = VALUES[written]
    text = DOCUMENT.format(written)
    there = properties(through_kubernetes(api, namespace, text))
    here = properties(await through_the_store(tmp_path, text))

    assert repr(there) == repr(here) == repr({"x": value})
    assert parse(subscription).matches(there)
    assert parse(subscription).matches(here)


async def test_null_is_no_property_through_both_doors(
    api: ApiServer, namespace: str, tmp_path: Path
) -> None:
    there = properties(through_kubernetes(api, namespace, DOCUMENT.format("null")))
    async with running_broker(tmp_path / "broker.db") as (_, rest):
        path = "/job/feed/pe/0/export/trades"
        assert (await rest("PUT", path, {"properties": {"x": None}})).status == 201
        here = properties((await rest("GET", path)).body)

    assert there == here == {}


@pytest.mark.parametrize("written", BEYOND)
async def test_a_number_beyond_int64_is_refused_behind_both_doors(
    api: ApiServer, namespace: str, tmp_path: Path, written: str
) -> None:
    text = DOCUMENT.format(written)
    with pytest.raises(PropertyError, match="outside the range of int64"):
        properties(through_kubernetes(api, namespace, text))

    async with applied(tmp_path, text) as (code, rest):
        assert code == 1
        assert (await rest("GET", "/job/feed/pe/0/export/trades")).status == 404


@pytest.mark.parametrize("written", OTHERWISE)
async def test_what_kubectl_reads_in_its_own_way_is_refused_by_the_command_line(
    api: ApiServer, namespace: str, tmp_path: Path, written: str
) -> None:
    text = DOCUMENT.format(written)
    assert properties(through_kubernetes(api, namespace, text)) == {"x": OTHERWISE[written]}

    async with applied(tmp_path, text) as (code, rest):
        assert code == 1
        assert (await rest("GET", "/job/feed/pe/0/export/trades")).status == 404
