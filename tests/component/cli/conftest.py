"""A broker and the command line beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.brokers.brokers import running_broker
from support.brokers.commands import Cli


@pytest.fixture
async def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> AsyncIterator[Cli]:
    """An empty broker."""
    async with running_broker(tmp_path / "broker.db") as (_, rest):
        yield Cli(rest, capsys, tmp_path)


@pytest.fixture
async def applied(cli: Cli) -> Cli:
    """A broker that has the documents."""
    assert (await cli("apply", "-f", str(cli.file)))[0] == 0
    return cli
