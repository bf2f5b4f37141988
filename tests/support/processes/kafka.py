"""Kafka on one node, as in the benchmarks, and its own client in a JVM."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from subprocess import PIPE
from types import TracebackType
from typing import Any, Self

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway

from pe_agent.spark.local_session import ensure_java

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
MISSING = "needs Kafka and Spark's connector to it: make kafka-jars"
JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""For short runs: less processor time of a start."""
_TEXT = "org.apache.kafka.common.serialization.StringSerializer"
_TEXT_BACK = "org.apache.kafka.common.serialization.StringDeserializer"


def _benchmark(name: str) -> Any:
    """Import a module of the benchmarks; they import each other by their bare names."""
    if str(BENCHMARKS) not in sys.path:
        sys.path.append(str(BENCHMARKS))
    return importlib.import_module(name)


def are_fetched() -> bool:
    """Return whether all jars are there."""
    peer_jars = _benchmark("peer_jars")
    return all(jar.path.exists() for jar in peer_jars.locked() if jar.folder != "flink")


def connector() -> list[str]:
    """Return the jars that Spark needs."""
    jars: list[str] = _benchmark("peer_jars").jars("connector")
    return jars


class Kafka:
    """A node with topics of two partitions, whose messages are texts."""

    def __init__(self, place: Path) -> None:
        self._node = _benchmark("kafka_node").Kafka(place, jvm=JVM)
        self.servers: str = self._node.servers
        (py4j,) = Path(pyspark.__path__[0]).glob("jars/py4j-*.jar")
        java = str(ensure_java() / "bin" / "java")
        jars = os.pathsep.join([str(py4j), *_benchmark("peer_jars").jars("kafka")])
        command = [java, *JVM, "-cp", jars, "py4j.GatewayServer", "--die-on-broken-pipe"]
        self._process = subprocess.Popen(
            [*command, "--enable-auth", "0"], stdin=PIPE, stdout=PIPE, text=True
        )
        assert self._process.stdout is not None
        port, token = (self._process.stdout.readline().strip() for _ in range(2))
        self._gateway = JavaGateway(
            gateway_parameters=GatewayParameters(
                port=int(port), auth_token=token, auto_convert=True
            )
        )
        self._jvm: Any = self._gateway.jvm
        self._clients = self._jvm.org.apache.kafka.clients

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._gateway.shutdown()
        self._process.communicate()
        self._node.end()

    def make(self, topic: str) -> None:
        _benchmark("kafka_queries").topic(self._jvm, self.servers, make=topic, drop=None)

    def send(self, topic: str, values: Iterable[str]) -> None:
        """Send messages without keys, up to a mebibyte at once; wait until Kafka has them."""
        settings = {"bootstrap.servers": self.servers, "client.id": "tests"}
        settings |= {"linger.ms": "600000", "batch.size": str(1 << 20)}
        settings |= {"key.serializer": _TEXT, "value.serializer": _TEXT}
        producer = self._clients.producer.KafkaProducer(settings)
        for value in values:
            producer.send(self._clients.producer.ProducerRecord(topic, value))
        producer.close()

    def limit(self, bytes_per_second: float | None) -> None:
        """Let Kafka hold back each producer, or none."""
        quota, entity = self._jvm.org.apache.kafka.common.quota, {"client-id": None}
        change = quota.ClientQuotaAlteration(
            quota.ClientQuotaEntity(entity),
            [quota.ClientQuotaAlteration.Op("producer_byte_rate", bytes_per_second)],
        )
        admin = _benchmark("kafka_queries").admin_of(self._jvm, self.servers)
        admin.alterClientQuotas([change]).all().get()
        admin.close()

    def reader(self, topic: str) -> Reader:
        """Return a reader of a topic, from its start."""
        settings = {"bootstrap.servers": self.servers, "auto.offset.reset": "earliest"}
        settings |= {"key.deserializer": _TEXT_BACK, "value.deserializer": _TEXT_BACK}
        consumer = self._clients.consumer.KafkaConsumer(settings)
        partitions = [
            self._jvm.org.apache.kafka.common.TopicPartition(topic, number) for number in range(2)
        ]
        consumer.assign(partitions)
        return Reader(consumer, self._jvm.java.time.Duration.ofMillis(100))


class Reader:
    """Counts the messages of a topic by key.

    Attributes:
        keys: how often each key has been read.
    """

    def __init__(self, consumer: Any, wait: Any) -> None:
        self._consumer, self._wait = consumer, wait
        self.keys = Counter[str]()

    def read(self) -> Counter[str]:
        """Read what is there, for at most a tenth of a second if there is nothing; return keys."""
        self.keys.update(record.key() for record in self._consumer.poll(self._wait).iterator())
        return self.keys
