"""Uploads as an agent reports them, and what the status of an Export shows of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streambroker_core.errors import ManifestError
from streambroker_core.model import Durability
from streambroker_core.wire.encoding.fields import Fields
from streambroker_core.wire.reports.storage_status import (
    BEHIND_SECONDS,
    StorageStatus,
    StoredState,
    read_storage,
    stored_state,
    write_storage,
)

NO_STORAGE = StorageStatus(exists=False)
MIB = 1 << 20


def read(value: Any) -> StorageStatus:
    return read_storage(Fields({"storage": value}))


def shown(storage: StorageStatus, durability: Durability = "local") -> StoredState:
    state = stored_state(storage, durability)
    assert state is not None
    return state


@given(
    st.builds(
        StorageStatus,
        bytes=st.integers(0, 1 << 40),
        seconds=st.integers(0, 1 << 20),
        error=st.text(st.characters(codec="utf-8"), max_size=300),
        superseded=st.booleans(),
    )
    | st.just(NO_STORAGE)
)
def test_a_report_is_read_back_as_it_was_written(storage: StorageStatus) -> None:
    assert read(write_storage(storage)) == storage


def test_a_report_has_no_values_that_are_nothing() -> None:
    assert write_storage(StorageStatus()) == {}
    assert write_storage(NO_STORAGE) is None


@pytest.mark.parametrize(
    "value", [[], {"bytes": -1}, {"seconds": "5"}, {"error": ""}, {"superseded": "yes"}]
)
def test_a_report_with_a_fault_is_refused_with_its_place(value: Any) -> None:
    with pytest.raises(ManifestError, match="storage"):
        read(value)


@pytest.mark.parametrize(
    ("storage", "reason"),
    [
        (StorageStatus(), "UpToDate"),
        (StorageStatus(bytes=900 * MIB, seconds=BEHIND_SECONDS - 1), "UpToDate"),
        (StorageStatus(bytes=1, seconds=BEHIND_SECONDS), "Behind"),
        (StorageStatus(error="it fails."), "StorageUnavailable"),
        (StorageStatus(error="it fails.", seconds=900), "StorageUnavailable"),
        (StorageStatus(error="it fails.", superseded=True), "Superseded"),
    ],
)
def test_an_export_has_one_reason(storage: StorageStatus, reason: str) -> None:
    state = shown(storage)
    assert state.reason == reason
    assert state.is_stored == (reason == "UpToDate") == (not state.message)


def test_an_export_without_storage_lacks_it_only_if_it_demands_it() -> None:
    assert stored_state(NO_STORAGE, "local") is None
    missing = stored_state(NO_STORAGE, "stored")
    assert missing is not None
    assert missing.reason == "StorageMissing"
    assert "Start the job with `storage=`" in missing.message


def test_a_message_has_error_lag_and_remedy() -> None:
    failing = StorageStatus(bytes=70 * MIB, seconds=700, error="s3://rows: it fails.")
    assert shown(failing).message == (
        "s3://rows: it fails. At least 16 MiB are not uploaded, for at least 10 minutes. Publishing"
        " goes on, and what is not uploaded is lost if the disk is lost. Uploads continue once the"
        " bucket answers."
    )
    assert shown(failing, "stored").message.endswith(
        " Nothing is published until the bucket answers. Then start the queries that failed."
    )
    behind = shown(StorageStatus(bytes=5, seconds=4_000)).message
    assert behind.startswith("Less than 64 KiB are not uploaded, for at least 1 hour. The export")


def test_a_lag_that_grows_for_weeks_changes_the_status_a_few_times() -> None:
    growing = (
        shown(StorageStatus(bytes=MIB * seconds, seconds=seconds, error="it fails."))
        for seconds in range(0, 2_000_000, 30)
    )
    assert len(set(growing)) <= 14


def test_a_lag_that_is_normal_does_not_change_the_status() -> None:
    normal = {shown(StorageStatus(bytes=n * MIB, seconds=n)) for n in range(BEHIND_SECONDS)}
    assert len(normal) == 1
