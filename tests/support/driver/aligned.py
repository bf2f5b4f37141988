"""A query with operators, run to the end of its script.

``python -m support.driver aligned FOLDER CORES`` writes each window's rows and applied control
tuples to ``FOLDER/out``, and what it writes again to ``FOLDER/again``. It kills itself in the
windows that ``FOLDER/kills`` names, in the middle of them and behind the sink. There
``declared`` chooses an operator that counts its callbacks, and ``shared`` puts another operator
before it into its hop.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from new_factor import SetFactor
from pyspark.sql import DataFrame

from pe_agent.spark.local_session import SMALL, session
from streambroker.operators import OperatorOptions
from streambroker_core.control.tuples import ControlTuple
from streambroker_core.control.tuples.payloads import encode
from support.aligned.graphs import Turn, turns
from support.aligned.operators import Killing, KillingCalls, Passing
from support.aligned.spark import renumbered, scripted
from support.driver.process import kill_once

FACTORS = {"a": 10, "b": 20}


def script() -> list[Turn]:
    """Return four windows; ``a`` and ``b`` of the script set factors."""
    given = renumbered(turns("D1 D2 D3", "D4 E(a) D5 D6", "D7 D8", "D9 B(b)"))
    return [
        replace(turn, control=tuple((at, _factor(control)) for at, control in turn.control))
        for turn in given
    ]


def _factor(control: ControlTuple) -> ControlTuple:
    kind, text = encode(SetFactor(FACTORS[control.payload["name"]]))
    return replace(control, type=kind, text=text)


def main(folder: Path, cores: str) -> None:
    (folder / "out").mkdir(exist_ok=True)
    (folder / "again").mkdir(exist_ok=True)
    kills = json.loads((folder / "kills").read_text())
    stream = scripted(
        session("kills", cores=int(cores), conf=SMALL), folder, script(), tasks=int(cores) + 1
    )
    stream = stream.key_by("k")
    if kills.get("shared"):
        passed = stream.apply(Passing, options=OperatorOptions(buckets=3))
        stream = passed.key_by("k")
    operator: Any = KillingCalls if kills.get("declared") else Killing
    made = stream.apply(
        partial(operator, folder, windows=kills["middle"]),
        name="multiply",
        schema=operator.SCHEMA,
        options=OperatorOptions(buckets=3, report=True),
    )

    def take(frames: dict[str, DataFrame], window: int) -> None:
        found = [sorted(list(row) for row in frames[tag].collect()) for tag in ("out", "applied")]
        name = f"{window}.json"
        place = folder / ("again" if (folder / "out" / name).exists() else "out")
        (place / name).write_text(json.dumps(found))
        if window in kills["behind"]:
            kill_once(folder, f"behind-{window}")

    query = made.foreach_batch(take, checkpoint=folder / "ck", trigger={"availableNow": True})
    query.awaitTermination()
