"""One Spark Connect server for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.spark.connect import ConnectServer


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    server = ConnectServer(tmp_path_factory.mktemp("connect") / "server")
    yield server
    server.end()
