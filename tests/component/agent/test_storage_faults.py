"""Agents behind whose exports the object storage fails, in each way that a proxy can make."""

from __future__ import annotations

import contextlib
import re
import shutil
import urllib.request
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pe_agent.log.objects.bucket import open_bucket
from support.agents.agents import AgentProcess, Publishing, Reading, error_code, pair, rows
from support.agents.connected import Connected
from support.agents.sources import Run
from support.processes.waiting import until
from support.storage.drill import ROWS, Load, Reader, lose_disk
from support.storage.proxy import FAULTS, Fault, S3Proxy, proxy
from support.storage.servers import MISSING, is_built, s3_server

pytestmark = pytest.mark.skipif(not is_built(), reason=MISSING)

SECONDS = 90.0
connected = contextlib.contextmanager(pair)
FAILING: set[Fault] = {"500", "503", "cut", "lost"}
"""Faults that last as long as the agent repeats a call."""
ALWAYS = {("503", "local"), ("cut", "stored"), ("lost", "stored"), ("stale", "stored")}
"""What the ordinary run has of the table."""
EPOCHS, EPOCH_MIB = 20, 16
"""Five segments."""
RSS_MIB = 600
"""Most memory of an agent that takes these epochs and uploads them. It was 445, and 263 without
storage. What waits for the bucket would come on top if the agent held it."""


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[tuple[S3Proxy, dict[str, str]]]:
    with s3_server(tmp_path / "s3") as environment, proxy(environment["AWS_ENDPOINT_URL"]) as made:
        more = {"AWS_ENDPOINT_URL": made.url, "STREAMBROKER_METRICS_PORT": "0"}
        yield made, {**environment, **more}


def metric(agent: AgentProcess, name: str) -> float:
    """Return a metric of the agent's export, as a scraper reads it."""
    with urllib.request.urlopen(f"http://127.0.0.1:{agent.address['metrics']}/metrics") as found:
        text = found.read().decode()
    (value,) = re.findall(
        rf"^streambroker_export_storage_{name}\{{.*\}} (\S+)$", text, re.MULTILINE
    )
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


@pytest.mark.parametrize(
    ("fault", "durability"),
    [
        pytest.param(*one, id="-".join(one), marks=() if one in ALWAYS else pytest.mark.long)
        for one in product(FAULTS, ("stored", "local"))
    ],
)
def test_a_fault_of_the_bucket_loses_and_doubles_no_row(
    storage: tuple[S3Proxy, dict[str, str]],
    tmp_path: Path,
    fault: Fault,
    durability: str,
) -> None:
    made, environment = storage
    with connected(tmp_path, environment=environment, durability=durability) as agents:
        reading = Reading(agents.importer)
        reader = Reader(reading, reading.open())
        load = Load(agents)
        try:
            load.await_more(3)
            made.begin(fault)
            before = load.published
            if fault != "stale":
                until(lambda: made.hits > 3, SECONDS, "requests that fail")
                until(lambda: shows(agents.exporter, fault), SECONDS, "the metrics show it")
            if durability == "stored" and fault in FAILING:
                assert load.published <= before + 1
            else:
                load.await_more(3)
            made.end()
            load.await_more(3)
        finally:
            made.end()
            load.stop()
        until(lambda: is_well(agents.exporter), SECONDS, "everything uploaded")
        lose_disk(agents)
        reader.read_to(load.published * ROWS)
        assert (reader.expected, reader.lost, reader.doubled) == (load.published * ROWS, 0, 0)


def test_an_agent_holds_few_segments_in_memory_while_the_bucket_fails(
    storage: tuple[S3Proxy, dict[str, str]], tmp_path: Path
) -> None:
    made, environment = storage
    with connected(tmp_path, environment=environment, durability="local") as agents:
        publisher = Publishing(agents.exporter)
        publisher.publish(0, rows(0, 1))
        until(lambda: is_well(agents.exporter), SECONDS, "uploaded")
        made.begin("cut")
        for batch in range(1, EPOCHS + 1):
            publisher.publish(batch, wide(batch))
        until(lambda: metric(agents.exporter, "failing") == 1, SECONDS, "a failed upload")
        assert metric(agents.exporter, "behind_bytes") > EPOCHS * EPOCH_MIB << 20
        made.end()
        until(lambda: is_well(agents.exporter), SECONDS, "uploaded after the fault")
        assert peak_mib(agents.exporter) < RSS_MIB


def wide(first: int) -> pa.RecordBatch:
    """Return rows of 1 MiB each."""
    numbers = range(first, first + EPOCH_MIB)
    columns = {"n": list(numbers), "name": [chr(65 + n % 26) * (1 << 20) for n in numbers]}
    return pa.RecordBatch.from_pydict(columns)


def test_a_segment_is_put_by_one_request(
    storage: tuple[S3Proxy, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, environment = storage
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    open_bucket("s3://rows/prefix").put("segment", b"x" * (64 << 20))
    assert made.requests == {"PUT": 1}


def test_an_agent_takes_over_though_lists_lack_the_last_objects_of_each_chain(
    storage: tuple[S3Proxy, dict[str, str]], tmp_path: Path
) -> None:
    made, environment = storage
    with connected(tmp_path, environment=environment, durability="stored") as agents:
        run, publisher = Run(agents.importer), Publishing(agents.exporter)
        for batch in range(3):
            publisher.publish(batch, rows(ROWS * batch, ROWS))
        made.begin("stale")
        for batch in range(3, 6):
            publisher.publish(batch, rows(ROWS * batch, ROWS))
        lose_disk(agents)
        assert made.hits > 3
        assert Publishing(agents.exporter, run="run-2").publish(6, rows(ROWS * 6, ROWS))["epoch"]
        assert read_all(run, ROWS * 7) == list(range(ROWS * 7))


def test_a_local_export_loses_exactly_what_was_not_uploaded(
    storage: tuple[S3Proxy, dict[str, str]], tmp_path: Path
) -> None:
    made, environment = storage
    with connected(tmp_path, environment=environment, durability="local") as agents:
        strict, lossy = Run(agents.importer), Run(agents.importer, skip_lost=True)
        publisher = Publishing(agents.exporter)
        for batch in range(5):
            publisher.publish(batch, rows(ROWS * batch, ROWS))
        stored = list(range(ROWS * 5))
        for run in (strict, lossy):
            assert read_all(run, len(stored)) == stored
        until(partial(is_well, agents.exporter), SECONDS, "uploaded")
        made.begin("500")
        for batch in range(5, 8):
            publisher.publish(batch, rows(ROWS * batch, ROWS))
        agents.exporter.kill()
        made.end()
        lose_disk(agents)

        assert agents.exporter.export_status()["publisher"]["batch"] == 4
        again = Publishing(agents.exporter, run="run-2")
        again.publish(8, rows(ROWS * 8, ROWS))
        assert read_all(lossy, ROWS) == list(range(ROWS * 8, ROWS * 9))
        assert [epochs for epochs, _ in lossy.at["lost"].values()] == [3]
        assert error_code(read_all, strict, ROWS) == "DataLoss"


def test_a_durability_that_changes_under_load_holds_from_the_next_batch_on(
    storage: tuple[S3Proxy, dict[str, str]], tmp_path: Path
) -> None:
    made, environment = storage
    both = Connected(tmp_path)
    both.exporter.environment = environment
    both.start()
    both.declare(both.exporter, "export", properties={"kind": "trade"})
    both.declare(both.importer, "import", subscription='kind == "trade"', start="earliest")
    until(both.at, SECONDS, "a route")
    run, load = Run(both.importer), Load(both)
    try:
        for durability in ("stored", "local", "stored"):
            load.await_more(3)
            set_durability(both, durability)
            load.await_more(3)
            made.begin("500")
            before = load.published
            if durability == "local":
                load.await_more(3)
            else:
                until(lambda: metric(both.exporter, "failing") == 1, SECONDS, "a failed upload")
                assert load.published <= before + 1
            made.end()
        load.stop()
        both.exporter.kill()
        shutil.rmtree(both.exporter.home)
        both.exporter.home.mkdir()
        both.exporter.start()
        assert read_all(run, load.published * ROWS) == list(range(load.published * ROWS))
    finally:
        load.stop()
        run.stop()
        both.end()


def set_durability(both: Connected, durability: str) -> None:
    more: dict[str, Any] = {"properties": {"kind": "trade"}, "durability": durability}
    both.declare(both.exporter, "export", again=True, **more)
    wanted = partial(has_durability, both.exporter, durability)
    until(wanted, SECONDS, f"an export that is {durability}")


def has_durability(agent: AgentProcess, durability: str) -> bool:
    return bool(agent.export_status()["durability"] == durability)


def read_all(run: Run, count: int) -> list[int]:
    """Read until there are so many rows."""
    found: list[int] = []

    def enough() -> bool:
        if (end := run.plan()) != run.at:
            found.extend(run.read(end))
        return len(found) >= count

    until(enough, SECONDS, f"{count} rows")
    return found
