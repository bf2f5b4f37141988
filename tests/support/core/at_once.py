"""Run what is written as if it waited, and does not."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """Return what work comes to; it fails if it waits for anybody on the way."""
    try:
        work.send(None)
    except StopIteration as done:
        found: T = done.value
        return found
    work.close()
    raise AssertionError("it waits, and others may come between")
