"""Every case of side inputs through `AlignedRunner`, on 1 and on 4 buckets."""

from __future__ import annotations

from typing import Any

import pytest

from streambroker_core.errors import StreambrokerError
from support.sides.cases import Case, Run, differences, load, maker_of, run_by
from support.sides.runner import ThroughRunner

CASES = [case for case in load() if "refused" not in case["expect"]]


def through(case: Case, *, pieces: int | None, buckets: int, seed: int) -> Run:
    def make(part: Case) -> ThroughRunner:
        return ThroughRunner(maker_of(part), buckets, part, seed=seed)

    return run_by(case, make, pieces=pieces)


@pytest.mark.parametrize(
    ("pieces", "buckets", "seed"),
    [*(pytest.param(*one, marks=pytest.mark.slow) for one in ((1, 1, 1), (None, 1, 2))), (2, 4, 3)],
)
@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_a_case_gives_the_same_through_the_runner(
    case: dict[str, Any], pieces: int | None, buckets: int, seed: int
) -> None:
    if case["expect"].get("only", {}).get("buckets", buckets) != buckets:
        return
    if "fails" in case["expect"]:
        with pytest.raises(StreambrokerError) as raised:
            through(case, pieces=pieces, buckets=buckets, seed=seed)
        assert raised.value.code == case["expect"]["fails"]["code"]
        return
    found = through(case, pieces=pieces, buckets=buckets, seed=seed)
    keyed = bool(case["main"].get("key"))
    expect = {**case["expect"], "any order": case["expect"].get("any order") or buckets > 1 > keyed}
    reported = differences(
        {**case, "expect": expect}, found, places=pieces is None and not seed % 2, buckets=buckets
    )
    assert reported == []
