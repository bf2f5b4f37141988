"""Field sets: what a manager holds, and what it has to state so that a change is just that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import assume, event, given
from hypothesis import strategies as st

from streambroker_operator.kubernetes.apply.patch import (
    apply_body,
    apply_edit,
    compute_edit,
    own_part,
    removals_held_by_others,
    spec_to_apply,
)
from streambroker_operator.kubernetes.client.managed_fields import (
    API,
    extracted,
    fields_at,
    lacks,
    own_fields,
    paths,
)
from support.kubernetes.apply_model import Model, fields_v1, leaves

values = st.sampled_from((1, 2, True, "a", ["a", "b"], ["b"]))
columns = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from("abc"), "type": st.sampled_from(("int", "double"))}
    ),
    max_size=3,
    unique_by=lambda column: column["name"],
)
named = st.lists(
    st.fixed_dictionaries(
        {
            "applicationName": st.sampled_from(("", "app")),
            "streamId": st.sampled_from(("s", "t")),
        }
    ),
    max_size=3,
    unique_by=lambda stream: (stream["applicationName"], stream["streamId"]),
)
PARTS: dict[str, st.SearchStrategy[Any]] = {
    "filter": st.sampled_from(("x > 1", "x > 2")),
    "congestionPolicy": st.sampled_from(("wait", "drop")),
    "properties": st.dictionaries(st.sampled_from(("a", "b", "dotted.name")), values, max_size=3),
    "application": st.dictionaries(st.sampled_from(("name", "scope")), st.just("n"), max_size=2),
    "schema": columns.filter(bool),
    "streams": named.filter(bool),
}
specs = st.fixed_dictionaries({}, optional=PARTS)
touches = st.one_of(
    st.none(),
    st.lists(
        st.sampled_from(
            (("filter",), ("properties",), ("properties", "a"), ("streams",), ("schema",))
        ),
        min_size=1,
        max_size=3,
    ).map(tuple),
)


@st.composite
def models(draw: st.DrawFn) -> Model:
    """An object that some managers have applied to, one after the other, ourselves among them."""
    model = Model()
    for manager in draw(st.lists(st.sampled_from((API, "gitops", "helm")), max_size=4)):
        model.apply(manager, draw(specs))
    return model


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Compare specs; lists with keys in any order, and an empty object is as good as none."""
    return _bare(one) == _bare(other)


def _bare(spec: Mapping[str, Any]) -> dict[Any, Any]:
    found = {}
    for leaf, value in leaves(spec).items():
        if value != {} or leaf == ("properties",):
            found[leaf] = (type(value), value)
    return found


@given(models())
def test_what_a_manager_holds_is_found_as_it_stands_there(model: Model) -> None:
    document = model.document()
    for manager, held in model.held.items():
        own = own_part(document, manager).get("spec", {})
        assert set(leaves(own)) == held
        assert all(leaves(own)[leaf] == model.live[leaf] for leaf in held)


@given(models())
def test_an_extract_of_an_extract_is_the_same(model: Model) -> None:
    document = model.document()
    for manager in model.held:
        fields = own_fields(document, manager)
        once = extracted({"spec": document["spec"]}, fields)
        assert extracted(once, fields) == once


@given(models())
def test_paths_are_the_fields_that_are_held_lists_as_a_whole(model: Model) -> None:
    for manager, held in model.held.items():
        fields = fields_at(own_fields(model.document(), manager), ("spec",)) or {}
        expected = {leaf[:1] if leaf[1:] and leaf[1].startswith("k:") else leaf for leaf in held}
        assert set(paths(fields)) == expected
        assert all(fields_at(fields, path) is not None for path in expected)
        assert fields_at(fields, ("properties", "nothing")) is None


@given(now=specs, wanted=specs, touched=touches)
def test_an_edit_makes_what_is_meant_as_wanted_and_leaves_the_rest(
    now: dict[str, Any], wanted: dict[str, Any], touched: tuple[tuple[str, ...], ...] | None
) -> None:
    edit = compute_edit(now, wanted, touched)
    after = apply_edit(now, edit)
    if touched is None:
        assert same(after, wanted)
        return
    for leaf in {*leaves(after), *leaves(wanted), *leaves(now)}:
        meant = any(leaf[: len(path)] == path for path in touched)
        expected = leaves(wanted if meant else now)
        if leaves(after).get(leaf) != {} and expected.get(leaf) != {}:
            assert leaves(after).get(leaf) == expected.get(leaf)


@given(now=specs)
def test_what_is_as_wanted_needs_no_edit(now: dict[str, Any]) -> None:
    assert not compute_edit(now, dict(now), None)


def test_a_number_and_a_truth_value_are_not_the_same() -> None:
    assert compute_edit({"properties": {"a": 1}}, {"properties": {"a": True}}, None).values


@given(model=models(), wanted=specs, touched=touches)
def test_the_statement_makes_the_change_and_no_other_and_loses_nothing_of_ours(
    model: Model, wanted: dict[str, Any], touched: tuple[tuple[str, ...], ...] | None
) -> None:
    document = model.document()
    edit = compute_edit(model.spec, wanted, touched)
    assume(edit)
    blamed = removals_held_by_others(document, edit)
    event("kept by others" if blamed else "goes")
    assume(not blamed)
    outcome = apply_edit(model.spec, edit)
    stated = spec_to_apply(own_part(document).get("spec", {}), edit, outcome)
    ours, theirs = set(model.held.get(API, ())), dict(model.live)
    conflicts = model.conflicts(API, stated)
    event("conflicts" if conflicts else "free")
    model.apply(API, stated)
    assert same(model.spec, outcome)
    changed = set(edit.removed) | set(edit.values)
    for leaf in ours:
        about = any(leaf[: len(path)] == path for path in changed)
        assert about or leaf in model.held[API] or theirs[leaf] == {}
    for leaf in conflicts:
        assert any(leaf[: len(path)] == path for path in changed)


@given(model=models(), wanted=specs)
def test_what_is_blamed_on_others_is_what_an_apply_cannot_take_away(
    model: Model, wanted: dict[str, Any]
) -> None:
    document = model.document()
    edit = compute_edit(model.spec, wanted, None)
    blamed = {path for path, _ in removals_held_by_others(document, edit)}
    outcome = apply_edit(model.spec, edit)
    model.apply(API, spec_to_apply(own_part(document).get("spec", {}), edit, outcome))
    assert bool(blamed) == (not same(model.spec, outcome))


def test_a_body_names_the_very_object_and_keeps_what_we_hold_of_its_metadata() -> None:
    owner = {"apiVersion": "v1", "kind": "Job", "name": "j", "uid": "o"}
    document = Model().document()
    document["metadata"] |= {
        "labels": {"a": "b"},
        "ownerReferences": [owner, {**owner, "uid": "other"}],
        "managedFields": [
            {
                "manager": API,
                "operation": "Apply",
                "fieldsV1": {"f:metadata": {"f:ownerReferences": {'k:{"uid":"o"}': {}}}},
            },
        ],
    }
    assert apply_body(document, {}) == {
        "apiVersion": "streambroker.io/v1alpha1",
        "kind": "Export",
        "metadata": {
            "name": "feed-trades",
            "namespace": "default",
            "uid": "u",
            "resourceVersion": "7",
            "ownerReferences": [owner],
        },
    }


def test_what_is_held_of_the_status_or_by_update_is_not_ours() -> None:
    entry = {"manager": API, "fieldsV1": {"f:spec": {"f:filter": {}}}}
    document = Model(live={("filter",): "x"}).document()
    document["metadata"]["managedFields"] = [
        {**entry, "operation": "Update"},
        {**entry, "operation": "Apply", "subresource": "status"},
    ]
    assert own_part(document) == {}
    edit = compute_edit(document["spec"], {}, None)
    assert [
        (path, holder.operation) for path, holder in removals_held_by_others(document, edit)
    ] == [(("filter",), "Update")]


def test_a_field_that_is_gone_or_an_item_that_is_another_is_left_out() -> None:
    fields = fields_v1({("filter",), ("streams", 'k:{"applicationName": "", "streamId": "s"}')})
    spec = {"streams": [{"applicationName": "", "streamId": "t"}]}
    assert extracted({"spec": spec}, fields) == {"spec": {"streams": []}}
    assert extracted(["a", "b"], {'v:"b"': {}}) == ["b"]
    assert extracted(["a", "b"], {"i:0": {}}) == ["a"]


def test_a_list_lacks_what_another_holds_unless_it_has_the_same_key() -> None:
    held: dict[str, Any] = {'k:{"applicationName":"","streamId":"s"}': {}}
    assert not lacks([{"streamId": "s"}], held)
    assert lacks([{"applicationName": "app", "streamId": "s"}], held)
    assert lacks(["a"], {'v:"b"': {}})
    assert not lacks([], {})


def test_an_item_keeps_the_keys_that_tell_it_apart() -> None:
    columns = [{"name": "a", "type": "int"}, {"name": "b", "type": "int"}]
    held: dict[str, Any] = {'k:{"name":"a"}': {".": {}, "f:type": {}}}
    assert extracted(columns, held) == [{"name": "a", "type": "int"}]
    assert extracted(columns, {'k:{"name":"a"}': {".": {}}}) == [{"name": "a"}]


def test_an_object_of_others_is_not_held_for_its_own_sake() -> None:
    """Else our empty rest of `properties` would keep its owner from going over to a stream id."""
    model = Model()
    model.apply("gitops", {"properties": {"a": 1}})
    model.apply(API, {"properties": {"b": 2}})
    edit = compute_edit(model.spec, {"properties": {"a": 1}}, (("properties",),))
    outcome = apply_edit(model.spec, edit)
    assert spec_to_apply(own_part(model.document())["spec"], edit, outcome) == {}
    alone = Model()
    alone.apply(API, {"properties": {"b": 2}})
    edit = compute_edit(alone.spec, {"properties": {}}, None)
    outcome = apply_edit(alone.spec, edit)
    assert spec_to_apply(own_part(alone.document())["spec"], edit, outcome) == {"properties": {}}
