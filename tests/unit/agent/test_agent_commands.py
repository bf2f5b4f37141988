"""What an agent does for a broker: each errand is answered, and a failure keeps nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from pe_agent.agent.broker.commands import CommandRunner
from pe_agent.agent.exports.control_sender import ExportFullError
from streambroker_core.wire.agent_rpc.codec import Actions
from streambroker_core.wire.broker.agent_commands import (
    EMIT,
    EMITTED,
    FAILED,
    AgentCommand,
    CommandResult,
    decode_results,
    encode_commands,
    make_command,
)
from support.processes.waiting import until


def id_of(number: int) -> str:
    return f"{number:032x}"


class Broker:
    """Hands out errands until they are answered."""

    def __init__(self, *pending: AgentCommand) -> None:
        self.pending = {one.id: one for one in pending}
        self.answers: list[CommandResult] = []
        self.away = 0

    def __call__(self, message: dict[str, Any]) -> Any:
        if self.away:
            self.away -= 1
            raise OSError("no way")
        for one in decode_results(message):
            del self.pending[one.id]
            self.answers.append(one)
        return encode_commands(list(self.pending.values()))


class Performed(Actions):
    """Actions by functions of the body."""

    def __init__(self, handlers: Mapping[str, Callable[[Any], dict[str, Any]]]) -> None:
        self.handlers = handlers

    def handle(self, action: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self.handlers[action](body)


def emitted(body: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": f"log/{body['seq']}"}


def full(_body: Mapping[str, Any]) -> dict[str, Any]:
    raise ExportFullError("the log is full.")


def broken(_body: Mapping[str, Any]) -> dict[str, Any]:
    raise KeyError("what")


def test_commands_are_done_in_their_order_and_each_is_answered() -> None:
    broker = Broker(*(make_command(EMITTED, {"seq": n}, id_of(n)) for n in range(3)))
    CommandRunner(Performed({EMITTED: emitted}), broker).run_pending()

    assert broker.answers == [
        CommandResult(id=id_of(n), answer={"id": f"log/{n}"}) for n in range(3)
    ]


def test_what_fails_is_answered_with_its_code_and_the_next_one_is_done() -> None:
    broker = Broker(
        make_command(EMIT, {}, id_of(0)),
        make_command("broken", {}, id_of(1)),
        make_command(EMITTED, {}, id_of(2)),
        make_command(EMITTED, {"seq": 3}, id_of(3)),
    )
    CommandRunner(
        Performed({EMIT: full, EMITTED: emitted, "broken": emitted}), broker
    ).run_pending()

    refused, unknown, failed, done = broker.answers
    assert (refused.code, refused.detail) == ("ExportFull", "the log is full.")
    assert unknown.code == "ErrandUnknown"
    assert (failed.code, "KeyError" in failed.detail) == (FAILED, True)
    assert done.answer == {"id": "log/3"}


def test_no_broker_can_ask_for_more_than_is_meant_for_it() -> None:
    stopped: list[object] = []
    broker = Broker(make_command("stop", {}, id_of(0)))

    def stop(given: object) -> dict[str, object]:
        stopped.append(given)
        return {}

    CommandRunner(Performed({"stop": stop}), broker).run_pending()

    assert (stopped, broker.answers[0].code) == ([], "ErrandUnknown")


def test_answers_that_did_not_arrive_are_given_when_it_is_woken_again() -> None:
    broker = Broker(make_command(EMITTED, {"seq": 0}, id_of(0)))
    broker.away = 1
    pending = CommandRunner(Performed({EMITTED: emitted}), broker)
    pending.start()
    pending.wake()
    until(lambda: not broker.away, 30, "the first try")
    assert broker.pending
    pending.wake()
    until(lambda: not broker.pending, 30, "the answer")
    pending.close()
    until(lambda: "broker commands" not in names(), 30, "the end of the thread")


def names() -> set[str]:
    return {thread.name for thread in threading.enumerate()}
