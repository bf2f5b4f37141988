"""Reading and publishing without Spark: a real broker, agents of the programs' own, real kills."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import streambroker as sb
from pe_agent.agent.process import read_address
from pe_agent.transport.broker_client import BrokerClient
from streambroker_client.errors import UnknownPortError
from streambroker_core.errors import SchemaError
from support.brokers.brokers import BrokerProcess
from support.processes.certificates import AGENT, Authority
from support.processes.ports import free_port
from support.processes.waiting import until

SECONDS = 90.0
SCHEMA = pa.schema([("n", pa.int64()), ("name", pa.string())])


def rows(first: int, count: int) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table({"n": list(numbers), "name": [f"row {n}" for n in numbers]}, schema=SCHEMA)


def numbers(reader: sb.Reader) -> list[int]:
    return [n for batch in reader for n in batch.column("n").to_pylist()]


def kill_agent(folder: Path, job: str) -> None:
    address = read_address(folder / "home" / job / "0")
    assert address is not None
    os.kill(address["pid"], signal.SIGKILL)


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerClient]:
    """A broker, the address of which is in the environment."""
    process = BrokerProcess(tmp_path / "broker.db", "--port", str(free_port()))
    url = process.url()
    monkeypatch.setenv("STREAMBROKER_URL", url)
    monkeypatch.setenv("STREAMBROKER_HOME", str(tmp_path / "home"))
    yield BrokerClient(url, "default")
    process.kill()


@pytest.fixture
def trades(broker: BrokerClient) -> Iterator[sb.Writer]:
    """An export with the property ``kind``."""
    with sb.writer("trades", SCHEMA, job="feed", properties={"kind": "trade"}, linger=0) as writer:
        yield writer


def items(broker: BrokerClient, kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = broker.request("GET", f"/{kind}").body["items"]
    return found


def test_rows_come_once_in_order_and_through_the_filter(trades: sb.Writer) -> None:
    for batch in range(3):
        assert trades.publish(batch, rows(10 * batch, 10))
    trades.finish()

    with sb.read("feed/0/trades", filter="n >= 5", start="earliest", stop_at_end=True) as reader:
        assert numbers(reader) == list(range(5, 30))
    with sb.read('kind == "trade"', columns=["name"], start="earliest", stop_at_end=True) as reader:
        assert next(reader).schema.names == ["name"]


def test_a_reader_without_a_position_holds_up_no_exporter_and_leaves_nothing(
    broker: BrokerClient, trades: sb.Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    trades.publish(0, rows(0, 10))
    with sb.read("feed/0/trades", start="earliest") as reader:
        next(reader)
        (spec,) = [one["spec"] for one in items(broker, "imports")]
        assert spec["onCongestion"] == "drop"
        assert spec["application"]["name"].startswith("reader-")
        assert list(temporary.iterdir())

    assert items(broker, "imports") == []
    assert list(temporary.iterdir()) == []


def test_only_the_named_export_is_read_although_another_has_the_same_properties(
    broker: BrokerClient, trades: sb.Writer
) -> None:
    trades.publish(0, rows(0, 10))
    trades.finish()
    with sb.writer("trades", SCHEMA, job="other", properties={"kind": "trade"}, linger=0) as other:
        other.publish(0, rows(100, 10))
        other.finish()
        with sb.read("feed/0/trades", start="earliest", stop_at_end=True) as reader:
            assert numbers(reader) == list(range(10))
        with sb.read('kind == "trade"', start="earliest", stop_at_end=True) as reader:
            assert sorted(numbers(reader)) == [*range(10), *range(100, 110)]


def test_an_export_with_a_stream_id_is_read_by_its_key(broker: BrokerClient) -> None:
    with sb.writer("out", SCHEMA, job="feed", stream_id="prices", linger=0) as writer:
        writer.publish(0, rows(0, 10))
        writer.finish()
        with sb.read("feed/0/out", start="earliest", stop_at_end=True) as reader:
            assert numbers(reader) == list(range(10))


def test_a_position_in_the_middle_of_a_batch_goes_on_there(trades: sb.Writer) -> None:
    position: dict[str, Any] = {}
    for batch in range(6):
        trades.publish(batch, rows(10 * batch, 10))
    trades.finish()
    read: list[int] = []
    for _ in range(6):
        with sb.read("feed/0/trades", job="sums", position=position, stop_at_end=True) as reader:
            read += next(reader).column("n").to_pylist()
            position = json.loads(json.dumps(reader.position))
    assert read == list(range(60))
    with sb.read("feed/0/trades", job="sums", position=position, stop_at_end=True) as reader:
        assert numbers(reader) == []


_READER = """
import json, sqlite3, sys
sys.modules["pyspark"] = None
import streambroker as sb

db = sqlite3.connect(sys.argv[1], isolation_level=None)
position = json.loads(db.execute("SELECT position FROM state").fetchone()[0])
with sb.read('kind == "trade"', job="sums", position=position, stop_at_end=True) as reader:
    for batch in reader:
        db.execute("BEGIN")
        db.executemany("INSERT INTO rows VALUES (?)", [(n,) for n in batch.column("n").to_pylist()])
        db.execute("UPDATE state SET position = ?", (json.dumps(reader.position),))
        db.execute("COMMIT")
        print("batch", flush=True)
print("end", flush=True)
"""

_WRITER = """
import sqlite3, sys
sys.modules["pyspark"] = None
import pyarrow as pa
import streambroker as sb

db = sqlite3.connect(sys.argv[1], isolation_level=None)
schema = pa.schema([("n", pa.int64()), ("name", pa.string())])
first = db.execute("SELECT position FROM state").fetchone()[0]
with sb.writer("trades", schema, job="feed", properties={"kind": "trade"}) as out:
    for batch in range(int(first), 60):
        sys.stdin.readline()
        rows = {"n": range(100 * batch, 100 * batch + 100), "name": ["x" * 50] * 100}
        out.publish(batch, pa.table({k: list(v) for k, v in rows.items()}, schema=schema))
        print("batch", flush=True)
        db.execute("UPDATE state SET position = ?", (str(batch + 1),))
    out.finish()
    print("end", flush=True)
    sys.stdin.read()
"""
ROUNDS, SENT, SEEN, READ = 4, 10, 7, 4
"""The writer publishes a batch for each line, and is killed while it publishes the last ones."""


class Program:
    """A program that is killed and started again, with its progress in a database."""

    def __init__(self, script: str, database: Path, first: str) -> None:
        self.database = database
        with closing(sqlite3.connect(database)) as db, db:
            db.execute("CREATE TABLE state (position TEXT)")
            db.execute("CREATE TABLE rows (n INTEGER)")
            db.execute("INSERT INTO state VALUES (?)", (first,))
        self._command = [sys.executable, "-c", script, str(database)]
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def send(self, lines: int) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write("\n" * lines)
        self.process.stdin.flush()

    def lines(self, count: int) -> list[str]:
        """Return that many lines, fewer after the last one, ``end``."""
        assert self.process is not None
        assert self.process.stdout is not None
        found: list[str] = []
        for line in self.process.stdout:
            found.append(line.strip())
            if len(found) == count or found[-1] == "end":
                break
        return found

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def rows(self) -> Counter[int]:
        with closing(sqlite3.connect(self.database)) as db:
            return Counter(n for (n,) in db.execute("SELECT n FROM rows"))


def test_each_row_comes_once_although_reader_and_writer_are_killed(
    broker: BrokerClient, tmp_path: Path
) -> None:
    writer = Program(_WRITER, tmp_path / "writer.db", "0")
    reader = Program(_READER, tmp_path / "reader.db", "{}")
    try:
        for _ in range(ROUNDS):
            writer.start()
            writer.send(SENT)
            writer.lines(SEEN)
            reader.start()
            assert reader.lines(READ) == ["batch"] * READ
            writer.kill()
            reader.kill()
        writer.start()
        writer.send(60)
        assert writer.lines(100)[-1] == "end"
        reader.start()
        assert reader.lines(100)[-1] == "end"
    finally:
        writer.kill()
        reader.kill()
    assert reader.rows() == Counter(range(6000))


def test_a_batch_is_published_once(trades: sb.Writer) -> None:
    assert trades.publish(0, rows(0, 10))
    assert not trades.publish(0, rows(0, 10))
    with pytest.raises(sb.StreambrokerError, match="batch 0 was published") as caught:
        trades.publish(0, rows(0, 9))
    assert caught.value.code == "BatchDiffers"
    assert trades.publish(1, rows(0, 0)), "a batch without rows is an epoch, too"
    assert trades.publish(3, rows(10, 10).to_batches(3))
    trades.finish()
    with sb.read("feed/0/trades", start="earliest", stop_at_end=True) as reader:
        assert numbers(reader) == list(range(20))


def test_the_declared_form_of_columns_is_sent(broker: BrokerClient) -> None:
    given = pa.schema([("u", pa.uint32()), ("t", pa.timestamp("ns")), ("w", pa.large_string())])
    with sb.writer("out", given, job="feed", properties={}, linger=0) as writer:
        table = pa.table({"w": ["a"], "t": [1_000], "u": [7]}, schema=pa.schema(reversed(given)))
        writer.publish(0, table)
        writer.finish()
        (export,) = until(lambda: items(broker, "exports"), SECONDS, "the export")
        assert [one["type"] for one in export["spec"]["schema"]] == [
            "bigint", "timestamp_ntz", "string"
        ]  # fmt: skip
        with pytest.raises(SchemaError, match="no column 'u'"):
            writer.publish(1, table.drop_columns("u"))
        with pytest.raises(SchemaError, match="do not fit export out"):
            writer.publish(1, table.set_column(2, "u", pa.array(["x"])))


def test_a_reader_goes_on_when_its_agent_was_killed(trades: sb.Writer, tmp_path: Path) -> None:
    trades.publish(0, rows(0, 10))
    with sb.read("feed/0/trades", job="sums", position={}) as reader:
        next(reader)
        kill_agent(tmp_path, "sums")
        trades.publish(1, rows(10, 10))
        assert next(reader).column("n").to_pylist() == list(range(10, 20))


def test_wrong_arguments_are_refused_before_anything_starts(broker: BrokerClient) -> None:
    with pytest.raises(sb.ArgumentError, match="give job= as well"):
        sb.read('kind == "trade"', position={})
    with pytest.raises(sb.ArgumentError, match=r"Reader\.position"):
        sb.read('kind == "trade"', job="sums", position={"v": 99})
    with pytest.raises(sb.StreambrokerError, match="Invalid subscription") as caught:
        sb.read("kind = 3")
    assert caught.value.code == "SubscriptionInvalid"
    with pytest.raises(UnknownPortError, match="there is no export default/nosuch/0/out"):
        sb.read("nosuch/0/out")
    with pytest.raises(SchemaError, match="column 'd' has the Arrow type duration"):
        sb.writer("out", pa.schema([("d", pa.duration("s"))]), job="feed")
    with pytest.raises(TypeError, match="Did you mean 'properties'"):
        sb.writer("out", SCHEMA, job="feed", propertes={})  # type: ignore[call-arg]
    assert items(broker, "imports") == []


def test_a_wrong_batch_number_or_column_is_refused(trades: sb.Writer) -> None:
    for wrong in (-1, True, "0", 1.5):
        with pytest.raises(sb.ArgumentError, match="batch is"):
            trades.publish(wrong, rows(0, 1))  # type: ignore[arg-type]
    trades.publish(0, rows(0, 1))
    with sb.read("feed/0/trades", columns=["n", "nosuch"]) as reader:
        for _ in range(2):  # the second call does not look like the end of the stream
            with pytest.raises(sb.ArgumentError, match="'nosuch' is not in the schema; it has n"):
                next(reader)


@pytest.mark.usefixtures("broker")
def test_rows_are_served_after_the_writer_was_closed(tmp_path: Path) -> None:
    with sb.writer("trades", SCHEMA, job="feed", properties={"kind": "trade"}) as writer:
        writer.publish(0, rows(0, 10))
        writer.finish()
    with sb.read("feed/0/trades", start="earliest", stop_at_end=True) as reader:
        assert numbers(reader) == list(range(10))
    kill_agent(tmp_path, "feed")


@pytest.mark.usefixtures("broker")
def test_agents_with_certificates_are_called_with_the_programs_own(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "tls", "agents", AGENT)
    tls = sb.AgentTls(
        certificate=authority.certificate, key=authority.key, ca=authority.ca, clients="required"
    )
    agent = sb.AgentOptions(tls=tls)
    with sb.writer("trades", SCHEMA, job="feed", stream_id="t", linger=0, agent=agent) as writer:
        writer.publish(0, rows(0, 10))
        writer.finish()
        with sb.read("feed/0/trades", start="earliest", stop_at_end=True, agent=agent) as reader:
            assert numbers(reader) == list(range(10))
