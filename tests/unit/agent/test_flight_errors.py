"""Refusals over Flight: what arrives of a long reason, and what is never an absent agent."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from pe_agent.transport.agent_client import AgentClient
from pe_agent.transport.flight_errors import AgentRefusedError, AgentUnreachableError, to_flight
from streambroker_core.errors import StreambrokerError


class Wordy(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """Refuses all, with a reason."""

    def __init__(self) -> None:
        super().__init__("grpc+tcp://127.0.0.1:0")
        self.reason = ""
        self.older = False

    def do_action(self, _context: object, _action: object) -> Iterator[flight.Result]:
        if self.older:
            raise flight.FlightServerError(self.reason, extra_info=self.reason.encode())
        raise to_flight(StreambrokerError(self.reason))


@pytest.fixture
def server() -> Iterator[Wordy]:
    with Wordy() as made:
        yield made


def refusal(server: Wordy, reason: str) -> AgentRefusedError:
    server.reason = reason
    with pytest.raises(AgentRefusedError) as raised:
        AgentClient(f"grpc+tcp://127.0.0.1:{server.port}").call("any")
    return raised.value


@pytest.mark.parametrize("letter", ["x", "é", "€", "\n", "\udc80"])
@pytest.mark.parametrize("length", [10, 10_000, 16_000])
def test_a_reason_travels_whole(server: Wordy, letter: str, length: int) -> None:
    arrived = str(refusal(server, letter * length))
    if letter == "\udc80":
        assert arrived.startswith("\\udc80")
    else:
        assert arrived == letter * length


def test_a_reason_beyond_all_measure_arrives_with_its_beginning_and_its_end(
    server: Wordy,
) -> None:
    arrived = str(refusal(server, "begins " + "€" * 5_000_000 + " ends"))
    assert arrived.startswith("begins €")
    assert arrived.endswith("€ ends")


def test_a_reason_that_cannot_be_received_is_a_refusal(server: Wordy) -> None:
    server.older = True
    refused = refusal(server, "x" * 5_000_000)
    assert refused.code == "ReasonUnread"


def test_where_nobody_answers_the_agent_is_absent() -> None:
    with pytest.raises(AgentUnreachableError):
        AgentClient("grpc+tcp://127.0.0.1:1").call("any", timeout=2.0)


def test_an_error_without_a_reason_of_ours_is_no_refusal() -> None:
    assert to_flight(pa.ArrowInvalid("odd")).extra_info.startswith(b'{"code": "InternalError"')
