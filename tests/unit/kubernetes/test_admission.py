"""What the broker answers when the API server asks whether a resource may be stored."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from streambroker_core.board import Board
from streambroker_core.diagnose import BoardOverlay, find_put_problem
from streambroker_core.errors import StreambrokerError
from streambroker_core.wire.manifests.ports import read_spec
from streambroker_core.wire.manifests.quotas import read_quotas
from streambroker_operator.kubernetes.webhook.review import review
from support.core.resources import board_of, export_of, import_of

Object = Any
IMPORT = {"job": "alerts", "port": "trades"}
RULE = {"job": "alerts", "id": "dear", "version": 1}
PRICES = export_of(schema=[{"name": "price", "type": "double"}])


def body(kind: str, spec: Object, **metadata: Any) -> Object:
    found = {"name": "alerts", "namespace": "default", "uid": "i", "generation": 1, **metadata}
    return {
        "apiVersion": "streambroker.io/v1alpha1",
        "kind": kind,
        "metadata": found,
        "spec": spec,
    }


def asked(wanted: Object | None, stored: Object | None = None, **more: Any) -> Object:
    operation = "DELETE" if wanted is None else "CREATE" if stored is None else "UPDATE"
    request = {
        "uid": "r",
        "operation": operation,
        "namespace": "default",
        "object": wanted,
        "oldObject": stored,
        **more,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def answer(document: Object, board: Board | None = None, *namespaces: str) -> Object:
    found = review(document, (Board() if board is None else board).reader, namespaces)
    assert (found["apiVersion"], found["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    response: Object = found["response"]
    assert response.pop("uid") == "r"
    return response


def message(response: Object) -> str:
    assert response["allowed"] is False
    status = response["status"]
    assert (status["code"], status["reason"]) == (422, "Invalid")
    return str(status["message"])


@pytest.mark.parametrize(
    ("spec", "lines"),
    [
        ({"subscription": 'kind = "live"'}, ['  kind = "live"', "       ^"]),
        ({"subscription": 'kind == "a"', "filter": "price >"}, ["  price >", "         ^"]),
        (
            {"filter": 'price > "x"', "schema": [{"name": "price", "type": "double"}]},
            ['  price > "x"', "          ^"],
        ),
    ],
)
def test_an_expression_with_an_error_is_refused_with_the_sentence_of_rest_and_its_place(
    spec: Object, lines: list[str]
) -> None:
    spec = {**IMPORT, "subscription": 'kind == "a"', **spec}
    rest = find_put_problem(BoardOverlay(board_of().reader), read_spec("Import", spec))
    assert rest is not None

    found = message(answer(asked(body("Import", spec)))).split("\n")
    assert found == [str(rest), *lines]


@pytest.mark.parametrize(
    ("kind", "spec", "sentence"),
    [
        ("Import", {**IMPORT, "subscription": 7}, "spec.subscription has to be a text"),
        ("Import", {**IMPORT, "schema": [{"name": "a", "type": "nosuch"}]}, "nosuch"),
        ("Export", {**IMPORT, "properties": {"a b": 1}}, "Invalid property `a b`"),
        ("PatternProcessor", {"job": "alerts", "id": "dear"}, "version is missing"),
    ],
)
def test_a_spec_that_cannot_be_read_is_refused_with_its_field(
    kind: str, spec: Object, sentence: str
) -> None:
    assert sentence in message(answer(asked(body(kind, spec))))


def test_a_rule_is_refused_with_the_place_in_its_condition() -> None:
    pattern = {"stages": [{"name": "a", "where": "price > > 1"}]}
    found = message(answer(asked(body("PatternProcessor", {**RULE, "pattern": pattern}))))
    sentence, text, caret = found.split("\n")
    assert "pattern.stages[0].where, line 1, column 9" in sentence
    assert (text, caret) == ("  price > > 1", "          ^")


def test_what_is_well_is_allowed_and_of_no_board_nothing_is_asked() -> None:
    for kind, spec in (
        ("Import", {**IMPORT, "subscription": 'kind == "a"', "filter": "price > 1"}),
        ("Export", {**IMPORT, "properties": {"kind": "a"}, "schema": []}),
        ("PatternProcessor", {**RULE, "pattern": {"stages": [{"name": "a"}]}}),
    ):
        assert answer(asked(body(kind, spec))) == {"allowed": True}


def test_a_filter_that_fits_no_export_is_allowed_with_the_sentence_of_rest_as_a_warning() -> None:
    """The Exports may be about to change: a set of manifests is applied one by one."""
    spec = {**IMPORT, "subscription": 'kind == "trade"', "filter": 'price > "much"'}
    board = board_of(PRICES)
    rest = find_put_problem(BoardOverlay(board.reader), read_spec("Import", spec))
    assert isinstance(rest, StreambrokerError)

    response = answer(asked(body("Import", spec)), board)
    assert response["allowed"] is True
    assert response["warnings"] == [str(rest)]
    assert "line 1, column 9" in str(rest)


def test_a_port_that_is_held_is_a_warning() -> None:
    held = replace(import_of("alerts/trades", uid="o"), name="older")
    response = answer(asked(body("Import", {**IMPORT, "subscription": "a == 1"})), board_of(held))
    assert response["allowed"] is True
    assert "belongs to 'older'" in response["warnings"][0]


def test_what_changes_no_spec_is_always_allowed() -> None:
    bad = {**IMPORT, "subscription": 'kind = "live"'}
    stored = body("Import", bad)
    assert message(answer(asked(stored)))
    for document in (
        asked(None, stored),
        asked(body("Import", bad, labels={"a": "b"}), stored),
        asked({**stored, "status": {"matches": 1}}, stored),
        asked(stored, body("Import", IMPORT), subResource="status"),
        asked(body("Import", bad, deletionTimestamp="2026-01-01T00:00:00Z"), body("Import", {})),
        asked(stored, operation="CONNECT"),
    ):
        assert answer(document) == {"allowed": True}


def test_other_namespaces_and_kinds_are_not_judged() -> None:
    bad = body("Import", {**IMPORT, "subscription": 'kind = "live"'})
    assert message(answer(asked(bad), None, "a", "default"))
    assert answer(asked(bad), None, "a", "b") == {"allowed": True}
    assert answer(asked({**bad, "kind": "Deployment"})) == {"allowed": True}


@pytest.mark.parametrize("document", [None, [], {}, {"request": 1}, {"request": {}}])
def test_what_is_no_review_is_no_answer(document: object) -> None:
    with pytest.raises(ValueError, match="AdmissionReview"):
        review(document, Board().reader)


def test_a_port_above_the_quota_of_its_namespace_is_refused_and_the_last_ones_have_a_warning() -> (
    None
):
    spec = {**IMPORT, "port": "more", "subscription": 'kind == "trade"'}
    found = []
    for ports in (1, 2, 10):
        board = board_of(export_of())
        board.reader.quotas = read_quotas({"default": {"ports": ports}})
        found.append(answer(asked(body("Import", spec)), board))
    assert "1 of the 1 ports of its quota" in message(found[0])
    assert found[1]["allowed"]
    assert "2 of the 2 ports of its quota" in found[1]["warnings"][0]
    assert "quota" not in str(found[2])
