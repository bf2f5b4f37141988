"""Flight calls of daemon threads while the process ends."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pe_agent.transport.exit_guard import ExitGuard, guard
from pe_agent.transport.flight_errors import AgentUnreachableError

SECONDS = 10.0


def run_daemon(guard: ExitGuard, entered: threading.Event, leave: threading.Event) -> None:
    def call() -> None:
        with guard.call():
            entered.set()
            leave.wait(SECONDS)

    threading.Thread(target=call, daemon=True).start()
    assert entered.wait(SECONDS)


def test_the_end_waits_for_a_call_in_progress() -> None:
    guard, leave = ExitGuard(), threading.Event()
    run_daemon(guard, threading.Event(), leave)
    with ThreadPoolExecutor() as pool:
        ended = pool.submit(guard.wait, SECONDS)
        assert not ended.done()
        leave.set()
        ended.result(SECONDS)


def test_a_call_that_goes_on_holds_the_end_up_for_a_limited_time() -> None:
    guard, leave = ExitGuard(), threading.Event()
    run_daemon(guard, threading.Event(), leave)
    guard.wait(0.0)
    leave.set()


def test_after_the_end_has_begun_only_threads_that_it_waits_for_may_call() -> None:
    guard, refused = ExitGuard(), list[str]()
    guard.wait(0.0)

    def call() -> None:
        try:
            with guard.call():
                pass
        except AgentUnreachableError as error:
            refused.append(str(error))

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(SECONDS)
    with guard.call():  # a program may use its agent in `atexit`, in the main thread
        pass

    assert refused == ["the process is ending"]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_does_not_wait_for_threads_of_its_parent() -> None:
    leave = threading.Event()
    run_daemon(guard, threading.Event(), leave)
    child = os.fork()
    if child == 0:
        guard.wait(SECONDS)
        os._exit(guard._calls)
    leave.set()

    assert os.waitpid(child, 0)[1] == 0
