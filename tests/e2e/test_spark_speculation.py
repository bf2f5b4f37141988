"""Two attempts of one task are alive at once, as Spark's speculation has them: rows once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes.world import World, check_rows
from support.spark.standalone import Standalone


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Standalone]:
    cluster = Standalone(tmp_path / "cluster")
    yield cluster
    cluster.end()


@pytest.mark.long
def test_a_task_that_spark_runs_twice_at_once_is_in_its_epoch_once(
    cluster: Standalone, tmp_path: Path
) -> None:
    reported = tmp_path / "told"
    reported.mkdir()
    conf = {
        "spark.master": cluster.url,
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.2",
    }
    world = World(tmp_path, attempts=4, exporting={"conf": conf, "late": str(reported)})
    try:
        world.trades.release(3)
        world.await_files(world.trades, 240.0)
        check_rows(world)
    finally:
        world.end()

    slow = (reported / "waits").readlink().name.partition("-")[0]
    assert len(list(reported.glob(f"{slow}-*"))) == 2
