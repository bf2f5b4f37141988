"""Waiting until a change or a control tuple applies."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from pe_agent.job.arguments import seconds
from streambroker_core.errors import StreambrokerError
from streambroker_core.model.durations import Duration

_T = TypeVar("_T")


class NotAppliedError(StreambrokerError):
    """A change or a control tuple is durable, but was not seen applied in time."""

    code = "NotApplied"


def wait_applied(
    check: Callable[[], _T | None], timeout: Duration, explain: Callable[[], str], *, every: float
) -> _T:
    """Return the first result of ``check`` that is not None.

    Args:
        check: returns None while it is not applied.
        timeout: a duration.
        explain: returns the first part of the error, before the time.
        every: seconds between two calls.

    Raises:
        NotAppliedError: ``check`` returned None until the end of ``timeout``.
    """
    limit = seconds(timeout, "timeout")
    deadline = time.monotonic() + limit
    while True:
        applied = check()
        if applied is not None:
            return applied
        if time.monotonic() >= deadline:
            raise NotAppliedError(f"{explain()} after {limit:g} s.")
        time.sleep(every)
