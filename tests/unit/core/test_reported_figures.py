"""What is said of rows of patterns that wait for the watermark."""

from __future__ import annotations

from streambroker_core.control.tuples import END_OF_TIME
from streambroker_core.wire.reports.rule_metrics import WatermarkWait, describe_wait


def waits(rows: int, first: int | None, watermark: int | None) -> str:
    reported = WatermarkWait(operator="p", log="l", rows=rows, first=first, watermark=watermark)
    return describe_wait(reported)


def test_it_says_for_which_time_rows_wait_and_where_the_watermark_is() -> None:
    assert waits(1_200, 7_500_000, 7_000_000) == (
        "1,200 rows wait for the watermark to pass 1970-01-01 00:00:07.500000;"
        " it is at 1970-01-01 00:00:07."
    )
    assert waits(1, 0, None) == (
        "1 row waits for the watermark to pass 1970-01-01 00:00:00; there is none yet."
    )
    assert waits(1, END_OF_TIME, 0).startswith(
        "1 row waits for the watermark to pass the end of time;"
    )
    assert waits(0, None, 5) == "no rows wait for the watermark."
