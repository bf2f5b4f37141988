"""Archive the classes that Spark loads for a query: ``python -m support.class_archive FILE``.

Half the processor time of a JVM that runs for seconds goes into finding and checking its classes;
with the archive it maps them. A Java that cannot make one leaves an empty file, which every Java
passes over.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from pe_agent.local import SMALL, session
from support.aligned_driver import run

JAVA = "spark.driver.extraJavaOptions"


def main(archive: Path) -> None:
    """Run a query with an operator; Java writes the archive when it ends."""
    archive.touch()
    conf = {**SMALL, JAVA: f"{SMALL[JAVA]} -Xlog:disable -XX:ArchiveClassesAtExit={archive}"}
    spark = session("classes", conf=conf)
    with tempfile.TemporaryDirectory() as folder:
        run(spark, Path(folder), [], tasks=2)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
