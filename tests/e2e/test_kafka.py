"""The programs of docs/how-to/kafka.md with a real Kafka; both jobs are killed amid a batch."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pe_agent.spark.local_session import ensure_java, ensure_spark_home
from support.cuts.points import VARIABLE, Cut
from support.processes import kafka, pages
from support.processes.jobs import Broker, Child, end_agent
from support.processes.kafka import Kafka, Reader
from support.processes.waiting import until
from support.spark.checkpoints import committed, planned

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
SECONDS = 240.0
"""How long a step may take on a busy machine."""
LAST_STEP = "publish answered, before the commit log"
SLOW = 1_000.0
"""Bytes per second that Kafka takes, so that it takes a minute and more for the killed batch."""
FIRST, KILLED, LATER = range(200), range(200, 3_200), range(3_200, 3_300)
WORDS = {"orders": 'job="orders"', "large-orders": 'job="large-orders"', "totals": '"totals"'}


def order(number: int) -> str:
    """Return an order so long that a producer does not have the whole batch under way at once."""
    return json.dumps({"id": number, "country": "NL" * 100, "amount": amount(number)})


def amount(number: int) -> float:
    return number * 7 % 200 + 0.5


def large(numbers: range) -> set[str]:
    return {str(number) for number in numbers if amount(number) > 100.0}


class Recipe:
    """The jobs of the page."""

    def __init__(self, folder: Path, broker: str, servers: str) -> None:
        self.folder, self.data = folder, folder / "data"
        self.data.mkdir()
        places = {
            "/data": str(self.data),
            "http://127.0.0.1:8470": broker,
            "127.0.0.1:9092": servers,
        }
        for name, words in WORDS.items():
            (folder / f"{name}.py").write_text(pages.code("kafka", words, places))
        self._started: list[Child] = []

    def start(self, name: str) -> Child:
        job = Child([str(self.folder / f"{name}.py")], self.folder / f"{name}.out", "")
        self._started.append(job)
        return job

    def checkpoint(self, name: str) -> Path:
        return self.data / f"{name}-checkpoint"

    def totals(self) -> list[str]:
        """Run the program that drops duplicates; return the keys that it has kept."""
        job = self.start("totals")
        assert job.process.wait(SECONDS) == 0, job.said()[-3000:]
        keys: list[str] = pq.read_table(self.data / "totals")["id"].to_pylist()
        return keys

    def end(self) -> None:
        for job in self._started:
            job.end()
        for name in ("orders", "large-orders"):
            end_agent(self.data / name)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Kafka]:
    if not kafka.are_fetched():
        pytest.skip(kafka.MISSING)
    with Kafka(tmp_path) as node:
        node.make("orders")
        node.make("large-orders")
        yield node


@pytest.fixture
def recipe(tmp_path: Path, node: Kafka, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recipe]:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cuts"))
    monkeypatch.setenv("JAVA_HOME", str(ensure_java()))
    monkeypatch.setenv("SPARK_HOME", str(ensure_spark_home()))
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", pages.submit_arguments(kafka.connector()))
    broker = Broker(tmp_path)
    recipe = Recipe(tmp_path, broker.url, node.servers)
    yield recipe
    recipe.end()
    broker.end()


def await_orders(reader: Reader, numbers: range) -> None:
    wanted = large(numbers)
    until(lambda: wanted <= reader.read().keys(), SECONDS, f"{len(wanted)} orders in Kafka")


def test_a_killed_job_loses_no_row_and_repeats_only_its_last_batch(
    recipe: Recipe, node: Kafka
) -> None:
    reader = node.reader("large-orders")
    node.send("orders", map(order, FIRST))
    orders, importing = recipe.start("orders"), recipe.start("large-orders")
    await_orders(reader, FIRST)
    checkpoint = recipe.checkpoint("large-orders")
    until(lambda: 0 <= planned(checkpoint) == committed(checkpoint), SECONDS, "a commit")

    node.limit(SLOW)
    cut = Cut(recipe.folder / "cuts", LAST_STEP, 1)
    node.send("orders", map(order, KILLED))
    until(cut.reached, SECONDS, "the first job before its commit")
    orders.kill()
    cut.disarm()
    until(lambda: len(reader.read()) > len(large(FIRST)), SECONDS, "a part of the batch")
    importing.kill()
    assert committed(checkpoint) < planned(checkpoint)

    node.limit(None)
    node.send("orders", map(order, LATER))
    recipe.start("orders")
    recipe.start("large-orders")
    await_orders(reader, range(LATER.stop))

    assert reader.keys.keys() == large(range(LATER.stop))
    assert times(reader, FIRST) == times(reader, LATER) == {1}
    assert times(reader, KILLED) == {1, 2}  # three if the first job published its batch twice
    assert Counter(recipe.totals()) == Counter(large(range(LATER.stop)))


def times(reader: Reader, numbers: range) -> set[int]:
    """Return how often large orders are in Kafka: each number that occurs."""
    return {reader.keys[key] for key in large(numbers)}
