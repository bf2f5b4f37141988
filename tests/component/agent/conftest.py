"""Agents and a broker that stay over many rows of a kill table."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from support.cuts.cast import Cast

ROWS_PER_CAST = 10
"""An agent that is started again recovers the logs of all rows before: they must not pile up."""


@pytest.fixture(scope="module")
def new_cast(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Cast]]:
    casts: list[Cast] = []

    def new() -> Cast:
        if casts and casts[-1].rows < ROWS_PER_CAST and not casts[-1].failed:
            return casts[-1]
        if casts:
            casts[-1].end()
        casts.append(Cast(tmp_path_factory.mktemp("cuts")))
        return casts[-1]

    yield new
    if casts:
        casts[-1].end()
