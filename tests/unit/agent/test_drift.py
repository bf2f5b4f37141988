"""What grows in a long run is told from what only goes up and down."""

from __future__ import annotations

import pytest

from support.core.drift import drift

LOOKS = range(0, 900, 5)


def test_a_leak_is_seen_under_restarts() -> None:
    """A process that is started again every 90 s, smaller at first, and 5 MB a minute beside."""
    steady = [100e6 - (20e6 if t % 90 < 20 else 0.0) for t in LOOKS]
    leak = [(t, v + 5e6 * t / 60) for t, v in zip(LOOKS, steady, strict=True)]

    assert drift(list(zip(LOOKS, steady, strict=True)))[1] == pytest.approx(0.0, abs=1e6)
    middle, grown = drift(leak)
    assert middle == pytest.approx(137e6, rel=0.05)
    assert grown == pytest.approx(75e6, rel=0.05)


def test_one_step_at_the_end_is_no_growth() -> None:
    assert drift([(t, 100.0 if t < 800 else 200.0) for t in LOOKS]) == (100.0, 0.0)


def test_what_only_falls_grows_by_less_than_nothing() -> None:
    assert drift([(0, 30.0), (10, 20.0), (20, 10.0)]) == (20.0, -20.0)
