"""Policies of Exports: how they combine, what is refused, and what an Import of them sees."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streambroker_core.board import AgentRegistered
from streambroker_core.diagnose import explain_pair, explain_port, render_pair, take_snapshot
from streambroker_core.errors import CapabilityError, ManifestError
from streambroker_core.matching import Match, NoMatch, match
from streambroker_core.model import Export
from streambroker_core.model.policies import (
    Mask,
    PolicyDeniedError,
    Restriction,
    combine,
    decode_restriction,
    encode_restriction,
    restrict,
    restrict_unknown,
)
from streambroker_core.wire.broker import capability, view
from streambroker_core.wire.encoding.fields import Fields
from streambroker_core.wire.encoding.policies import read_policies, write_policies
from support.core.resources import board_of, export_of, import_of, pe, registration

COLUMNS = [{"name": n, "type": t} for n, t in (("age", "int"), ("city", "string"))]
ALERTS = {"for": {"namespace": "default", "job": "alerts"}, "columns": ["city"]}
NAMES = st.sampled_from(["a", "b", "c"])
MASKS = st.sampled_from(
    [Mask(kind="null"), Mask(kind="hash"), *(Mask(kind="constant", value=v) for v in "xy")]
)
RESTRICTIONS = st.builds(
    lambda names, filters, columns, masks: Restriction(
        names=tuple(sorted(names)),
        filters=tuple(sorted(filters)),
        columns=None if columns is None else tuple(sorted(columns)),
        masks=tuple(sorted(masks.items())),
    ),
    st.sets(NAMES),
    st.sets(NAMES),
    st.none() | st.sets(NAMES),
    st.dictionaries(NAMES, MASKS),
)


def ordered(one: Restriction | None) -> Restriction | None:
    if one is None:
        return None
    return replace(one, names=tuple(sorted(one.names)), filters=tuple(sorted(one.filters)))


@given(RESTRICTIONS, RESTRICTIONS, RESTRICTIONS)
def test_the_order_of_policies_makes_no_difference_and_each_only_withholds(
    one: Restriction, two: Restriction, three: Restriction
) -> None:
    assert combine(one, one) == one
    assert combine(one, None) == one == combine(None, one)
    assert ordered(combine(one, two)) == ordered(combine(two, one))
    assert ordered(combine(combine(one, two), three)) == ordered(combine(one, combine(two, three)))
    both = combine(one, two)
    assert both is not None
    assert {*both.filters} == {*one.filters, *two.filters}
    assert both.select("abc") == [n for n in one.select("abc") if n in two.select("abc")]
    assert dict(both.masks).keys() == dict(one.masks).keys() | dict(two.masks).keys()
    assert decode_restriction(encode_restriction(both)) == both


def policies(*items: Any, default: str | None = None) -> Any:
    return read_policies(Fields({"policies": list(items), "policyDefault": default}), None)


def test_a_policy_is_for_the_namespace_and_the_job_that_it_names() -> None:
    found = policies(ALERTS, {"for": {"job": "alerts"}, "filter": "age > 1"}, {"filter": "age > 2"})
    of = {
        who: restrict(found, *who) for who in [("default", "alerts"), ("x", "alerts"), ("x", "y")]
    }
    assert [None if r is None else r.names for r in of.values()] == [
        ("policies[0]", "policies[1]", "policies[2]"),
        ("policies[1]", "policies[2]"),
        ("policies[2]",),
    ]
    everyone = restrict_unknown(found)
    assert everyone is not None
    assert everyone.columns == ("city",)


def test_without_a_policy_for_it_an_import_reads_everything_unless_the_default_is_deny() -> None:
    assert restrict(policies(ALERTS), "other", "alerts") is None
    with pytest.raises(PolicyDeniedError, match="no policy of the export is for other/alerts"):
        restrict(policies(ALERTS, default="deny"), "other", "alerts")
    with pytest.raises(PolicyDeniedError, match="has no policies"):
        restrict_unknown(policies(default="deny"))


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({}, "policies[0] needs filter, columns or mask"),
        ({"for": {"pe": 0}, "columns": []}, "policies[0].for.pe is not known here"),
        ({"for": {"job": "A"}, "columns": []}, "policies[0].for.job is 'A', which is not a DNS"),
        ({"filter": "age >"}, "policies[0].filter is wrong: Invalid filter"),
        ({"filter": "size > 1"}, "policies[0].filter is wrong: Invalid filter"),
        ({"filter": " "}, "policies[0].filter is blank"),
        ({"columns": ["nmae"]}, "policies[0].columns has `nmae`, which is no column of schema"),
        ({"columns": [3]}, "policies[0].columns holds an integer"),
        ({"mask": [{"column": "age", "with": None}]}, '"null" (in quotes), hash or constant'),
        ({"mask": [{"column": "age", "with": "sha"}]}, "it has to be null or hash or constant"),
        ({"mask": [{"column": "age", "with": "hash"}]}, "`age` is int; only text can be hashed"),
        ({"mask": [{"column": "age", "with": "constant"}]}, "value is the text of a constant"),
        ({"mask": [{"column": "age", "with": "null", "value": "1"}]}, "for that alone"),
        ({"mask": [{"column": "age", "with": "constant", "value": 3}]}, "has to be a text"),
        ({"mask": [{"column": "age", "with": "constant", "value": "2147483648"}]}, "no constant"),
        ({"mask": [{"column": "old", "with": "null"}]}, "`old`, which is no column of schema"),
        ({"mask": [{"column": "age", "with": "null"}] * 2}, "which has a mask already"),
    ],
)
def test_a_wrong_policy_is_refused_and_named(policy: dict[str, Any], message: str) -> None:
    with pytest.raises(ManifestError) as refused:
        export_of("feed/out", schema=COLUMNS, policies=[policy])
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("bigint", "-9223372036854775808", "9223372036854775808"),
        ("double", "1.5e3", "one"),
        ("decimal(4,2)", "12.34", "123.4"),
        ("boolean", "true", "True"),
        ("date", "2026-01-31", "31.1.2026"),
        ("timestamp", "2026-01-31T00:00:00Z", "2026-01-31T00:00:00"),
        ("timestamp_ntz", "2026-01-31T00:00:00", "2026-01-31T00:00:00Z"),
        ("string", "", None),
        ("array<int>", None, "[]"),
    ],
)
def test_a_constant_has_the_type_of_its_column(
    kind: str, good: str | None, bad: str | None
) -> None:
    def made(value: str) -> Export:
        mask = {"column": "c", "with": "constant", "value": value}
        return export_of(
            "feed/out", schema=[{"name": "c", "type": kind}], policies=[{"mask": [mask]}]
        )

    if good is not None:
        assert made(good).policies
    if bad is not None:
        with pytest.raises(ManifestError, match="is no constant of"):
            made(bad)


def test_an_unknown_field_of_a_policy_is_never_ignored() -> None:
    body = Fields({"policies": [{"columns": [], "rows": 5}]}, loose=True)
    with pytest.raises(ManifestError, match=r"policies\[0\].rows is not known"):
        read_policies(body, None)


def test_policies_are_read_as_they_were_written() -> None:
    mask = [
        {"column": "age", "with": "constant", "value": "0"},
        {"column": "city", "with": "hash"},
    ]
    found = policies(ALERTS, {"filter": "age>1", "mask": mask}, default="deny")
    assert read_policies(Fields(write_policies(found)), None) == found
    assert write_policies(policies()) == {}


def test_an_import_matches_only_what_policies_leave_and_explain_names_them() -> None:
    wants_age = import_of("alerts/in", schema=COLUMNS[:1])
    filters_age = import_of("alerts/in", filter="age > 3")
    free = import_of("other/in", schema=COLUMNS, filter="age > 3")
    export = export_of("feed/out", schema=COLUMNS, policies=[ALERTS])
    for import_, reason in ((wants_age, "SchemaMismatch"), (filters_age, "FilterInvalid")):
        outcome = match(export, import_)
        assert isinstance(outcome, NoMatch)
        assert outcome.reason == reason
        assert "(policies[0] of the export leave out columns.)" in outcome.message
        pair = explain_pair(export, import_)
        assert (pair.reason, pair.distance) == (reason, 1)
        assert "\n  policies[0]: only the columns city" in render_pair(pair)
    assert isinstance(match(export, free), Match)
    assert explain_pair(export, free).policies is None
    denied = export_of("feed/out", schema=COLUMNS, policies=[ALERTS], policyDefault="deny")
    outcome = match(denied, free)
    assert isinstance(outcome, NoMatch)
    assert outcome.reason == "PolicyDenied" == explain_pair(denied, free).reason
    ranking = explain_port(take_snapshot(board_of(denied, free).reader), free, limit=1)
    assert ranking.pairs[0].distance == explain_pair(denied, free).distance


def test_the_view_has_the_policies_and_its_version_follows_them() -> None:
    def viewed(*, job: str, **more: Any) -> view.View:
        board = board_of(export_of("feed/out", schema=COLUMNS, **more), import_of("alerts/in"))
        board.handle(AgentRegistered(pe=pe("feed"), registration=registration()))
        found = board.reader.view(pe(job))
        assert found is not None
        assert found.version == view.with_version(found).version
        return found

    exporting = viewed(job="feed", policies=[ALERTS])
    assert view.decode(view.encode(exporting)).exports["out"].policies == policies(ALERTS)
    plain, narrowed = viewed(job="alerts"), viewed(job="alerts", policies=[ALERTS])
    assert plain.version != narrowed.version
    assert plain.version != viewed(job="alerts", policies=[{"filter": "age > 1"}]).version


def test_agents_of_an_earlier_release_refuse_the_capability_for_an_export_with_policies() -> None:
    ports: dict[str, Any] = {"reader_import": "default/alerts/0/in", "export": "default/feed/0/out"}
    signed = {
        policed: capability.sign(
            b"k" * 32, filter_allowed=True, policy="wait", policed=policed, **ports
        )
        for policed in (False, True)
    }
    for policed, text in signed.items():
        found = capability.verify(b"k" * 32, text, now=0.0, **ports)
        assert found.policed == policed
    assert capability.sign(b"k" * 32, filter_allowed=True, policy="wait", **ports) == signed[False]
    body = capability._decode(signed[True].partition(".")[0]).decode()
    assert '"v":2' in body
    newer = capability._encode(body.replace('"v":2', '"v":3').encode())
    mac = capability._encode(capability._mac(b"k" * 32, capability._decode(newer)))
    with pytest.raises(CapabilityError, match="form 3"):
        capability.verify(b"k" * 32, f"{newer}.{mac}", now=0.0, **ports)
