"""What the options of a stream say, and what of them is refused."""

from __future__ import annotations

import pytest

from pe_agent.datasource.options import BatchRange, OptionError, Options

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
