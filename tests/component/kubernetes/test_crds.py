"""The CRDs on a real API server: what is admitted, what is stored, what people see."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from streambroker_core.errors import StreambrokerError
from streambroker_core.model import Resource, Rule
from streambroker_core.wire.manifests.ports import OBJECTS, write_spec
from streambroker_core.wire.manifests.rules import write_rule_spec
from support.clusters.api_server import APPLY, CRDS, GROUP, MERGE, Answer, ApiServer
from support.kubernetes.samples import Sample, accepted, samples

BETA = "/apis/streambroker.io/v1beta1"
DEFAULTS = {
    "pe": 0,
    "allowFilter": True,
    "congestionPolicy": "wait",
    "applicationScope": "Default",
    "onCongestion": "inherit",
    "start": "latest",
}

valid = pytest.mark.parametrize("sample", samples("valid"), ids=lambda sample: sample.name)
invalid = pytest.mark.parametrize("sample", samples("invalid"), ids=lambda sample: sample.name)


class Door:
    """The API server's paths for the Exports and Imports of one namespace."""

    def __init__(self, api: ApiServer, namespace: str, group: str = GROUP) -> None:
        self.api, self.namespace, self.group = api, namespace, group

    def create(self, plural: str, body: Any) -> Answer:
        path = f"{self.group}/namespaces/{self.namespace}/{plural}?fieldValidation=Strict"
        return self.api.request("POST", path, body)

    def apply(self, plural: str, body: Any) -> Answer:
        path = f"{self.path(plural)}?fieldValidation=Strict&fieldManager=tests&force=true"
        return self.api.request("PATCH", path, body, content_type=APPLY)

    def put_up(self, sample: Sample) -> Answer:
        """Create a sample's document, or apply one after the other; return the last answer."""
        if len(sample.texts) == 1:
            return self.create(sample.plural, sample.texts[0])
        for text in sample.texts[:-1]:
            answer = self.apply(sample.plural, text)
            assert answer.status < 300, answer.message
        return self.apply(sample.plural, sample.texts[-1])

    def path(self, plural: str, name: str = "sample") -> str:
        return f"{self.group}/namespaces/{self.namespace}/{plural}/{name}"

    def spec(self, plural: str, name: str = "sample") -> dict[str, Any]:
        answer = self.api.request("GET", self.path(plural, name))
        assert answer.status == 200, answer.message
        return dict(answer.body["spec"])

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        done = self.api.kubectl("-n", self.namespace, *arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def door(api: ApiServer, namespace: str) -> Door:
    return Door(api, namespace)


def document(kind: str, name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "streambroker.io/v1alpha1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
    }


def without_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_null(v) for k, v in value.items() if v is not None}
    return [without_null(item) for item in value] if isinstance(value, list) else value


# ---- samples -----------------------------------------------------------------


@valid
def test_a_valid_sample_is_stored_as_it_is_written(door: Door, sample: Sample) -> None:
    answer = door.put_up(sample)
    assert answer.status in (200, 201), answer.message

    written, stored = without_null(sample.documents[-1]["spec"]), door.spec(sample.plural)
    for item in stored.get("streams", []):
        if item["applicationName"] == "":
            del item["applicationName"]
    added = {name: value for name, value in stored.items() if name not in written}
    assert {**written, **added} == stored
    assert added.items() <= DEFAULTS.items()


@valid
def test_the_broker_reads_a_stored_sample_as_it_reads_the_file(door: Door, sample: Sample) -> None:
    door.put_up(sample)
    stored = door.api.request("GET", door.path(sample.plural)).body

    assert spec_of(accepted(stored)) == spec_of(accepted(sample.documents[-1]))


@valid
@pytest.mark.compatibility(
    "Export, Import, PatternProcessor",
    "the API server stores a resource of `v1beta1` as the same of `v1alpha1`",
)
def test_a_sample_means_the_same_in_both_versions(door: Door, sample: Sample) -> None:
    beta = Door(door.api, door.namespace, BETA)
    written = [text.replace("/v1alpha1", "/v1beta1") for text in sample.texts]
    answer = beta.put_up(replace(sample, texts=tuple(written)))
    assert answer.body.get("apiVersion") == "streambroker.io/v1beta1", answer.message

    stored = door.api.request("GET", door.path(sample.plural)).body
    assert (stored["apiVersion"], stored["spec"]) == (
        "streambroker.io/v1alpha1",
        answer.body["spec"],
    )
    assert spec_of(accepted(answer.body)) == spec_of(accepted(stored))


def spec_of(resource: Resource | Rule) -> Any:
    return write_rule_spec(resource) if isinstance(resource, Rule) else write_spec(resource)


@invalid
def test_an_invalid_sample_is_refused_for_the_reason_it_names(
    request: pytest.FixtureRequest, api: ApiServer, sample: Sample
) -> None:
    # A namespace is made only for a sample that is stored: each has the same name.
    stored = sample.only_by_broker or len(sample.texts) > 1
    door = request.getfixturevalue("door") if stored else Door(api, "default")
    answer = door.put_up(sample)

    if sample.only_by_broker:
        assert answer.status == 201, answer.message
        with pytest.raises(StreambrokerError) as caught:
            accepted(door.api.request("GET", door.path(sample.plural)).body)
        assert sample.refused in str(caught.value)
    else:
        assert answer.status in (400, 422), (answer.status, answer.message)
        assert sample.refused in answer.message


@invalid
def test_what_the_api_server_refuses_the_broker_refuses_too(sample: Sample) -> None:
    before, last = sample.documents[:-1], sample.documents[-1]
    for document_ in before:
        accepted(document_)

    if "immutable" in sample.refused:
        assert accepted(last).key != accepted(before[-1]).key
    else:
        with pytest.raises(StreambrokerError):
            accepted(last)


# ---- limits: the last value that is taken and the first that is not -----------

EXPORT: dict[str, Any] = {"job": "feed", "port": "trades", "streamId": "s"}
BY_PROPERTIES: dict[str, Any] = {"job": "feed", "port": "trades"}
IMPORT: dict[str, Any] = {"job": "alerts", "port": "trades"}


def columns(count: int) -> list[dict[str, str]]:
    return [{"name": f"c{number}", "type": "int"} for number in range(count)]


def struct(size: int) -> str:
    """Return a type of so many bytes."""
    frame = "struct<:int>"
    return frame.replace(":", "c" * (size - len(frame)) + ":")


def text(size: int) -> str:
    """Return a subscription of so many bytes."""
    return 'a == "' + "é" * ((size - 7) // 2) + "x" * ((size - 7) % 2) + '"'


LIMITS: dict[str, tuple[str, Mapping[str, Any], str, Any, Any]] = {
    "job": ("Export", EXPORT, "job", "a" * 63, "a" * 64),
    "pe": ("Export", EXPORT, "pe", 65535, 65536),
    "port": ("Import", IMPORT, "port", "a" * 63, "a" * 64),
    "name": ("Export", EXPORT, "application", {"name": "é" * 126}, {"name": "é" * 127}),
    "scope": ("Import", IMPORT, "application", {"scope": "a" * 253}, {"scope": "a" * 254}),
    "searched scope": ("Import", IMPORT, "applicationScope", "é" * 126, "é" * 127),
    "streamId": ("Export", BY_PROPERTIES, "streamId", "é" * 126, "é" * 127),
    "properties": (
        "Export",
        BY_PROPERTIES,
        "properties",
        {f"p{n}": n for n in range(256)},
        {f"p{n}": n for n in range(257)},
    ),
    "text": ("Export", BY_PROPERTIES, "properties", {"a": "é" * 1024}, {"a": "é" * 1025}),
    "list": ("Export", BY_PROPERTIES, "properties", {"a": [0] * 256}, {"a": [0] * 257}),
    "element": ("Export", BY_PROPERTIES, "properties", {"a": ["é" * 1024]}, {"a": ["é" * 1025]}),
    "columns": ("Export", EXPORT, "schema", columns(1024), columns(1025)),
    "column": (
        "Import",
        IMPORT,
        "schema",
        [{"name": "é" * 127, "type": "int"}],
        [{"name": "é" * 128, "type": "int"}],
    ),
    "type": (
        "Import",
        IMPORT,
        "schema",
        [{"name": "a", "type": struct(4096)}],
        [{"name": "a", "type": struct(4097)}],
    ),
    "size in bytes": ("Export", EXPORT, "buffer", {"maxBytes": 10**18}, {"maxBytes": 10**18 + 200}),
    "size": ("Export", EXPORT, "buffer", {"maxBytes": "999999Ti"}, {"maxBytes": "1000000Ti"}),
    "size as text": ("Export", EXPORT, "buffer", {"maxBytes": "9" * 18}, {"maxBytes": "9" * 19}),
    "age": ("Export", EXPORT, "buffer", {"maxAge": "9" * 12 + "d"}, {"maxAge": "9" * 13 + "d"}),
    "grace": ("Export", EXPORT, "buffer", {"grace": "1m" * 16}, {"grace": "1m" * 17}),
    "wait": ("Export", EXPORT, "buffer", {"waitLimit": "1m" * 16}, {"waitLimit": "1m" * 17}),
    "namespaces": (
        "Export",
        EXPORT,
        "allowedNamespaces",
        [f"n{number}" for number in range(64)],
        [f"n{number}" for number in range(65)],
    ),
    "namespace": ("Export", EXPORT, "allowedNamespaces", ["n" * 63], ["n" * 64]),
    "revoked": (
        "Export",
        EXPORT,
        "revoked",
        [f"n{number}" for number in range(64)],
        [f"n{number}" for number in range(65)],
    ),
    "revoked job": (
        "Export",
        EXPORT,
        "revoked",
        [f"{'n' * 63}/{'j' * 63}"],
        [f"{'n' * 63}/{'j' * 64}"],
    ),
    "streams": (
        "Import",
        IMPORT,
        "streams",
        [{"streamId": f"s{number}"} for number in range(64)],
        [{"streamId": f"s{number}"} for number in range(65)],
    ),
    "wanted name": (
        "Import",
        IMPORT,
        "streams",
        [{"streamId": "é" * 126, "applicationName": "é" * 126}],
        [{"streamId": "s", "applicationName": "é" * 127}],
    ),
    "subscription": ("Import", IMPORT, "subscription", text(2048), text(2049)),
    "filter": ("Import", IMPORT, "filter", f"a{' ' * 2044}==1", f"a{' ' * 2045}==1"),
}


@pytest.mark.parametrize("limit", LIMITS)
def test_the_api_server_and_the_broker_draw_each_limit_at_the_same_place(
    door: Door, limit: str
) -> None:
    kind, base, field, most, more = LIMITS[limit]
    taken = document(kind, "taken", {**base, field: most})
    refused = document(kind, "refused", {**base, field: more})

    answer = door.create(f"{kind.lower()}s", taken)
    assert answer.status == 201, answer.message
    accepted(taken)
    answer = door.create(f"{kind.lower()}s", refused)
    assert answer.status == 422, answer.status
    with pytest.raises(StreambrokerError):
        accepted(refused)


# ---- what the API server makes of it -------------------------------------------


def test_absent_fields_are_stored_with_their_defaults(door: Door) -> None:
    door.create("exports", document("Export", "sample", {**EXPORT, "application": {}}))
    door.create("imports", document("Import", "sample", {**IMPORT, "streams": [{"streamId": "s"}]}))

    assert door.spec("exports") == {
        **EXPORT,
        "pe": 0,
        "application": {"scope": "Default"},
        "allowFilter": True,
        "congestionPolicy": "wait",
    }
    assert door.spec("imports") == {
        **IMPORT,
        "pe": 0,
        "streams": [{"applicationName": "", "streamId": "s"}],
        "applicationScope": "Default",
        "onCongestion": "inherit",
        "start": "latest",
    }


def test_both_faults_of_a_manifest_are_reported_at_once(door: Door) -> None:
    answer = door.create("exports", document("Export", "bad", {**EXPORT, "pe": -1, "port": "9"}))

    assert "spec.pe" in answer.message
    assert "spec.port" in answer.message


def test_resources_are_selected_by_job_pe_and_stream(door: Door) -> None:
    for job, pe, stream in (("feed", 0, "a"), ("feed", 1, "b"), ("other", 0, "b")):
        spec = {"job": job, "pe": pe, "port": "p", "streamId": stream}
        assert door.create("exports", document("Export", f"{job}-{pe}", spec)).status == 201
        spec = {"job": job, "pe": pe, "port": "p"}
        assert door.create("imports", document("Import", f"{job}-{pe}", spec)).status == 201

    def chosen(plural: str, selector: str) -> list[str]:
        found = door.kubectl("get", plural, "--field-selector", selector, "-o", "name")
        return [line.rpartition("/")[2] for line in found.splitlines()]

    assert chosen("exports", "spec.job=feed") == ["feed-0", "feed-1"]
    assert chosen("exports", "spec.job=feed,spec.pe=1") == ["feed-1"]
    assert chosen("exports", "spec.streamId=b") == ["feed-1", "other-0"]
    assert chosen("imports", "spec.job=other,spec.pe=0") == ["other-0"]
    assert chosen("imports", "spec.job=other,spec.port=p") == ["other-0"]
    assert chosen("exports", "spec.port=q") == []


def test_a_status_is_written_apart_from_the_spec(door: Door) -> None:
    door.create("imports", document("Import", "sample", IMPORT))
    both = {"spec": {"filter": "a == 1"}, "status": {"matches": 3}}
    path = door.path("imports")
    through_status = door.api.request("PATCH", f"{path}/status", both, content_type=MERGE).body
    through_spec = door.api.request(
        "PATCH", path, {**both, "status": {"matches": 4}}, content_type=MERGE
    ).body

    assert "filter" not in through_status["spec"]
    assert through_status["metadata"]["generation"] == 1
    assert through_spec["status"] == {"matches": 3}
    assert through_spec["metadata"]["generation"] == 2


STATUS: dict[str, Any] = {
    "observedGeneration": 1,
    "conditions": [
        {
            "type": kind,
            "status": "True",
            "reason": reason,
            "message": "",
            "lastTransitionTime": "2026-01-02T03:04:05Z",
            "observedGeneration": 1,
        }
        for kind, reason in (
            ("Accepted", "Accepted"),
            ("Matched", "Matched"),
            ("Programmed", "Programmed"),
            ("Ready", "Ready"),
            ("Steered", "Steered"),
            ("Ended", "Finished"),
        )
    ],
    "matches": 2,
    "topMatches": [f"{'n' * 63}/{'j' * 63}/65535/{'p' * 63}"] * 10,
    "summary": "x" * 60,
    "endpoint": {
        "location": "grpc+tcp://10.0.0.7:4711",
        "hint": "10.0.0.7:4712",
        "instance": "0123456789abcdef",
    },
    "serviceAccount": "spark",
    "applied": "0123456789abcdef0123456789abcdef",
}


@pytest.mark.parametrize(("plural", "kind"), [("exports", "Export"), ("imports", "Import")])
def test_a_full_status_is_kept_whole(door: Door, plural: str, kind: str) -> None:
    door.create(plural, document(kind, "sample", EXPORT if kind == "Export" else IMPORT))
    path = f"{door.path(plural)}/status?fieldValidation=Strict"
    answer = door.api.request("PATCH", path, {"status": STATUS}, content_type=MERGE)

    assert answer.status == 200, answer.message
    assert answer.body["status"] == STATUS


# ---- what people see ------------------------------------------------------------


def table(text: str) -> list[str]:
    """Return the lines of a table without its last column, the age."""
    return [" ".join(line.split()[:-1]) for line in text.splitlines() if line]


def ready(summary: str, matches: int, status: str, reason: str) -> dict[str, Any]:
    condition = {
        "type": "Ready",
        "status": status,
        "reason": reason,
        "lastTransitionTime": "2026-01-02T03:04:05Z",
    }
    return {"status": {"summary": summary, "matches": matches, "conditions": [condition]}}


@pytest.fixture
def shown(door: Door) -> Door:
    """An Export and an Import with a status."""
    spec = {**BY_PROPERTIES, "properties": {"kind": "trade"}}
    door.create("exports", document("Export", "offer", spec))
    spec = {**IMPORT, "pe": 1, "subscription": "level>3", "filter": "price>10"}
    door.create("imports", document("Import", "wish", spec))
    for path, status in (
        (door.path("exports", "offer"), ready("kind=trade", 1, "True", "Programmed")),
        (door.path("imports", "wish"), ready("level>3", 0, "False", "NoMatch")),
    ):
        answer = door.api.request("PATCH", f"{path}/status", status, content_type=MERGE)
        assert answer.status == 200, answer.message
    return door


def test_get_streams_shows_both_kinds_at_a_glance(shown: Door) -> None:
    assert table(shown.kubectl("get", "streams")) == [
        "NAME JOB PE PORT OFFERS MATCHES READY REASON ENDED DURABILITY STORED HEALTHY",
        "export.streambroker.io/offer feed 0 trades kind=trade 1 True Programmed",
        "NAME JOB PE PORT WANTS MATCHES READY REASON HEALTHY",
        "import.streambroker.io/wish alerts 1 trades level>3 0 False NoMatch",
    ]


def test_the_wide_table_shows_what_is_long(shown: Door) -> None:
    (_, offer), (_, wish) = (
        table(shown.kubectl("get", name, "-o", "wide")) for name in ("sexp", "simp")
    )

    assert '{"kind":"trade"}' in offer
    assert "level>3 level>3 price>10" in wish


@pytest.mark.parametrize("kind", OBJECTS)
def test_every_field_has_a_description(api: ApiServer, kind: str) -> None:
    fields = dict(described(api.published()[kind], kind))

    assert len(fields) > 40
    assert [path for path, text in fields.items() if not text] == []


def described(schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    """Return each field of a schema with its description, but for those of ``metadata``."""
    yield path, schema.get("description", "")
    if path.endswith(".metadata"):
        return
    for name, field in schema.get("properties", {}).items():
        yield from described(field, f"{path}.{name}")
    for part in ("items", "additionalProperties"):
        if part in schema:
            yield from described(schema[part], f"{path}.{part}")


@pytest.mark.parametrize(
    "field",
    [
        "exports",
        "sexp.spec",
        "exports.spec.properties",
        "exports.spec.buffer",
        "exports.spec.schema",
        "exports.status",
        "simp",
        "imports.spec",
        "imports.spec.streams",
        "imports.status.conditions",
        "imports.status.endpoint",
        "spat",
        "patternprocessors.spec",
        "patternprocessors.spec.pattern.stages",
        "patternprocessors.status.conditions",
    ],
)
def test_kubectl_explain_leaves_nothing_empty(door: Door, field: str) -> None:
    said = door.kubectl("explain", field)

    assert "DESCRIPTION:" in said
    assert "<empty>" not in said
    assert "<no description>" not in said


def test_the_same_crds_are_applied_again_without_a_change(api: ApiServer) -> None:
    before = crd_versions(api)
    api.apply_crds()

    assert len(before) == len(OBJECTS)
    assert crd_versions(api) == before


def crd_versions(api: ApiServer) -> dict[str, str]:
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    return {
        item["metadata"]["name"]: item["metadata"]["resourceVersion"]
        for item in api.request("GET", path).body["items"]
    }


@pytest.mark.parametrize("path", sorted(CRDS.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_api_server_keeps_every_keyword_of_the_schema(api: ApiServer, path: Any) -> None:
    name = f"{path.stem}.streambroker.io"
    answer = api.request("GET", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
    conditions = {c["type"]: c["status"] for c in answer.body["status"]["conditions"]}
    written = json.loads(
        api.kubectl("create", "--dry-run=client", "-o", "json", "-f", str(path)).stdout
    )
    versions, kept = written["spec"]["versions"], answer.body["spec"]["versions"]

    for of in ("name", "schema", "selectableFields", "additionalPrinterColumns"):
        assert [one[of] for one in kept] == [one[of] for one in versions]
    assert conditions.get("NonStructuralSchema", "False") == "False"
