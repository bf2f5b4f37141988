"""Requests to a broker that answers in an odd way: they end in time, and say so."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from pe_agent.transport import broker_client
from pe_agent.transport.broker_client import BrokerClient
from streambroker_client.errors import BrokerUnavailableError

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

    with pytest.raises(BrokerUnavailableError, match="is too long"):
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


class Kept:
    """A broker that answers over connections that it keeps, and counts them."""

    def __init__(self, answers: int, head: bytes = b"") -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.client = BrokerClient(
            f"http://127.0.0.1:{self.listening.getsockname()[1]}",
            "default",
            sign=lambda *_: f"number {next(self._numbers)}",
        )
        self._numbers = itertools.count()
        self.connections, self.signed = 0, list[bytes]()
        self.open: socket.socket | None = None
        self._answers, self._head = answers, head
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                self.open, _ = self.listening.accept()
                self.connections += 1
                with self.open as connection:
                    for _ in range(self._answers):
                        asked = connection.recv(65536)
                        if not asked:
                            break
                        self.signed.append(asked.partition(b"Authorization: ")[2].split(b"\r")[0])
                        head = b"HTTP/1.1 200 OK\r\n" + self._head
                        connection.sendall(head + b"Content-Length: 2\r\n\r\n{}")

    def end(self) -> None:
        self.client.close_idle()
        self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()
        self._thread.join(10)


@pytest.fixture
def kept() -> Iterator[Callable[..., Kept]]:
    made: list[Kept] = []

    def make(*given: Any) -> Kept:
        made.append(Kept(*given))
        return made[-1]

    yield make
    for one in made:
        one.end()


def test_a_connection_is_kept_until_it_is_not_wanted(kept: Callable[..., Kept]) -> None:
    broker = kept(100)
    for _ in range(3):
        broker.client.request("GET", "/x", keep_alive=True)
    assert (broker.connections, broker.client.has_idle_connection) == (1, True)

    broker.client.close_idle()
    assert not broker.client.has_idle_connection
    broker.client.request("GET", "/x", keep_alive=True)
    assert broker.connections == 2


def test_a_request_that_may_not_be_made_twice_has_a_connection_of_its_own(
    kept: Callable[..., Kept],
) -> None:
    broker = kept(1)
    for _ in range(2):
        broker.client.request("PUT", "/x", {})

    assert (broker.connections, broker.client.has_idle_connection) == (2, False)


def test_where_the_broker_closed_the_connection_it_is_asked_again_and_signed_again(
    kept: Callable[..., Kept],
) -> None:
    broker = kept(1)
    for _ in range(3):
        assert broker.client.request("GET", "/x", keep_alive=True).status == 200

    assert broker.connections == 3
    assert broker.signed == [b"number 0", b"number 2", b"number 4"]


def test_a_broker_that_wants_its_connection_closed_has_it_closed(
    kept: Callable[..., Kept],
) -> None:
    broker = kept(100, b"Connection: close\r\n")
    broker.client.request("GET", "/x", keep_alive=True)

    assert not broker.client.has_idle_connection


def test_an_answer_over_a_kept_connection_ends_with_the_timeout_too(
    served: Callable[[Serve], BrokerClient],
) -> None:
    def serve(connection: socket.socket, ended: threading.Event) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        connection.recv(65536)
        drip(b"HTTP/1.1 200 OK\r\n\r\n")(connection, ended)

    client = served(serve)
    client.request("GET", "/x", keep_alive=True, timeout=60.0)
    began = time.monotonic()
    with pytest.raises(BrokerUnavailableError) as caught:
        client.request("GET", "/x", keep_alive=True, timeout=0.5)

    assert caught.value.sent
    assert not client.has_idle_connection
    assert 0.4 < time.monotonic() - began < 10
