"""A Kafka of one node, its own controller, on the loopback: the peer of broker and agents.

Run as a program it formats a directory and becomes Kafka's JVM.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import peer_jars
from processes import Child, until

from pe_agent.spark.local_session import ensure_java

JVM = [
    "-Xms1g",
    "-Xmx1g",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
]
"""What Kafka's own start script sets."""
CLUSTER = "c3RyZWFtYnJva2VyLWJuYw"


def properties(place: Path, port: int, control: int) -> str:
    """Return the node's settings: those of Kafka's example for one node, and a place to be."""
    settings = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{control}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{control}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "num.network.threads": 3,
        "num.io.threads": 8,
        "socket.send.buffer.bytes": 102400,
        "socket.receive.buffer.bytes": 102400,
        "log.dirs": place / "log",
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "auto.create.topics.enable": "false",
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback that nobody has now."""
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


class Kafka(Child):
    """The node, ready once its port answers."""

    def __init__(self, place: Path, jvm: Sequence[str] = JVM) -> None:
        peer_jars.jars("kafka")
        home = place / "kafka"
        home.mkdir()
        port, control = free_ports(2)
        self.servers = f"127.0.0.1:{port}"
        settings = home / "server.properties"
        settings.write_text(properties(home, port, control))
        command = [sys.executable, "-m", "kafka_node", str(settings), *jvm]
        super().__init__(command, place / "kafka.log")
        try:
            until(lambda: self._answers(port), "Kafka")
        except BaseException:
            self.end()
            raise

    def _answers(self, port: int) -> bool:
        if self.process.poll() is not None:
            raise RuntimeError(f"Kafka ended: {self._log.read_text()[-3000:]}")
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0


def main() -> None:
    """Format the directory and become Kafka."""
    os.dup2(2, 1)  # what Kafka says is for the log
    settings, *jvm = sys.argv[1:]
    java = str(ensure_java() / "bin" / "java")
    where = ["-cp", os.pathsep.join(peer_jars.jars("kafka"))]
    format_ = ["kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", settings]
    subprocess.run([java, *jvm, *where, *format_], check=True)
    os.execv(java, [java, *jvm, *where, "kafka.Kafka", settings])


if __name__ == "__main__":
    main()
