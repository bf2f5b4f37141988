"""An operator in Spark's plan: what the process beside the driver has to import for it."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

from pe_agent.aligned.runtime import hosting, processor
from pe_agent.aligned.runtime.lazy_operator import LazyOperator
from pe_agent.aligned.runtime.processor import OperatorConfig
from streambroker.operators import AlignedError
from streambroker_core.control.operators.operator import Operator
from streambroker_core.control.tuples import Limits
from support.aligned.batches import Stage

HOSTED = OperatorConfig(
    make=Operator,
    name="op",
    buckets=2,
    order_by=None,
    limits=Limits(),
    layouts={},
    schemas={},
    has_watermark=False,
)
DRIVER = """
import sys, pickle
import pyspark.sql.streaming.transform_with_state_driver_worker
asked = []
class Handle:
    def getValueState(self, name, schema): asked.append(name)
    def getMapState(self, name, key, value): asked.append(name)
with open(sys.argv[1], "rb") as file:
    pickle.load(file).init(Handle())
print(asked, [name for name in ("pyarrow", "pandas", "streambroker_core") if name in sys.modules])
"""


def test_the_process_that_asks_for_states_imports_neither_the_operator_nor_arrow(
    tmp_path: Path,
) -> None:
    (tmp_path / "plan").write_bytes(pickle.dumps(LazyOperator(HOSTED)))
    answer = subprocess.run(
        [sys.executable, "-c", DRIVER, str(tmp_path / "plan")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.strip() == "['slot', 'blobs'] []"


def test_an_operator_that_spark_cannot_hand_over_is_refused_before_a_query_starts() -> None:
    class Spark:
        def __init__(self, most: int) -> None:
            utils = SimpleNamespace(getBroadcastThreshold=lambda context: most)
            jvm = SimpleNamespace(PythonUtils=utils)
            self.sparkContext = SimpleNamespace(_jvm=jvm, _jsc=None)

    large = replace(HOSTED, make=partial(holding, b"x" * (2 << 20)))
    with pytest.raises(
        AlignedError, match=r"operator op has 20.* bytes.*Compression.* such as 64m"
    ):
        hosting.make_lazy_operator([large], cast(SparkSession, Spark(1 << 20)))
    assert hosting.make_lazy_operator([large], cast(SparkSession, Spark(4 << 20))).size() > 2 << 20
    hosting.make_lazy_operator([HOSTED], cast(SparkSession, Spark(1 << 20)))


def holding(data: bytes) -> Operator:
    del data
    return Operator()


def test_a_task_runs_the_operator_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []

    class Runs:
        def __init__(self, hosted: OperatorConfig) -> None:
            ran.append((hosted.name, hosted.make))

        def init(self, handle: Any) -> None:
            ran.append(handle)

        def close(self) -> None:
            ran.append("closed")

    monkeypatch.setattr(processor, "GroupProcessor", Runs)
    monkeypatch.setattr(TaskContext, "get", lambda: "a task")
    handle = Stage(HOSTED)
    deferred = pickle.loads(pickle.dumps(LazyOperator(HOSTED)))
    deferred.init(handle)
    deferred.close()
    assert ran == [("op", Operator), handle, "closed"]
