"""Work during which Python does not look for cycles: a batch makes many objects, and no cycles.

Looking for them again and again among events, runs and rows took a third of the time of rules that
match often. What is not used any more is freed all the same, as soon as nothing refers to it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def gc_paused(function: Callable[P, T]) -> Callable[P, T]:
    """Return a function during which nobody looks for cycles, if somebody did before."""

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        if not gc.isenabled():
            return function(*args, **kwargs)
        gc.disable()
        try:
            return function(*args, **kwargs)
        finally:
            gc.enable()

    return called
