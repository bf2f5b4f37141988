"""Requests to a broker that answers in an odd way: they end in time, and say so."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from pe_agent import broker_client
from pe_agent.broker_client import BrokerClient, BrokerUnavailableError

Serve = Callable[[socket.socket, threading.Event], None]


@pytest.fixture
def served() -> Iterator[Callable[[Serve], BrokerClient]]:
    """Serve one connection in a thread, until the test ends."""
    listening = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()
    threads: list[threading.Thread] = []

    def start(serve: Serve) -> BrokerClient:
        def run() -> None:
            connection, _ = listening.accept()
            with connection, suppress(OSError):
                connection.recv(65536)
                serve(connection, ended)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        threads.append(thread)
        return BrokerClient(f"http://127.0.0.1:{listening.getsockname()[1]}", "default")

    yield start
    ended.set()
    for thread in threads:
        thread.join(10)
    listening.close()


def drip(head: bytes) -> Serve:
    def serve(connection: socket.socket, ended: threading.Event) -> None:
        connection.sendall(head)
        while not ended.wait(0.05):
            connection.sendall(b"x")

    return serve


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-Long: ",
    ],
    ids=["body", "body without length", "headers"],
)
def test_an_answer_that_comes_drop_by_drop_ends_with_the_timeout(
    served: Callable[[Serve], BrokerClient], head: bytes
) -> None:
    client = served(drip(head))
    began = time.monotonic()
    with pytest.raises(BrokerUnavailableError) as caught:
        client.request("GET", "/x", timeout=0.5)

    assert caught.value.sent
    assert time.monotonic() - began < 10


def test_an_answer_that_is_too_long_is_no_answer(
    served: Callable[[Serve], BrokerClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_client, "MAX_ANSWER", 1000)

    def serve(connection: socket.socket, _: threading.Event) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1002\r\n\r\n" + b" " * 1002)

    with pytest.raises(BrokerUnavailableError, match="did not end"):
        served(serve).request("GET", "/x")


def test_an_answer_that_is_nested_without_end_is_read_as_text(
    served: Callable[[Serve], BrokerClient],
) -> None:
    text = b"[" * 100_000

    def serve(connection: socket.socket, _: threading.Event) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text)
        connection.sendall(head + text)

    answer = served(serve).request("GET", "/x")

    assert answer.body == {"title": "[" * 200}
