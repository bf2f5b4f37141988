"""How many lines of audit callers get that are not known."""

from __future__ import annotations

from streambroker_operator.security.audit_log import MAX_UNKNOWN, UnknownCallerFilter


def test_an_address_gets_one_line_a_minute_that_counts_the_others() -> None:
    unknown = UnknownCallerFilter()
    found = [unknown.admit("10.0.0.1", float(second)) for second in range(121)]

    assert {second: more for second, more in enumerate(found) if more is not None} == {
        0: 0,
        60: 59,
        120: 59,
    }


def test_many_addresses_get_so_many_lines_and_no_more() -> None:
    unknown = UnknownCallerFilter()
    found = [unknown.admit(f"10.0.0.{number}", 0.0) for number in range(200)]

    assert [more is not None for more in found].count(True) == MAX_UNKNOWN
    assert unknown.admit("10.0.0.1", 60.0) == 200 - MAX_UNKNOWN
