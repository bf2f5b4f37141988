"""Buckets, and agents and a broker that stay over many rows of a kill table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from support.cuts.cast import Cast
from support.storage.servers import (
    EMULATOR_MISSING,
    MISSING,
    azure_server,
    is_built,
    is_emulator_installed,
    s3_server,
)

ROWS_PER_CAST = 10
"""An agent that is started again recovers the logs of all rows before: they must not pile up."""


@pytest.fixture(
    params=[
        "file",
        pytest.param("s3", marks=pytest.mark.skipif(not is_built(), reason=MISSING)),
        pytest.param(
            "az",
            marks=[
                pytest.mark.long,
                pytest.mark.skipif(not is_emulator_installed(), reason=EMULATOR_MISSING),
            ],
        ),
    ]
)
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Mapping[str, str]]:
    """Environment of agents with a bucket."""
    if request.param == "file":
        yield {"STREAMBROKER_STORAGE": f"file://{tmp_path}/a shared directory"}
        return
    server = s3_server if request.param == "s3" else azure_server
    with server(tmp_path / request.param) as environment:
        yield environment


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
