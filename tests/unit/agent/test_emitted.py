"""What a program emits: to the importers of an export, or to its own operators."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pe_agent.job.applied import NotAppliedError
from pe_agent.job.ports import ExportPort
from pe_agent.job.send_control import Operators, SentControl
from streambroker_core.control.tuples import ControlError, Delivery, Target
from streambroker_core.errors import ManifestError


@dataclass
class SetFactor:
    factor: int


class Agent:
    """Takes calls and answers what it is told to."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.applied = [False, False, True]

    def call(self, action: str, **body: Any) -> dict[str, Any]:
        self.calls.append((action, body))
        if action in ("export.emit", "control.append"):
            return {"id": "log/4", "seq": 4, "applied": False}
        return {"id": "log/4", "seq": 4, "readers": [], "applied": self.applied.pop(0)}


class Fake:
    def __init__(self) -> None:
        self.agent = Agent()
        self.operators = Operators(cast(Any, self))

    def emit(self, payload: object, **settings: Any) -> SentControl:
        return ExportPort.send(
            cast(Any, SimpleNamespace(_job=self, name="out")), payload, **settings
        )


@pytest.fixture
def fake() -> Fake:
    return Fake()


def test_a_dataclass_is_sent_to_importers_and_its_end_is_reported(fake: Fake) -> None:
    sent = fake.emit(SetFactor(3), delivery="END_WINDOW", target=Target(operator="x"))
    ((action, body),) = fake.agent.calls
    assert (action, body["export"], sent.id) == ("export.emit", "out", "log/4")
    assert body["what"] == {
        "type": "SetFactor",
        "payload": {"factor": 3},
        "delivery": "END_WINDOW",
        "target": {"operator": "x"},
    }
    assert sent.wait_applied(5).applied
    assert fake.agent.calls[-1] == ("export.emitted", {"export": "out", "seq": 4})
    assert len(fake.agent.calls) == 4


def test_each_call_is_a_request_of_its_own_unless_it_is_named(fake: Fake) -> None:
    for request in (None, None, "mine"):
        fake.operators.send(SetFactor(1), delivery="BEGIN", request=request)
    ids = [body["request"] for _, body in fake.agent.calls]
    assert (len(set(ids)), ids[2]) == (3, "mine")


def test_a_mapping_names_its_type_and_goes_to_an_operator(fake: Fake) -> None:
    reported = {"type": "set", "payload": [1]}
    sent = fake.operators.send(reported, operator="x", delivery=Delivery.AT_TIME, at=7)
    assert fake.agent.calls[0][1]["what"] == {
        "type": "set",
        "payload": [1],
        "delivery": "AT_TIME",
        "at": 7,
        "target": {"operator": "x"},
    }
    assert sent.state()["applied"] is False
    with pytest.raises(NotAppliedError, match="log/4 is sent, but it has no reader"):
        sent.wait_applied(0)


@pytest.mark.parametrize("operator", [None, "x"])
def test_an_address_of_the_own_operators_may_name_a_bucket_or_a_key(
    fake: Fake, operator: str | None
) -> None:
    aim = Target(operator="x", bucket=2, key=("IBM", 7))
    fake.operators.send(SetFactor(1), delivery="BEGIN", operator=operator, target=aim)
    fake.operators.send(SetFactor(1), delivery="BEGIN", operator=operator, target=Target(bucket=2))
    reported = [body["what"]["target"] for _, body in fake.agent.calls]
    named = {} if operator is None else {"operator": operator}
    assert reported == [
        {"operator": "x", "bucket": 2, "key": ["IBM", 7]},
        {**named, "bucket": 2},
    ]
    with pytest.raises(ControlError, match="is for operator y, but its target names x"):
        fake.operators.send(SetFactor(1), delivery="BEGIN", operator="y", target=aim)
    assert len(fake.agent.calls) == 2


@pytest.mark.parametrize("payload", [object(), 7, {"payload": 1}, {"type": "a", "id": "b"}])
def test_what_cannot_be_emitted_is_refused_before_anybody_is_asked(
    fake: Fake, payload: object
) -> None:
    with pytest.raises((ControlError, ManifestError)):
        fake.emit(payload, delivery="BEGIN")
    with pytest.raises(ManifestError, match="delivery is 'LATER'"):
        fake.operators.send(SetFactor(1), delivery="LATER")
    with pytest.raises(ManifestError, match="AT_TIME"):
        fake.operators.send(SetFactor(1), delivery="BEGIN", at=5)
    assert fake.agent.calls == []
