"""What is said of fields that others hold, and of what they took."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from streambroker_operator.kubernetes.apply.conflicts import (
    FieldConflict,
    owned_by_other_error,
    parse_conflicts,
    removal_conflicts,
    takeover_warnings,
)
from streambroker_operator.kubernetes.apply.overrides import (
    Steering,
    find_overwritten,
    steered_fields,
    steered_text,
)
from streambroker_operator.kubernetes.client.documents import Document, FieldCause, ManagedFields
from streambroker_operator.kubernetes.client.managed_fields import API
from streambroker_operator.kubernetes.client.objects import MAX_MESSAGE

AT = "2026-11-21T11:29:31Z"
NOON = datetime(2026, 11, 21, 11, 29, 31, tzinfo=UTC)


def entry(manager: str, *fields: str, operation: str = "Apply", time: str = AT) -> Any:
    """Return an entry that holds fields, written ``filter`` or ``properties.price``."""
    tree: dict[str, Any] = {}
    for field in fields:
        below = tree
        for name in field.split("."):
            below = below.setdefault(f"f:{name}", {})
    return {
        "manager": manager,
        "operation": operation,
        "time": time,
        "fieldsV1": {"f:spec": tree} if tree else {"f:status": {}},
        **({} if tree else {"subresource": "status"}),
    }


def document(*entries: ManagedFields) -> Document:
    return {"metadata": {"managedFields": list(entries)}}


def cause(field: str, owner: str, more: str = "") -> FieldCause:
    return {
        "reason": "FieldManagerConflict",
        "field": f".spec.{field}",
        "message": f'conflict with "{owner}"{more}',
    }


def test_a_refusal_names_the_owner_the_field_and_the_way_out() -> None:
    found = parse_conflicts(
        document(entry("gitops", "properties.price")), [cause("properties.price", "gitops")]
    )
    assert found == [FieldConflict(field="properties.price", owner="gitops", at=NOON)]
    error = owned_by_other_error("Export", "feed-trades", found, removing=False)
    assert (error.status, error.code) == (409, "OwnedByOther")
    assert str(error) == (
        'Property `price` of Export feed-trades is declared by "gitops" (last applied 2026-11-21'
        " 11:29 UTC). A change here would be undone at its next apply. Remove `price` from that"
        " manifest to change it at run time, or repeat with force=true to override it until then."
    )
    assert error.facts == {
        "owner": "gitops",
        "field": "properties.price",
        "conflicts": [{"field": "properties.price", "owner": "gitops", "at": AT}],
    }


def test_an_owner_is_named_however_the_api_server_words_it() -> None:
    using = " using streambroker.io/v1alpha1"
    found = parse_conflicts(document(), [cause("filter", "kubectl-client-side-apply", using)])
    assert (found[0].owner, found[0].field, found[0].at) == (
        "kubectl-client-side-apply",
        "filter",
        None,
    )
    assert "Remove `filter` from that manifest" in str(
        owned_by_other_error("Import", "alerts", found, removing=False)
    )
    odd = parse_conflicts(document(), [{"field": "", "message": "something else"}])
    assert (odd[0].owner, odd[0].field) == ("an unknown writer", "spec")


def test_what_was_set_by_hand_is_not_said_to_be_applied_again() -> None:
    found = [FieldConflict(field="filter", owner="kubectl-edit", at=NOON)]
    said = str(owned_by_other_error("Import", "alerts", found, removing=False))
    assert said == (
        '`filter` of Import alerts was last set by "kubectl-edit" (2026-11-21 11:29 UTC). Nothing'
        " was changed. Repeat with force=true to take it over."
    )
    assert "next apply" not in takeover_warnings("Import", "alerts", found)[0]


def test_several_fields_are_all_named() -> None:
    found = [FieldConflict(field=f"properties.p{n}", owner="gitops") for n in range(8)]
    said = str(owned_by_other_error("Export", "feed", found, removing=False))
    assert 'So are property `p1` ("gitops"), ' in said
    assert "and 2 more. A change" in said
    two = str(owned_by_other_error("Export", "feed", found[:2], removing=False))
    assert 'So is property `p1` ("gitops").' in two


def test_taking_away_what_others_hold_cannot_be_forced() -> None:
    found = removal_conflicts([(("properties", "price"), None)])
    said = str(owned_by_other_error("Export", "feed", found, removing=True))
    assert 'declared by "an unknown writer"' in said
    assert "not even with force=true" in said


def test_a_forced_change_warns_of_each_former_owner() -> None:
    found = [
        FieldConflict(field="filter", owner="gitops", at=NOON),
        FieldConflict(field="start", owner="helm"),
    ]
    first, second = takeover_warnings("Import", "alerts", found)
    assert first.startswith('`filter` of Import alerts was declared by "gitops" (last applied')
    assert "Its next apply may fail with a conflict, or silently undo this" in first
    assert 'was declared by "helm" and is taken over.' in second


def test_the_status_says_what_is_steered_and_by_whom() -> None:
    git = entry("gitops", "job", "port", "properties.kind")
    found = document(git, entry(API, "filter", "properties.limit"))
    assert steered_fields(found) == ("filter", "properties.limit")
    assert steered_text(found) == "filter, properties.limit by streambroker-api"


def test_what_is_as_declared_is_not_steered() -> None:
    for found in (document(), document(entry("gitops", "filter")), document(entry(API))):
        assert steered_text(found) is None


def test_a_resource_declared_by_rest_alone_is_said_to_be_so() -> None:
    own = entry(API, "job", "pe", "port", "filter")
    whole = "the whole resource, declared by streambroker-api"
    assert steered_text(document(own)) == whole
    assert steered_text(document(own, entry("controller"))) == whole
    said = steered_text(document(own, entry("gitops", "filter")))
    assert said == "filter, job, pe, port by streambroker-api"


def test_a_message_fits_into_the_status_however_much_is_steered() -> None:
    names = [f"properties.a_property_with_a_long_name_{n:03}" for n in range(200)]
    message = steered_text(document(entry(API, *names)))
    assert message is not None
    assert len(message) <= MAX_MESSAGE
    assert message.endswith(" more by streambroker-api")
    lost = find_overwritten(document(entry(API, *names)), document(entry("gitops", *names)))
    assert lost is not None
    assert len(lost.description) <= MAX_MESSAGE
    assert len(lost.fields) == 200


OURS = entry(API, "filter", "properties.limit")
GIT = entry("gitops", "job", "port")


@pytest.mark.parametrize(
    ("after", "fields", "by"),
    [
        # a client-side apply: it holds the field now, and our entry is gone
        (
            [GIT, entry("kubectl-client-side-apply", "filter", operation="Update")],
            ("filter", "properties.limit"),
            "kubectl-client-side-apply",
        ),
        # an edit takes one field over
        (
            [GIT, entry(API, "properties.limit"), entry("kubectl-edit", "filter")],
            ("filter",),
            "kubectl-edit",
        ),
        # a replace drops a field: nobody holds it any more
        ([GIT, entry(API, "filter"), entry("kubectl-replace", "start")], ("properties.limit",),
         "kubectl-replace"),
        # the same manager applies by force
        ([entry("gitops", "job", "port", "filter"), entry(API, "properties.limit")], ("filter",),
         "gitops"),
    ],
)  # fmt: skip
def test_a_field_that_another_write_took_or_dropped_was_overwritten(
    after: list[ManagedFields], fields: tuple[str, ...], by: str
) -> None:
    found = find_overwritten(document(GIT, OURS), document(*after))
    assert found is not None
    assert (found.fields, found.manager) == (fields, by)
    assert found.description == ", ".join(fields)


@pytest.mark.parametrize(
    "after",
    [
        [GIT, OURS],
        [GIT, OURS, entry("kubectl-edit", "start")],  # another field
        [GIT],  # released
        [GIT, entry(API, "filter")],  # removed by ourselves
        [GIT, OURS, entry("gitops", "filter")],  # shared now
        [GIT, entry(API, "filter"), entry("controller")],  # a status write is none of it
        [entry("gitops", "job"), entry(API, "filter", "port")],  # taken while another was dropped
    ],
)
def test_what_we_gave_up_ourselves_was_not_overwritten(after: list[ManagedFields]) -> None:
    assert find_overwritten(document(GIT, OURS), document(*after)) is None


def test_the_feed_is_followed_for_what_is_steered_and_what_is_lost() -> None:
    steering = Steering()
    first = document(GIT, OURS)
    first["metadata"]["uid"] = "x"
    taken_over = document(GIT, entry(API, "properties.limit"), entry("kubectl-edit", "filter"))
    taken_over["metadata"]["uid"] = "x"
    given_up = document(GIT, entry("kubectl-edit", "filter"))
    given_up["metadata"]["uid"] = "x"
    assert steering.observe(first) is None
    assert steering.description("x") == "filter, properties.limit by streambroker-api"
    lost = steering.observe(taken_over)
    assert lost is not None
    assert (lost.description, lost.manager) == ("filter", "kubectl-edit")
    assert steering.description("x") == "properties.limit by streambroker-api"
    assert steering.observe(given_up) is None
    assert steering.description("x") is None
    steering.observe(first)
    steering.on_deleted("x")
    assert steering.description("x") is None
