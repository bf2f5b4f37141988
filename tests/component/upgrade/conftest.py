"""The sources of the last release."""

from __future__ import annotations

import pytest

from support.processes.releases import NoHistoryError, Release, unpack


@pytest.fixture(scope="session")
def released(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """Return the last release; a clone without its commit cannot run these tests."""
    try:
        return unpack(tmp_path_factory.mktemp("released"))
    except NoHistoryError as error:
        pytest.skip(f"this is no clone with its history: {error}")
