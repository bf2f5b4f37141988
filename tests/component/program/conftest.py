"""A broker, an agent and a PE object, for a whole file or for one test that breaks them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes.programs import World, made


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with made(tmp_path_factory.mktemp("world")) as found:
        yield found


@pytest.fixture
def own(tmp_path: Path) -> Iterator[World]:
    """A world of the test's own, to be broken."""
    with made(tmp_path) as found:
        yield found
