"""One default everywhere: what a payload's type declares, else the end of the window."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest

from pe_agent.functions import old_methods
from pe_agent.job.ports import ExportPort
from pe_agent.job.send_control import Operators
from pe_agent.log.control_file import ControlFile
from streambroker_core import deprecation
from streambroker_core.control.operators.operator import Operator
from streambroker_core.control.tuples import Delivery
from support.aligned.window import emitted, run


@dataclass(frozen=True)
class Plain:
    pass


@dataclass(frozen=True)
class AtBegin:
    delivery: ClassVar[Delivery] = Delivery.BEGIN


class Agent:
    def __init__(self) -> None:
        self.deliveries: list[str] = []

    def call(self, action: str, **body: Any) -> dict[str, Any]:
        self.deliveries.append(body["what"]["delivery"])
        return {"id": "log/0", "seq": 0}


Send = Callable[..., str]


def of_file(folder: Path) -> Send:
    return lambda *a, **k: ControlFile(folder / "c").append(*a, **k).delivery.value


def of_agent(method: Callable[..., Any]) -> Send:
    agent = Agent()
    job: Any = SimpleNamespace(agent=agent)

    def send(*given: Any, **more: Any) -> str:
        method(job, *given, **more)
        return agent.deliveries[-1]

    return send


def send_by_export(job: Any, *given: Any, **more: Any) -> None:
    ExportPort.send(cast(Any, SimpleNamespace(_job=job, name="out")), *given, **more)


def send_by_old_name(job: Any, *given: Any, **more: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        old_methods.emit_control(cast(Any, SimpleNamespace(context=job)), "out", *given, **more)


CALLS: dict[str, Callable[[Path], Send]] = {
    "ControlFile.append": of_file,
    "pe.operators.send": lambda _: of_agent(lambda job, *a, **k: Operators(job).send(*a, **k)),
    "pe.exports[port].send": lambda _: of_agent(send_by_export),
    "pe.emit_control": lambda _: of_agent(send_by_old_name),
}


@pytest.fixture(autouse=True)
def _none_has_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deprecation, "_warned_defaults", set())


@pytest.mark.parametrize("call", CALLS)
def test_a_call_whose_default_changed_warns_once_and_delivers_at_the_end(
    tmp_path: Path, call: str
) -> None:
    send = CALLS[call](tmp_path)
    with pytest.warns(FutureWarning) as seen:
        assert [send(Plain()), send(Plain())] == ["END_WINDOW", "END_WINDOW"]
    assert [str(one.message) for one in seen] == [
        f"{call} without delivery= delivers with END_WINDOW, before it was BEGIN: give delivery=,"
        " or declare it at the payload's type"
    ]


@pytest.mark.parametrize("call", CALLS)
def test_a_type_that_declares_its_delivery_and_a_delivery_that_is_given_warn_of_nothing(
    tmp_path: Path, call: str
) -> None:
    send = CALLS[call](tmp_path)
    found = [
        send(AtBegin()),
        send(AtBegin(), delivery="END_WINDOW"),
        send(Plain(), delivery="BEGIN"),
    ]
    assert found == ["BEGIN", "END_WINDOW", "BEGIN"]


def test_an_operator_emits_as_the_type_declares_and_never_warns() -> None:
    class Emitting(Operator):
        def begin_window(self) -> None:
            self.emit_control(Plain())
            self.emit_control(AtBegin())
            self.emit_control(AtBegin(), delivery=Delivery.IMMEDIATE)

    assert [one.delivery.value for one in emitted(run(Emitting))] == [
        "END_WINDOW", "BEGIN", "IMMEDIATE",
    ]  # fmt: skip
