"""Answer the API server's question whether a resource may be stored.

Rule 1: a resource is refused by the same code, and with the same sentence, as by REST.
Rule 2: only what is wrong with a resource by itself is refused. What is wrong because of other
resources is a warning: they may be about to change, in the same `kubectl apply` for instance.
Rule 3: only a new spec is judged. Deletions, statuses and metadata always pass.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from streambroker_core.board import Board
from streambroker_core.board.rule_index import rule_problem
from streambroker_core.diagnose import BoardOverlay, find_put_problem
from streambroker_core.errors import StreambrokerError, pointer_lines
from streambroker_core.model import AnyKind, Rule
from streambroker_core.wire.manifests.ports import OBJECTS
from streambroker_operator.kubernetes.watch.observed_cache import parse_resource

API_VERSION = "admission.k8s.io/v1"

_EMPTY_BOARD = Board()
"""A board without other resources; it stays so."""
_FIELDS = {"SubscriptionInvalid": "subscription", "FilterInvalid": "filter"}
_STEP = re.compile(r"[^.\[\]]+")

Object = Mapping[str, Any]


def review(document: object, board: Board, namespaces: Sequence[str] = ()) -> dict[str, Any]:
    """Return the answer to an AdmissionReview.

    Args:
        document: the AdmissionReview that the API server has sent.
        board: all resources; no warnings come of a board that has not read them yet.
        namespaces: those that the broker watches; empty for all. Others are not judged.

    Raises:
        ValueError: the document is no AdmissionReview with a request.
    """
    request = document.get("request") if isinstance(document, Mapping) else None
    if not isinstance(request, Mapping) or not isinstance(request.get("uid"), str):
        raise ValueError("the document is no AdmissionReview with a request")
    response: dict[str, Any] = {"uid": request["uid"], "allowed": True}
    wanted = _new_spec(request)
    if wanted is not None and (not namespaces or request.get("namespace") in namespaces):
        response |= _judge(wanted, board)
    return {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response}


def _new_spec(request: Object) -> Object | None:
    """Return the object whose spec is to be stored; None where no spec would change."""
    wanted, stored = request.get("object"), request.get("oldObject")
    if request.get("operation") not in ("CREATE", "UPDATE") or request.get("subResource"):
        return None
    if not isinstance(wanted, Mapping) or wanted.get("kind") not in OBJECTS:
        return None
    if wanted["metadata"].get("deletionTimestamp") is not None:
        return None
    same = isinstance(stored, Mapping) and stored.get("spec") == wanted.get("spec")
    return None if same else wanted


def _judge(candidate: Object, board: Board) -> dict[str, Any]:
    kind, spec = cast("AnyKind", candidate["kind"]), candidate.get("spec")
    try:
        resource = parse_resource(kind, candidate["metadata"], spec)
    except StreambrokerError as error:
        return _denial(error, spec)
    if isinstance(resource, Rule):
        problem = rule_problem(resource)
        return {} if problem is None else _denial(problem, spec)
    problem = find_put_problem(BoardOverlay(_EMPTY_BOARD), resource)
    if problem is not None:
        return _denial(problem, spec)
    # Without uid it is asked, too, whose the port is.
    proposed = replace(resource, uid="")
    problem = find_put_problem(BoardOverlay(board), proposed) if board.synced else None
    # A warning is one line: API servers drop others.
    return {} if problem is None else {"warnings": [" ".join(str(problem).split())]}


def _denial(error: StreambrokerError, spec: object) -> dict[str, Any]:
    status = {
        "status": "Failure",
        "code": 422,
        "reason": "Invalid",
        "message": _message(error, spec),
    }
    return {"allowed": False, "status": status}


def _message(error: StreambrokerError, spec: object) -> str:
    """Return an error's sentence; of an expression, the line and a caret at the fault as well."""
    path = str(_FIELDS.get(error.code) or getattr(error, "path", ""))
    lines = pointer_lines(_value_at(spec, path), getattr(error, "position", None))
    return "\n".join([str(error), *lines])


def _value_at(value: Any, path: str) -> Any:
    """Return the field of a document at a path as errors write it; None if there is none."""
    for step in _STEP.findall(path):
        try:
            value = value[int(step)] if isinstance(value, list) else value[step]
        except (KeyError, IndexError, TypeError, ValueError):
            return None
    return value
