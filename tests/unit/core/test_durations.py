"""Durations: the same forms wherever one is given."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from streambroker_core.cep import Pattern
from streambroker_core.model.durations import in_microseconds
from streambroker_core.side import fixed

SECOND = 1_000_000


@pytest.mark.parametrize(
    "given",
    [90, 90.0, timedelta(seconds=90), "90s", "90 s", "90 seconds", "1m30s", "1 minute 30 seconds",
     "1.5 min", "90000ms", "PT90S", "PT1M30S", "pt1.5m", " 90 Seconds ", "interval 90 seconds"],
)  # fmt: skip
def test_every_form_is_the_same_duration_everywhere(given: Any) -> None:
    assert in_microseconds(given) == 90 * SECOND
    (stage,) = Pattern.begin("a").within(given).stages()
    assert stage.within == 90 * SECOND
    assert fixed(given) == fixed(90)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [("2h", 7200), ("1 day", 86400), ("P1DT2H", 93600), ("P1W", 7 * 86400), ("2 weeks", 14 * 86400),
     ("0s", 0), ("P0D", 0)],
)  # fmt: skip
def test_longer_durations_are_read(given: str, seconds: int) -> None:
    assert in_microseconds(given) == seconds * SECOND


@pytest.mark.parametrize(
    "given",
    ["", "soon", "10", "s", "10 parsecs", "-1s", -1, True, None, "P", "PT", "PT10", "1s 2", "1e3s",
     float("inf"), float("nan"), timedelta(seconds=-1), "9" * 19 + "s", "1 month"],
)  # fmt: skip
def test_what_is_no_duration_is_none(given: Any) -> None:
    assert in_microseconds(given) is None
