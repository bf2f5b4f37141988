"""Manifests: what is written is read, and each wrong field is blamed by its path."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streambroker_core.errors import ManifestError, PropertyError
from streambroker_core.model import Archive, Export, Import, PeKey, PortKey, Resource, name_of
from streambroker_core.wire.encoding.quantity import (
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)
from streambroker_core.wire.manifests.ports import (
    read_manifest,
    read_spec,
    size_problem,
    write_manifest,
    write_spec,
)
from support.core.resources import export_of, import_of

FULL_EXPORT: dict[str, Any] = {
    "job": "feed",
    "pe": 2,
    "port": "trades",
    "application": {"name": "market.Feed", "scope": "Lab"},
    "properties": {"kind": "trade", "tickers": ["IBM"], "level": 5.0, "gone": None},
    "allowFilter": False,
    "congestionPolicy": "drop",
    "schema": [{"name": "price", "type": "DOUBLE"}],
    "buffer": {"maxBytes": "256Mi", "maxAge": "1h30m", "grace": "30s", "waitLimit": "45s"},
    "allowedNamespaces": ["lab", "*"],
    "revoked": ["lab/alerts", "lab"],
    "archive": {"maxBytes": "1Ti", "maxAge": "7d"},
    "description": "Trades,\nof the tape",
    "owner": "team-a",
    "tags": ["gold", "free"],
    "columnComments": {"price": "in USD", "gone": None},
}
FULL_IMPORT: dict[str, Any] = {
    "job": "alerts",
    "port": "trades",
    "application": {"name": "market.Alerts"},
    "subscription": 'kind == "trade"',
    "applicationScope": "Lab",
    "filter": "price > 10.0",
    "onCongestion": "drop",
    "start": "earliest",
    "schema": [{"name": "price", "type": "double"}],
}


def document(kind: str, spec: Any, **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "streambroker.io/v1alpha1",
        "kind": kind,
        "metadata": {"name": "one", **metadata},
        "spec": spec,
    }


@pytest.mark.compatibility(
    "Export, Import, PatternProcessor",
    "`v1alpha1` and `v1beta1` are read as the same; another version is refused by name",
)
def test_both_versions_are_read_as_the_same_and_no_other_is() -> None:
    written = document("Export", FULL_EXPORT)
    beta = {**written, "apiVersion": "streambroker.io/v1beta1"}

    assert read_manifest(beta) == read_manifest(written)
    with pytest.raises(
        ManifestError,
        match=r"has to be streambroker\.io/v1beta1 or streambroker\.io/v1alpha1",
    ):
        read_manifest({**written, "apiVersion": "streambroker.io/v1"})


def test_every_field_of_an_export_is_read() -> None:
    found = read_manifest(document("Export", FULL_EXPORT, uid="u", generation=3))

    assert isinstance(found, Export)
    assert str(found.key) == "default/feed/2/trades"
    assert (found.uid, found.generation, found.name) == ("u", 3, "one")
    assert (found.application.name, found.application.scope) == ("market.Feed", "Lab")
    assert found.properties == {"kind": "trade", "tickers": ["IBM"], "level": 5}
    assert (found.allow_filter, found.congestion_policy) == (False, "drop")
    assert found.schema is not None
    assert found.schema[0].type == "double"
    assert (found.buffer.max_bytes, found.buffer.max_age_s, found.buffer.grace_s) == (
        256 << 20,
        5400.0,
        30.0,
    )
    assert found.buffer.wait_limit_s == 45.0
    assert found.allowed_namespaces == ("*", "lab")
    assert found.revoked == ("lab", "lab/alerts")
    assert found.archive == Archive(max_bytes=1 << 40, max_age_s=7 * 86_400.0)
    assert (found.catalog.description, found.catalog.owner) == ("Trades,\nof the tape", "team-a")
    assert (found.catalog.tags, found.catalog.column_comments) == (
        ("free", "gold"),
        {"price": "in USD"},
    )


def test_every_field_of_an_import_is_read() -> None:
    found = read_manifest(document("Import", FULL_IMPORT), namespace="lab")

    assert isinstance(found, Import)
    assert str(found.key) == "lab/alerts/0/trades"
    assert found.subscription == 'kind == "trade"'
    assert (found.application_scope, found.filter) == ("Lab", "price > 10.0")
    assert (found.on_congestion, found.start) == ("drop", "earliest")


def test_what_is_left_out_has_its_default() -> None:
    export = read_spec("Export", {"job": "j", "port": "p", "streamId": "s"})
    import_ = read_spec("Import", {"job": "j", "port": "p", "schema": [], "filter": " "})

    assert isinstance(export, Export)
    assert isinstance(import_, Import)
    assert (export.application.scope, export.allow_filter) == ("Default", True)
    assert (export.buffer.max_bytes, export.buffer.max_age_s, export.buffer.grace_s) == (
        1 << 30,
        None,
        600.0,
    )
    assert export.buffer.wait_limit_s is None
    assert export.archive is None
    assert (import_.subscription, import_.streams, import_.filter) == (None, (), None)
    assert (import_.schema, import_.start, import_.on_congestion) == (None, "latest", "inherit")


@pytest.mark.parametrize(
    "resource",
    [
        export_of(),
        export_of(properties={}),
        export_of("f/p", schema=[]),
        export_of("n/f/3/p", streamId="s"),
        export_of(archive={"maxAge": "90m"}),
        export_of(archive={"maxBytes": 5000}),
        read_manifest(document("Export", FULL_EXPORT, uid="u", generation=3)),
        import_of(),
        import_of(streams=[{"streamId": "s"}, {"applicationName": "a", "streamId": "s"}]),
        read_manifest(
            document("Import", FULL_IMPORT, uid="u", creationTimestamp="2026-01-02T03:04:05Z")
        ),
    ],
)
def test_what_is_written_is_read_back(resource: Resource) -> None:
    manifest = json.loads(json.dumps(write_manifest(resource, version=7)))
    back = read_manifest(manifest)

    assert manifest["metadata"]["resourceVersion"] == "7"
    assert name_of(back) == name_of(resource)
    assert write_manifest(back, version=7) == manifest
    assert (
        read_spec(
            "Export" if isinstance(resource, Export) else "Import",
            write_spec(resource),
            namespace=resource.key.namespace,
        ).key
        == resource.key
    )


EXPORT = {"job": "j", "port": "p", "streamId": "s"}
IMPORT = {"job": "j", "port": "p"}


@pytest.mark.parametrize(
    ("kind", "change", "path"),
    [
        ("Export", {"job": None}, "spec.job"),
        ("Export", {"job": "Big"}, "spec.job"),
        ("Export", {"job": "a" * 64}, "spec.job"),
        ("Export", {"job": 5}, "spec.job"),
        ("Export", {"pe": -1}, "spec.pe"),
        ("Export", {"pe": 65536}, "spec.pe"),
        ("Export", {"pe": True}, "spec.pe"),
        ("Export", {"pe": 1.0}, "spec.pe"),
        ("Export", {"port": "9x"}, "spec.port"),
        ("Export", {"port": ""}, "spec.port"),
        ("Export", {"streamID": "s"}, "spec.streamID"),
        ("Export", {"streamId": None}, "spec.streamId"),
        ("Export", {"properties": {}}, "spec.streamId"),
        ("Export", {"streamId": None, "properties": []}, "spec.properties"),
        (
            "Export",
            {"streamId": None, "properties": {f"n{n}": n for n in range(257)}},
            "spec.properties",
        ),
        ("Export", {"application": "x"}, "spec.application"),
        ("Export", {"application": {"nam": "x"}}, "spec.application.nam"),
        ("Export", {"application": {"name": "\ud800"}}, "spec.application.name"),
        ("Export", {"allowFilter": "true"}, "spec.allowFilter"),
        ("Export", {"congestionPolicy": "Drop"}, "spec.congestionPolicy"),
        ("Export", {"congestionPolicy": ["drop"]}, "spec.congestionPolicy"),
        ("Export", {"schema": {}}, "spec.schema"),
        ("Export", {"schema": [1]}, "spec.schema[0]"),
        ("Export", {"schema": [{"name": "x"}]}, "spec.schema[0].type"),
        ("Export", {"schema": [{"name": "x", "type": "dubble"}]}, "spec.schema"),
        ("Export", {"schema": [{"name": "x", "type": "int"}] * 2}, "spec.schema"),
        ("Export", {"buffer": {"maxBytes": "1.5Gi"}}, "spec.buffer.maxBytes"),
        ("Export", {"buffer": {"maxBytes": 0}}, "spec.buffer.maxBytes"),
        ("Export", {"buffer": {"maxBytes": 10**18 + 1}}, "spec.buffer.maxBytes"),
        ("Export", {"buffer": {"maxBytes": "1000000Ti"}}, "spec.buffer.maxBytes"),
        ("Export", {"buffer": {"maxAge": "soon"}}, "spec.buffer.maxAge"),
        ("Export", {"buffer": {"maxAge": 60}}, "spec.buffer.maxAge"),
        ("Export", {"buffer": {"grace": "1y"}}, "spec.buffer.grace"),
        ("Export", {"buffer": {"size": 1}}, "spec.buffer.size"),
        ("Export", {"allowedNamespaces": "*"}, "spec.allowedNamespaces"),
        ("Export", {"allowedNamespaces": ["A B"]}, "spec.allowedNamespaces"),
        ("Export", {"allowedNamespaces": [1]}, "spec.allowedNamespaces"),
        ("Export", {"allowedNamespaces": ["lab", "lab"]}, "spec.allowedNamespaces"),
        ("Export", {"revoked": "lab"}, "spec.revoked"),
        ("Export", {"revoked": ["lab/alerts/0"]}, "spec.revoked"),
        ("Export", {"revoked": [1]}, "spec.revoked"),
        ("Export", {"revoked": ["lab", "lab"]}, "spec.revoked"),
        ("Export", {"revoked": [f"n{n}" for n in range(65)]}, "spec.revoked"),
        ("Export", {"buffer": {"waitLimit": 30}}, "spec.buffer.waitLimit"),
        ("Export", {"archive": {}}, "spec.archive"),
        ("Export", {"archive": {"maxAge": None}}, "spec.archive"),
        ("Export", {"archive": "7d"}, "spec.archive"),
        ("Export", {"archive": {"maxAge": 7}}, "spec.archive.maxAge"),
        ("Export", {"archive": {"maxBytes": "1TB"}}, "spec.archive.maxBytes"),
        ("Export", {"archive": {"grace": "1h"}}, "spec.archive.grace"),
        ("Export", {"subscription": "x"}, "spec.subscription"),
        ("Import", {"subscription": 5}, "spec.subscription"),
        ("Import", {"subscription": "x", "streams": [{"streamId": "s"}]}, "spec.streams"),
        ("Import", {"streams": {}}, "spec.streams"),
        ("Import", {"streams": ["s"]}, "spec.streams[0]"),
        ("Import", {"streams": [{}]}, "spec.streams[0].streamId"),
        ("Import", {"streams": [{"streamId": "s"}] * 2}, "spec.streams[1]"),
        ("Import", {"streams": [{"streamId": str(n)} for n in range(65)]}, "spec.streams"),
        ("Import", {"filter": ["x"]}, "spec.filter"),
        ("Import", {"onCongestion": "wait"}, "spec.onCongestion"),
        ("Import", {"start": "now"}, "spec.start"),
        ("Import", {"start": "1h"}, "spec.start"),
        ("Import", {"start": "-1 h"}, "spec.start"),
        ("Import", {"start": "-"}, "spec.start"),
        ("Import", {"start": 1767225600}, "spec.start"),
        ("Import", {"start": "2026-01-31"}, "spec.start"),
        ("Import", {"start": "2026-01-31T12:00:00"}, "spec.start"),
        ("Import", {"start": "2026-02-30T12:00:00Z"}, "spec.start"),
        ("Import", {"start": "2026-01-31T12:00:00+24:00"}, "spec.start"),
        ("Import", {"applicationScope": ""}, "spec.applicationScope"),
        ("Import", {"properties": {}}, "spec.properties"),
    ],
)
def test_each_bad_field_is_blamed_by_its_path(kind: str, change: dict[str, Any], path: str) -> None:
    spec = {**(EXPORT if kind == "Export" else IMPORT), **change}
    with pytest.raises(ManifestError) as caught:
        read_manifest(document(kind, spec))

    assert caught.value.path == path
    assert caught.value.code == "ManifestInvalid"
    assert str(caught.value).startswith(path)


def test_a_start_that_is_wrong_is_refused_with_all_forms() -> None:
    with pytest.raises(ManifestError, match=r"-1h or -7d") as caught:
        read_manifest(document("Import", {**IMPORT, "start": "yesterday"}))
    assert str(caught.value) == (
        "spec.start is 'yesterday', which is not latest, earliest, a time with zone such as"
        " 2026-01-31T12:00:00Z, or a time ago such as -1h or -7d."
    )


@pytest.mark.parametrize("start", ["-7d12h", "2026-01-31T12:00:00.25+01:00"])
def test_a_start_in_time_is_kept_as_it_is_written(start: str) -> None:
    found = read_manifest(document("Import", {**IMPORT, "start": start}))
    assert isinstance(found, Import)
    assert (found.start, write_spec(found)["start"]) == (start, start)


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ("text", ""),
        (None, ""),
        ([], ""),
        ({1: 2}, ""),
        ({}, "apiVersion"),
        ({**document("Export", EXPORT), "apiVersion": "v1"}, "apiVersion"),
        (document("Pod", EXPORT), "kind"),
        ({"apiVersion": "streambroker.io/v1alpha1", "spec": EXPORT}, "kind"),
        ({"apiVersion": "streambroker.io/v1alpha1", "kind": "Export"}, "spec"),
        ({**document("Export", EXPORT), "data": 1}, "data"),
        (document("Export", 5), "spec"),
        (document("Export", EXPORT, namespace="A"), "metadata.namespace"),
        (document("Export", EXPORT, name="$(reboot)"), "metadata.name"),
        (document("Export", EXPORT, name="a..b"), "metadata.name"),
        (document("Export", EXPORT, generation="1"), "metadata.generation"),
        (document("Export", EXPORT, nam="one"), "metadata.nam"),
        (document("Export", EXPORT, creationTimestamp="today"), "metadata.creationTimestamp"),
    ],
)
def test_each_bad_envelope_is_blamed_by_its_path(body: Any, path: str) -> None:
    with pytest.raises(ManifestError) as caught:
        read_manifest(body)

    assert caught.value.path == path


def test_a_bad_property_is_blamed_by_its_name() -> None:
    with pytest.raises(PropertyError) as caught:
        read_spec("Export", {"job": "j", "port": "p", "properties": {"mixed": [1, "x"]}})

    assert caught.value.name == "mixed"


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("x" * 1025, "1025 characters, the limit is 1024"),
        (["é" * 1025], "1025 characters, the limit is 1024"),
        ([0] * 257, "257 elements, the limit is 256"),
    ],
)
def test_a_resource_holds_no_property_larger_than_kubernetes_takes(
    value: Any, problem: str
) -> None:
    found = size_problem(export_of(properties={"a": value}))

    assert isinstance(found, PropertyError)
    assert (found.name, problem in str(found)) == ("a", True)


@pytest.mark.parametrize("value", ["é" * 1024, ["x" * 1024], [0] * 256, 5])
def test_a_resource_holds_properties_up_to_their_limits(value: Any) -> None:
    assert size_problem(export_of(properties={"a": value})) is None


def test_a_spec_says_the_same_port_as_its_address() -> None:
    key = PortKey(namespace="default", job="j", pe=0, port="p")
    assert read_spec("Import", {}, key=key).key == key
    assert read_spec("Import", {"job": "j"}, key=key).key == key

    with pytest.raises(ManifestError) as caught:
        read_spec("Import", {"port": "q"}, key=key)
    assert caught.value.path == "port"


@pytest.mark.parametrize(
    "text", ["", "a", "a/b", "a/b/c", "a/b/-1", "a/b/00", "a/b/65536", "A/b/0", "a/b/\u0661"]
)
def test_a_text_that_is_no_pe_is_refused(text: str) -> None:
    with pytest.raises(ManifestError):
        PeKey.parse(text)


@given(st.integers(1, 10**18))
def test_sizes_are_read_as_they_are_written(size: int) -> None:
    assert parse_size(format_size(size)) == size


@given(st.integers(0, 10**11))
def test_durations_are_read_as_they_are_written(milliseconds: int) -> None:
    assert parse_duration(format_duration(milliseconds / 1000)) == milliseconds / 1000
