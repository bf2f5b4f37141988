"""The example of Export and Import, as it is, with a broker and two agents of the tests."""

from __future__ import annotations

from originals import export_import

from streambroker.functions import DONE, INVALID, NO_PORT
from support.spark.session import Session


def test_ports_change_while_both_jobs_run(jobs: Session) -> None:
    """Of six numbers those arrive that match subscription and filter when they are sent."""
    codes, found = export_import.run(jobs.spark, jobs.folder, jobs.broker or "")
    assert codes == [DONE] * 4 + [INVALID, NO_PORT]
    assert found == [2, 4, 6]
