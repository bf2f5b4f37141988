"""Answers the API server's admission reviews: may a resource be stored?

- A resource is rejected by the same code and with the same message as by REST.
- Only errors within a resource, and a quota that is used up, lead to a rejection. Other errors that
  depend on other resources are warnings: those may be about to change, for instance in the same
  `kubectl apply`.
- Only a new spec is checked. Deletions, statuses and metadata always pass.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict, cast

from streambroker_core.board import Board, BoardReader
from streambroker_core.board.rule_index import rule_problem
from streambroker_core.diagnose import BoardOverlay, find_put_problem
from streambroker_core.errors import StreambrokerError, pointer_lines
from streambroker_core.model import AnyKind, Rule
from streambroker_core.wire.manifests.ports import OBJECTS
from streambroker_core.wire.manifests.quotas import QuotaExceededError
from streambroker_operator.kubernetes.client.documents import Document
from streambroker_operator.kubernetes.watch.observed_cache import parse_resource

API_VERSION = "admission.k8s.io/v1"

_EMPTY_BOARD = Board().reader
"""Board that stays empty."""
_FIELDS = {"SubscriptionInvalid": "subscription", "FilterInvalid": "filter"}
_STEP = re.compile(r"[^.\[\]]+")


class Failure(TypedDict):
    """Why a resource is refused, as in a ``Status`` of the API server."""

    status: str
    code: int
    reason: str
    message: str


class Verdict(TypedDict, total=False):
    """Whether a resource may be stored; ``status`` states why not."""

    uid: str
    allowed: bool
    status: Failure
    warnings: list[str]


class ReviewAnswer(TypedDict):
    """An AdmissionReview with its response."""

    apiVersion: str
    kind: str
    response: Verdict


def review(document: object, board: BoardReader, namespaces: Sequence[str] = ()) -> ReviewAnswer:
    """Return the answer to an AdmissionReview.

    Only `namespaces`, those that the broker watches, are checked; empty means all. A board that is
    not synced yields no warnings.

    Raises:
        ValueError: the document is no AdmissionReview with a request.
    """
    request = document.get("request") if isinstance(document, Mapping) else None
    if not isinstance(request, Mapping) or not isinstance(request.get("uid"), str):
        raise ValueError("the document is not an AdmissionReview with a request")
    response: Verdict = {"uid": request["uid"], "allowed": True}
    candidate = _new_spec(request)
    if candidate is not None and (not namespaces or request.get("namespace") in namespaces):
        response = {**response, **_judge(candidate, board)}
    return {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response}


def _new_spec(request: Mapping[str, Any]) -> Document | None:
    """Return the object to be stored; None if its spec does not change."""
    candidate, stored = request.get("object"), request.get("oldObject")
    if request.get("operation") not in ("CREATE", "UPDATE") or request.get("subResource"):
        return None
    if not isinstance(candidate, Mapping) or candidate.get("kind") not in OBJECTS:
        return None
    if candidate["metadata"].get("deletionTimestamp") is not None:
        return None
    is_unchanged = isinstance(stored, Mapping) and stored.get("spec") == candidate.get("spec")
    return None if is_unchanged else cast(Document, candidate)


def _judge(candidate: Document, board: BoardReader) -> Verdict:
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
    # Without a uid the check includes the ownership of the port.
    proposed = replace(resource, uid="")
    problem = find_put_problem(BoardOverlay(board), proposed) if board.synced else None
    if isinstance(problem, QuotaExceededError):
        return _denial(problem, spec)
    # Warnings must be a single line: API servers drop others.
    if problem is not None:
        return {"warnings": [" ".join(str(problem).split())]}
    namespace, quota = resource.key.namespace, board.quotas.find(resource.key.namespace)
    if not quota.limits_ports:
        return {}
    overlay = BoardOverlay(board)
    overlay.put(resource)
    return {"warnings": list(quota.warnings(namespace, overlay.usage(namespace)))}


def _denial(error: StreambrokerError, spec: object) -> Verdict:
    status: Failure = {
        "status": "Failure",
        "code": 422,
        "reason": "Invalid",
        "message": _message(error, spec),
    }
    return {"allowed": False, "status": status}


def _message(error: StreambrokerError, spec: object) -> str:
    """Return an error's message; for an expression with the line and a caret at the error."""
    path = str(_FIELDS.get(error.code) or getattr(error, "path", ""))
    lines = pointer_lines(_value_at(spec, path), getattr(error, "position", None))
    return "\n".join([str(error), *lines])


def _value_at(value: Any, path: str) -> Any:
    """Return the value at a path as errors write it; None if there is none."""
    for step in _STEP.findall(path):
        try:
            value = value[int(step)] if isinstance(value, list) else value[step]
        except (KeyError, IndexError, TypeError, ValueError):
            return None
    return value
