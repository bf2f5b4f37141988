"""One API server for all tests of this folder; each test has a namespace of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from support.clusters.api_server import ApiServer, running_api_server
from support.clusters.programs import assets


@pytest.fixture(scope="session")
def kube_assets() -> Path:
    """Return the folder with etcd, kube-apiserver and kubectl."""
    return assets()


@pytest.fixture(scope="session")
def api(kube_assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """Run an API server with the CRDs; do not stop it, others use it too."""
    with running_api_server(kube_assets, tmp_path_factory.mktemp("cluster")) as server:
        yield server


@pytest.fixture
def own_api(kube_assets: Path, tmp_path: Path) -> Iterator[ApiServer]:
    """Run an API server that the test may stop, compact and restore."""
    with running_api_server(kube_assets, tmp_path / "cluster") as server:
        yield server


@pytest.fixture
def namespace(api: ApiServer) -> Iterator[str]:
    """Make a namespace for the test alone."""
    name = f"test-{uuid4().hex[:12]}"
    api.create_namespace(name)
    yield name
    api.remove_namespace(name)
