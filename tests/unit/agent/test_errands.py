"""What an agent does for a broker: each errand is answered, and a failure keeps nothing else."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from pe_agent.agent.broker.commands import Errands
from pe_agent.agent.exports.control_sender import ExportFullError
from streambroker_core.wire.broker.agent_commands import (
    EMIT,
    EMITTED,
    FAILED,
    Done,
    Errand,
    decode_done,
    encode_errands,
    errand_of,
)
from support.waiting import until


def id_of(number: int) -> str:
    return f"{number:032x}"


class Broker:
    """Hands out errands until they are answered."""

    def __init__(self, *errands: Errand) -> None:
        self.errands = {one.id: one for one in errands}
        self.answers: list[Done] = []
        self.away = 0

    def __call__(self, message: dict[str, Any]) -> Any:
        if self.away:
            self.away -= 1
            raise OSError("no way")
        for one in decode_done(message):
            del self.errands[one.id]
            self.answers.append(one)
        return encode_errands(list(self.errands.values()))


def emitted(body: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": f"log/{body['seq']}"}


def full(_body: Mapping[str, Any]) -> dict[str, Any]:
    raise ExportFullError("the log is full.")


def broken(_body: Mapping[str, Any]) -> dict[str, Any]:
    raise KeyError("what")


def test_errands_are_done_in_their_order_and_each_is_answered() -> None:
    broker = Broker(*(errand_of(EMITTED, {"seq": n}, id_of(n)) for n in range(3)))
    Errands({EMITTED: emitted}, broker).round()

    assert broker.answers == [Done(id=id_of(n), answer={"id": f"log/{n}"}) for n in range(3)]


def test_what_fails_is_answered_with_its_code_and_the_next_one_is_done() -> None:
    broker = Broker(
        errand_of(EMIT, {}, id_of(0)),
        errand_of("broken", {}, id_of(1)),
        errand_of(EMITTED, {}, id_of(2)),
        errand_of(EMITTED, {"seq": 3}, id_of(3)),
    )
    Errands({EMIT: full, EMITTED: emitted, "broken": emitted}, broker).round()

    refused, unknown, failed, done = broker.answers
    assert (refused.code, refused.detail) == ("ExportFull", "the log is full.")
    assert unknown.code == "ErrandUnknown"
    assert (failed.code, "KeyError" in failed.detail) == (FAILED, True)
    assert done.answer == {"id": "log/3"}


def test_no_broker_can_ask_for_more_than_is_meant_for_it() -> None:
    stopped: list[object] = []
    broker = Broker(errand_of("stop", {}, id_of(0)))

    def stop(given: object) -> dict[str, object]:
        stopped.append(given)
        return {}

    Errands({"stop": stop}, broker).round()

    assert (stopped, broker.answers[0].code) == ([], "ErrandUnknown")


def test_answers_that_did_not_arrive_are_given_when_it_is_woken_again() -> None:
    broker = Broker(errand_of(EMITTED, {"seq": 0}, id_of(0)))
    broker.away = 1
    errands = Errands({EMITTED: emitted}, broker)
    errands.start()
    errands.wake()
    until(lambda: not broker.away, 30, "the first try")
    assert broker.errands
    errands.wake()
    until(lambda: not broker.errands, 30, "the answer")
    errands.close()
    until(lambda: "broker errands" not in names(), 30, "the end of the thread")


def names() -> set[str]:
    return {thread.name for thread in threading.enumerate()}
