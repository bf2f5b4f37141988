"""Archive the classes that Spark loads for a query: ``python -m support.spark.class_archive FILE``.

Half the processor time of a JVM that runs for seconds goes into finding and checking its classes;
with the archive it maps them. A Java that cannot make one leaves an empty file, which every Java
passes over.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from pe_agent.spark.local_session import SMALL, session
from streambroker.operators import OperatorOptions
from support.aligned.operators import Multiply
from support.aligned.spark import collected, scripted
from support.driver.aligned import script

SECONDS = 600.0
JAVA = "spark.driver.extraJavaOptions"


def main(archive: Path) -> None:
    """Run a query with an operator; Java writes the archive when it ends."""
    hidden = archive.with_suffix(".new")
    hidden.unlink(missing_ok=True)
    conf = {**SMALL, JAVA: f"{SMALL[JAVA]} -Xlog:disable -XX:ArchiveClassesAtExit={hidden}"}
    spark = session("classes", conf=conf)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        stream = scripted(spark, place, script()).key_by("k")
        made = stream.apply(
            Multiply, name="multiply", schema=Multiply.SCHEMA, options=OperatorOptions(buckets=2)
        )
        collected(made.to_df(), place / "ck")
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(SECONDS)
    hidden.touch()
    hidden.rename(archive)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
