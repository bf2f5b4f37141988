"""What the options of a stream say, and what of them is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pe_agent.aligned.options import OperatorOptions
from pe_agent.datasource.options import BatchRange, OptionError, Options
from pe_agent.streams.stream import OperatorStream
from streambroker_core.errors import AlignedError

GIVEN = {"import": "in", "agent": "grpc+tcp://127.0.0.1:9"}


@pytest.mark.parametrize(
    ("more", "lossy"),
    [
        ({}, False),
        ({"failOnDataLoss": "true"}, False),
        ({"failondataloss": "false"}, True),
        ({"failOnDataLoss": "False"}, True),
    ],
)
def test_a_loss_stops_the_query_unless_it_is_set_to_go_on(
    more: dict[str, str], lossy: bool
) -> None:
    assert Options.read({**GIVEN, **more}, "import").skip_lost is lossy


@pytest.mark.parametrize("name", ["failOnDataLoss", "stopAtEnd", "control"])
def test_what_is_neither_true_nor_false_is_refused_by_name(name: str) -> None:
    with pytest.raises(OptionError, match=f"option `{name.lower()}` is 'perhaps'"):
        Options.read({**GIVEN, name: "perhaps"}, "import")


@pytest.mark.parametrize("name", ["start", "end", "filter"])
def test_an_option_of_batch_reads_is_refused_for_a_stream(name: str) -> None:
    with pytest.raises(OptionError, match=f"option `{name}` is for spark.read"):
        BatchRange.check_absent({**GIVEN, name: "latest"})


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"start": "yesterday"}, "option `start` is 'yesterday'"),
        ({"end": "1h"}, "option `end` is '1h'"),
        ({"control": "true"}, "option `control` is for a readStream"),
    ],
)
def test_an_option_that_does_not_fit_a_batch_read_is_refused(
    more: dict[str, str], error: str
) -> None:
    with pytest.raises(OptionError, match=error):
        BatchRange.read({**GIVEN, **more})


def test_dead_letters_are_on_or_off() -> None:
    wrong: Any = "no"
    with pytest.raises(AlignedError, match="dead_letters is 'no': it has to be True or False"):
        OperatorOptions(dead_letters=wrong)


def test_foreach_batch_refuses_a_query_that_loses_dead_letters_of_an_operator_before() -> None:
    first = SimpleNamespace(name="first", has_dead_letters=True)
    last = SimpleNamespace(name="last", has_dead_letters=True, schemas={"dead_letters": None})
    plan: Any = SimpleNamespace(nodes={1: first, 2: last}, data=None, last_operator=lambda: last)
    with pytest.raises(AlignedError, match="operator first has dead letters, and this query"):
        OperatorStream(plan).foreach_batch(lambda outputs, window: None, checkpoint="c")
    plan.nodes = {2: last}
    last.frame = SimpleNamespace()
    with pytest.raises(AttributeError, match="writeStream"):
        OperatorStream(plan).foreach_batch(lambda outputs, window: None, checkpoint="c")
