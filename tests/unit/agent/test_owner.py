"""What a job's resources belong to."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pe_agent.job.owner_reference import VARIABLE, OwnerError, resolve_owner

OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "feed-program", "uid": "0-1"}


def test_a_job_that_names_none_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert resolve_owner(None) is None
    monkeypatch.setenv(VARIABLE, "")
    assert resolve_owner(None) is None


def test_the_one_that_is_given_counts_before_that_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, json.dumps({**OWNER, "uid": "0-2"}))
    assert resolve_owner(None) == {**OWNER, "uid": "0-2"}
    assert resolve_owner(OWNER) == OWNER


@pytest.mark.parametrize(
    "owner",
    [
        {},
        {**OWNER, "uid": ""},
        {**OWNER, "uid": 5},
        {**OWNER, "controller": "true"},
        {name: value for name, value in OWNER.items() if name != "uid"},
        "feed-program",
    ],
)
def test_an_owner_has_four_texts(owner: Any) -> None:
    with pytest.raises(OwnerError, match="apiVersion, kind, name, uid"):
        resolve_owner(owner)


def test_a_pod_is_no_owner() -> None:
    with pytest.raises(OwnerError, match="outlives"):
        resolve_owner({**OWNER, "kind": "Pod"})


def test_what_is_in_the_environment_is_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "feed-program")
    with pytest.raises(OwnerError, match="not JSON"):
        resolve_owner(None)
