"""A job runs on a cluster whose Python lacks the packages: they come with ``--py-files``."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pe_agent.spark.local_session import ensure_spark_home
from support.processes.jobs import Broker
from support.spark.feeds import DDL, Feed
from support.spark.standalone import Standalone

ROOT = Path(__file__).parents[2]
PACKAGES = ("core", "pe_agent", "pe_agent/streambroker")
OWN = ("pe_agent", "streambroker", "pyspark_streambroker")
PROGRAM = f"""
import sys

from pyspark.sql import SparkSession

import streambroker as sb

broker, folder = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
now = {{"availableNow": True}}
feed = sb.start(spark, job="feed", broker=broker, data_dir=f"{{folder}}/agent-feed")
alerts = sb.start(spark, job="alerts", broker=broker, data_dir=f"{{folder}}/agent-alerts")
trades = alerts.subscribe("in", 'kind == "trade"', start="earliest", schema="{DDL}")
rows = spark.readStream.schema("{DDL}").parquet(f"{{folder}}/feed")
feed.publish(
    rows, "out", properties={{"kind": "trade"}}, checkpoint=f"{{folder}}/ck-out", trigger=now
).awaitTermination()
writer = trades.writeStream.option("checkpointLocation", f"{{folder}}/ck-in").trigger(**now)
writer.start(f"{{folder}}/rows").awaitTermination()
print("from", sb.__file__, "rows", spark.read.parquet(f"{{folder}}/rows").count())
for pe in (feed, alerts):
    pe.stop(end_agent=True)
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Standalone]:
    cluster = Standalone(tmp_path / "cluster")
    yield cluster
    cluster.end()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path)
    yield broker
    broker.end()


def make_python(folder: Path) -> Path:
    """Return a Python that has all packages of this one, but for our own."""
    venv.create(folder, symlinks=True)
    here = Path(sysconfig.get_path("purelib"))
    there = folder / here.relative_to(sys.prefix)
    for package in here.iterdir():
        if not package.name.startswith(OWN) and package.suffix != ".pth":
            (there / package.name).symlink_to(package)
    return folder / "bin/python"


def pack(folder: Path) -> Path:
    """Return one zip file with the wheels of a job."""
    wheels = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    sources = [str(ROOT / package) for package in PACKAGES]
    subprocess.run([*wheels, "--wheel-dir", str(folder), *sources], check=True, cwd=folder.parent)
    packed = folder.parent / "streambroker.zip"
    with zipfile.ZipFile(packed, "w") as target:
        for wheel in folder.glob("*.whl"):
            with zipfile.ZipFile(wheel) as source:
                for name in source.namelist():
                    target.writestr(name, source.read(name))
    return packed


@pytest.mark.slow
def test_a_job_brings_its_packages_to_a_cluster_as_py_files(
    cluster: Standalone, tmp_path: Path, broker: Broker
) -> None:
    Feed(tmp_path / "feed").release(2)
    python, packed = make_python(tmp_path / "python"), pack(tmp_path / "wheels")
    program = tmp_path / "job.py"
    program.write_text(PROGRAM)
    missing = [str(python), "-c", "import pe_agent"]
    assert subprocess.run(missing, capture_output=True, check=False, cwd=tmp_path).returncode

    home = ensure_spark_home()
    submit = [str(home / "bin/spark-submit"), "--master", cluster.url, "--py-files", str(packed)]
    for setting in ("spark.driver.host=127.0.0.1", "spark.executor.memory=512m"):
        submit += ["--conf", setting]
    done = subprocess.run(
        [*submit, str(program), broker.url, str(tmp_path)],
        cwd=tmp_path,
        env={
            **os.environ,
            "SPARK_HOME": str(home),
            "PYSPARK_PYTHON": str(python),
            "PYTHONPATH": str(packed),  # for the driver's own workers, which get no --py-files
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert not done.returncode, done.stderr[-3000:]
    assert "streambroker.zip" in done.stdout
    assert "rows 600" in done.stdout
