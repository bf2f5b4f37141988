"""How the demonstration talks to its jobs: a JSON order per line in, an answer per line out."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

MARK = "@ "
"""Begins each line that is an answer; anything else on the output is Spark's or a print."""


def answer(**facts: Any) -> None:
    """Write one answer."""
    sys.stdout.write(MARK + json.dumps(facts) + "\n")
    sys.stdout.flush()


def phase(text: str) -> None:
    """Report how far the job's start is."""
    answer(phase=text)


def obey(handlers: Mapping[str, Callable[..., Any]]) -> None:
    """Carry out orders until one says stop, or whoever gives them is gone.

    Args:
        handlers: by the order's name; called with the order's other members.
    """
    for line in sys.stdin:
        order = json.loads(line)
        name = order.pop("do")
        if name == "stop":
            return
        try:
            answer(done=handlers[name](**order))
        except Exception as error:
            answer(error=f"{type(error).__name__}: {error}")
