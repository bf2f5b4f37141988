"""News wake those who wait for them, and nobody else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection

from pe_agent.agent.notifier import Notifier
from support.processes.waiting import until


def waiting(news: Notifier, keys: Collection[str]) -> Callable[[], bool | None]:
    """Wait for news in a thread; the returned call tells what the wait said, None before."""
    said: list[bool] = []
    seen, before = news.version(keys), len(news.waiters())
    threading.Thread(target=lambda: said.append(news.wait(seen, 60, keys)), daemon=True).start()
    until(lambda: len(news.waiters()) > before, 30, "the thread waits")
    return lambda: said[0] if said else None


def test_a_key_wakes_those_who_wait_for_it() -> None:
    news = Notifier()
    both, one, other, nothing = (waiting(news, keys) for keys in (("a", "b"), ("a",), ("c",), ()))
    news.notify("b")
    until(both, 30, "it is woken")
    assert len(news.waiters()) == 3
    news.notify("a", "c")
    until(lambda: one() and other(), 30, "they are woken")
    assert nothing() is None
    news.notify()
    until(nothing, 30, "it is woken")
    assert not news.waiters()


def test_what_happened_between_a_look_and_a_wait_is_not_missed() -> None:
    news = Notifier()
    a, every = news.version(("a",)), news.version(())
    news.notify("b")
    assert not news.wait(a, 0, ("a",))
    news.notify("a")
    assert news.wait(a, 0, ("a",))
    assert not news.wait(every, 0, ())
    news.notify()
    assert news.wait(every, 0, ())


def test_who_is_closed_lets_everybody_go_and_has_no_news() -> None:
    news = Notifier()
    early = waiting(news, ("a",))
    news.notify("b")
    news.close()
    until(lambda: early() is False, 30, "it is let go")
    assert not news.wait(news.version(()), 60, ())
    assert not news.wait(0, 60, ("b",)), "who waits in a loop would turn for ever"
    assert news.closed


def test_who_looks_again_at_news_has_what_was_found_last() -> None:
    news, found = Notifier(), [0]

    def look() -> int:
        found[0] += 1
        news.notify("a")  # between the look and the wait
        return found[0]

    assert news.wait_for(("a",), 60, look, lambda n: n == 3) == 3
    assert news.wait_for(("b",), 0, look, lambda _: False) == 4
    assert news.wait_for(("b",), 0.01, look, lambda _: False) == 5
    news.close()
    assert news.wait_for(("a",), 60, look, lambda _: False) == 6
