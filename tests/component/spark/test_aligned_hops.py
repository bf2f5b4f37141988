"""Operators in a chain that share one hop on Spark: the same as in hops of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from pe_agent.aligned.runtime.state_reader import _operator_ids, read_states
from streambroker import cause
from support.aligned.graphs import Graph, Log, Node, Turn, chain, sink, turns
from support.aligned.model import simulate
from support.aligned.spark import (
    SHUFFLE,
    collected,
    configured,
    on_spark,
    renumbered,
    scripted,
    seen,
)

SCRIPT = renumbered(
    turns("D1 I(a) D2 E(b)", ["E(g) D3 T5(t)", "E(g) D4 I(i)"], "B(h) D6 D7 D8 D9 I(i)", "D10 D11")
)
Found = tuple[Log, dict[int, list[tuple[Any, ...]]], list[str]]


def chain_of_four(*, stays: bool) -> Graph:
    return chain(*(Node(name=f"P{at}", buckets=3, stays=stays) for at in range(3)), sink(3))


def run(spark: SparkSession, folder: Path, script: Sequence[Turn], *, stays: bool) -> Found:
    """Run a script in a checkpoint: what operators saw, the rows by window, and the hops."""
    graph = chain_of_four(stays=stays)
    last = on_spark(graph, scripted(spark, folder, script, tasks=2, seed=5), folder / "seen")[
        "sink"
    ]
    with configured(spark, {SHUFFLE: "2"}):
        rows = collected(last.to_df(), folder / "ck")
    query = (folder / "ck" / "metadata").read_text().split('"')[3]
    by_window = {window: sorted(found) for window, found in rows.items()}
    return seen(folder / "seen", query), by_window, last.explain()


def test_a_chain_of_four_in_one_hop_is_the_model_and_the_same_row_by_row(
    spark: SparkSession, tmp_path: Path
) -> None:
    log, rows, hops = run(spark, tmp_path / "shared", SCRIPT, stays=True)
    assert hops == ["P0, P1, P2 and sink share one hop."]
    assert _operator_ids(spark, tmp_path / "shared" / "ck") == [0]
    assert log == simulate(chain_of_four(stays=True), SCRIPT)
    apart, same, own = run(spark, tmp_path / "apart", SCRIPT, stays=False)
    assert (apart, same) == (log, rows)
    assert own == [
        "P0 has a hop of its own.",
        *(
            f"{name} has a hop of its own: P{at} does not declare stays_in_bucket."
            for at, name in enumerate(["P1", "P2", "sink"])
        ),
    ]
    for name in ("P0", "P1", "P2", "sink"):
        states = [read_states(spark, tmp_path / way / "ck", name) for way in ("shared", "apart")]
        assert states[0] == states[1] != {}


@pytest.mark.slow
@pytest.mark.parametrize("began", [False, True])
def test_a_checkpoint_keeps_the_hops_it_began_with(
    spark: SparkSession, tmp_path: Path, began: bool
) -> None:
    run(spark, tmp_path, SCRIPT[:2], stays=began)
    with pytest.raises(StreamingQueryException) as refused:
        run(spark, tmp_path, SCRIPT, stays=not began)
    assert "stays_in_bucket in the same operators" in str(cause(refused.value))
    log, _, _ = run(spark, tmp_path, SCRIPT, stays=began)
    assert log == simulate(chain_of_four(stays=began), SCRIPT)
