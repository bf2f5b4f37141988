"""The driver of a query with operators, in a process of its own, for tests that kill it.

``python -m support.driver.aligned FOLDER CORES``: runs a script to its end, writes each window's
rows and applied control tuples to ``FOLDER/out``, and what it writes again to ``FOLDER/again``. It
kills itself in the windows that ``FOLDER/kills`` names, in the middle of them and behind the sink.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from functools import partial
from pathlib import Path

from new_factor import SetFactor
from pyspark.sql import DataFrame

from pe_agent.spark.local_session import SMALL, session
from streambroker_core.control.tuples import ControlTuple
from streambroker_core.control.tuples.payloads import encode
from support.aligned.graphs import Turn, turns
from support.aligned.operators import Killing, Multiply
from support.aligned.spark import renumbered, scripted
from support.processes.waiting import until

FACTORS = {"a": 10, "b": 20}


def script() -> list[Turn]:
    """Return four windows; ``a`` and ``b`` of the script set factors."""
    given = renumbered(turns("D1 D2 D3", "D4 E(a) D5 D6", "D7 D8", "D9 B(b)"))
    return [
        Turn(
            number=turn.number,
            rows=turn.rows,
            control=tuple((at, _factor(one)) for at, one in turn.control),
        )
        for turn in given
    ]


def _factor(control: ControlTuple) -> ControlTuple:
    kind, text = encode(SetFactor(FACTORS[control.payload["name"]]))
    return ControlTuple(
        type=kind,
        id=control.id,
        delivery=control.delivery,
        epoch=control.epoch,
        emitter=control.emitter,
        seq=control.seq,
        text=text,
    )


def main(folder: Path, cores: int) -> None:
    """Run to the end."""
    until((folder / "begin").exists, 30.0, "the driver's id is written down")
    (folder / "out").mkdir(exist_ok=True)
    (folder / "again").mkdir(exist_ok=True)
    kills = json.loads((folder / "kills").read_text())
    spark = session("kills", cores=cores, conf=SMALL)
    stream = scripted(spark, folder, script(), tasks=cores + 1)
    made = stream.key_by("k").control_aware(
        partial(Killing, str(folder), kills["middle"]),
        name="multiply",
        buckets=3,
        schema=Multiply.SCHEMA,
        report="applied",
    )

    def take(window: int, frames: dict[str, DataFrame]) -> None:
        found = [sorted(list(row) for row in frames[tag].collect()) for tag in ("out", "applied")]
        name, killed = f"{window}.json", folder / f"killed-behind-{window}"
        told = folder / ("again" if (folder / "out" / name).exists() else "out")
        (told / name).write_text(json.dumps(found))
        if window in kills["behind"] and not killed.exists():
            killed.touch()
            os.killpg(os.getpid(), signal.SIGKILL)

    query = made.for_each_window(take, checkpoint=folder / "ck", trigger={"availableNow": True})
    query.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
