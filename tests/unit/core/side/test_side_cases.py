"""Every case of ``tests/cases/side``, cut into windows in several ways, on 1 and on 4 buckets."""

from __future__ import annotations

from typing import Any

import pytest

from streambroker_core.errors import StreambrokerError
from streambroker_core.side.errors import SideDefinitionError
from support.sides.cases import differences, load, maker_of, run

CASES = load()
RUN = [case for case in CASES if "refused" not in case["expect"]]
REFUSED = [case for case in CASES if "refused" in case["expect"]]
BEAM_AND_FLIP = {f"C-{number}" for number in range(1, 64)}


def test_every_scenario_is_a_case() -> None:
    ids = [case["id"] for case in CASES]
    assert set(ids) >= BEAM_AND_FLIP
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    ("pieces", "buckets"),
    [
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in ((1, 1), (2, 1), (1, 4), (None, 4))
        ),
        (None, 1),
        (2, 4),
    ],
)
@pytest.mark.parametrize("case", RUN, ids=[case["id"] for case in RUN])
def test_a_case_gives_what_it_expects(
    case: dict[str, Any], pieces: int | None, buckets: int
) -> None:
    if case["expect"].get("only", {}).get("buckets", buckets) != buckets:
        return
    if "fails" in case["expect"]:
        with pytest.raises(StreambrokerError) as raised:
            run(case, pieces=pieces, buckets=buckets)
        assert raised.value.code == case["expect"]["fails"]["code"]
        assert case["expect"]["fails"]["says"] in str(raised.value)
        return
    found = run(case, pieces=pieces, buckets=buckets)
    assert differences(case, found, places=pieces is None, buckets=buckets) == []


@pytest.mark.parametrize("case", REFUSED, ids=[case["id"] for case in REFUSED])
def test_a_definition_that_could_never_work_is_refused(case: dict[str, Any]) -> None:
    with pytest.raises(SideDefinitionError) as raised:
        maker_of(case)
    assert case["expect"]["refused"] in str(raised.value)
