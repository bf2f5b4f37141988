"""A declarative pipeline of Spark imports and exports, run by run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pe_agent.spark.local_session import ensure_spark_home
from support.processes.jobs import Broker
from support.processes.waiting import until
from support.spark.feeds import DDL, Feed
from support.spark.session import SECONDS, Session, exporter_status

EXAMPLE = Path(__file__).parents[3] / "examples/09-pipeline"


class Pipeline:
    """The pipeline of the example, with its files in a folder of the test."""

    def __init__(self, folder: Path, broker: str) -> None:
        folder.mkdir()
        self.home, self._folder, self._broker = folder / "agent", folder, broker
        for file in EXAMPLE.iterdir():
            text = file.read_text().replace("/tmp/streambroker-pipeline", str(folder))
            (folder / file.name).write_text(text)

    def run(self) -> None:
        """Run it once, to the end."""
        home = ensure_spark_home()
        environment = {"SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            [str(home / "bin/spark-pipelines"), "run", "--spec", "spark-pipeline.yml"],
            cwd=self._folder,
            env={**os.environ, **environment, "PATH": path, "STREAMBROKER_URL": self._broker},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert not done.returncode, done.stderr[-3000:]


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """The session of the jobs around the pipeline, which has a server of its own."""
    return spark


@pytest.mark.slow
def test_each_run_of_a_pipeline_imports_and_exports_what_is_new(
    jobs: Session, tmp_path: Path, broker: Broker
) -> None:
    feed, pipeline = Feed(tmp_path / "feed", rows_per_file=50), Pipeline(tmp_path / "p", broker.url)
    exporter = jobs.pe("feed")
    publishing = jobs.publish(exporter, feed, "out", properties={"kind": "trade"})
    reader = jobs.pe("reader")
    frame = reader.subscribe("in", 'kind == "alert"', start="earliest", schema=DDL)
    _, sink = jobs.collect(frame, "reader")
    expected = Counter[tuple[int, float, str]]()
    for _ in range(2):
        feed.release(2)
        publishing.processAllAvailable()
        pipeline.run()
        rows = [one for file in (feed.files - 2, feed.files - 1) for one in feed.rows(file)]
        expected += Counter(one for one in rows if one[1] > 40)
        sink.await_rows(expected.total())
    agent = jobs.pe("alerts", data_dir=pipeline.home)

    assert sink.rows == expected
    until(lambda: not exporter_status(exporter, "out")["held"], SECONDS, "all is read")
    assert agent.status()["exports"]["default/alerts/0/alerts"]["streams"]
