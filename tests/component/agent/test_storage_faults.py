"""Agents behind whose exports the object storage fails, in each way that a proxy can make."""

from __future__ import annotations

import re
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from support.agents.agents import AgentProcess, Pair, Publishing, Reading, pair, rows
from support.processes.waiting import until
from support.storage.drill import ROWS, Load, Reader, lose_disk
from support.storage.proxy import FAULTS, Fault, Request, S3Proxy, proxy
from support.storage.servers import MISSING, is_built, s3_server

pytestmark = pytest.mark.skipif(not is_built(), reason=MISSING)

SECONDS = 90.0
FAILING: set[Fault] = {"500", "503", "cut", "lost"}
"""Faults that last as long as the agent repeats a call."""
RSS_MIB = 400
"""Most memory of an agent that uploads segments of 64 MiB: it holds each one at a time."""


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[tuple[S3Proxy, dict[str, str]]]:
    with s3_server(tmp_path / "s3") as environment, proxy(environment["AWS_ENDPOINT_URL"]) as made:
        yield made, {**environment, "AWS_ENDPOINT_URL": made.url}


def metric(agent: AgentProcess, name: str) -> float:
    """Return a metric of the agent's export, as a scraper reads it."""
    with urllib.request.urlopen(f"http://127.0.0.1:{agent.address['metrics']}/metrics") as found:
        text = found.read().decode()
    (value,) = re.findall(rf"^streambroker_export_storage_{name}\{{.*\}} (\S+)$", text, re.MULTILINE)
    return float(value)


def peak_mib(agent: AgentProcess) -> float:
    """Return the greatest resident memory of an agent's process so far."""
    assert agent.process is not None
    status = Path(f"/proc/{agent.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def is_well(agent: AgentProcess) -> bool:
    """Whether the bucket has all that is published."""
    return metric(agent, "failing") == 0 == metric(agent, "behind_bytes")


def shows(agent: AgentProcess, fault: Fault) -> bool:
    """Whether the metrics show what is wrong."""
    if fault in FAILING:
        return metric(agent, "failing") == 1 and metric(agent, "behind_seconds") > 0
    return metric(agent, "behind_seconds") > 1 if fault == "slow" else True


@pytest.mark.parametrize("durability", ["stored", "local"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_bucket_loses_and_doubles_no_row(
    storage: tuple[S3Proxy, dict[str, str]],
    tmp_path: Path,
    fault: Fault,
    durability: str,
    record_property: pytest.RecordProperty,
) -> None:
    made, environment = storage
    for agents in pair(tmp_path, environment=environment, durability=durability):
        reading = Reading(agents.importer)
        reader = Reader(reading, reading.open())
        load = Load(agents)
        try:
            until(lambda: load.published > 3, SECONDS, "batches")
            made.begin(fault)
            before = load.published
            if fault != "stale":
                until(lambda: made.hits > 3, SECONDS, "requests that fail")
                until(lambda: shows(agents.exporter, fault), SECONDS, "the metrics show it")
            if durability == "local" or fault == "stale":
                until(lambda: load.published > before + 3, SECONDS, "batches meanwhile")
            else:
                assert load.published <= before + 1
            made.end()
            after = load.published
            until(lambda: load.published > after + 3, SECONDS, "batches after the fault")
        finally:
            made.end()
            load.stop()
        until(lambda: is_well(agents.exporter), SECONDS, "everything uploaded")
        record_property("peak_mib", peak_mib(agents.exporter))
        assert peak_mib(agents.exporter) < RSS_MIB
        lose_disk(agents)
        reader.read_to(load.published * ROWS)
        assert (reader.expected, reader.lost, reader.doubled) == (load.published * ROWS, 0, 0)
