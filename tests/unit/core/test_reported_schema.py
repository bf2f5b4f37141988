"""The version of its columns that an agent reports of an export."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streambroker_core.errors import ManifestError
from streambroker_core.wire.encoding.fields import Fields
from streambroker_core.wire.reports.schema_status import (
    NO_VERSION,
    TIME_FORMAT,
    SchemaStatus,
    read_schema_status,
    write_schema_status,
)

TIMES = st.datetimes().map(lambda time: time.replace(year=2026).strftime(TIME_FORMAT))


def read(value: Any) -> SchemaStatus:
    return read_schema_status(Fields({"schemaVersion": value}))


@given(
    st.builds(SchemaStatus, number=st.integers(1, (1 << 63) - 1), since=st.one_of(st.none(), TIMES))
)
def test_a_version_is_read_back_as_it_was_written(schema: SchemaStatus) -> None:
    assert read(write_schema_status(schema)) == schema


def test_agents_of_earlier_releases_and_exports_without_rows_have_no_version() -> None:
    assert read_schema_status(Fields({"rows": 0})) == NO_VERSION
    assert read(write_schema_status(NO_VERSION)) == NO_VERSION


def test_members_that_a_later_agent_reports_are_ignored() -> None:
    assert read({"number": 2, "columns": []}) == SchemaStatus(number=2)


@pytest.mark.parametrize("since", ["now", "2026-13-01T00:00:00Z", "2026-01-01", "", 5])
def test_a_time_that_the_api_server_would_refuse_is_refused(since: Any) -> None:
    with pytest.raises(ManifestError, match=r"schemaVersion\.since"):
        read({"number": 2, "since": since})


@pytest.mark.parametrize("number", [0, -1, 1 << 63, "2", True, None])
def test_a_number_that_is_no_version_is_refused(number: Any) -> None:
    with pytest.raises(ManifestError, match=r"schemaVersion\.number"):
        read({"number": number})
