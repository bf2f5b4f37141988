"""The last rows of an export, through a real broker from a real agent."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pe_agent.agent.exports import peek
from pe_agent.transport.broker_client import BrokerClient
from streambroker_client.errors import BrokerRefusedError
from streambroker_operator.cli.app import main
from support.agents.agents import AgentProcess, Publishing, rows
from support.brokers.brokers import EXPORT, BrokerProcess
from support.processes.ports import free_port
from support.processes.waiting import until

SECONDS = 60.0
TRADES = "/job/feed/pe/0/export/trades"
EPOCHS, ROWS = 5, 100


class Feed:
    """A broker, and the agent of an export with rows 0 to 499."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.broker = BrokerProcess(folder / "broker.db", "--port", str(port))
        self.agent = AgentProcess(folder / "feed", "feed", broker=self.url)
        assert self.broker.url() == self.url
        BrokerClient(self.url, "default").request("PUT", TRADES, EXPORT)
        self.agent.start()
        until(lambda: self.agent.status()["exports"], SECONDS, "the export at its agent")
        self.publisher = Publishing(self.agent)
        for epoch in range(EPOCHS):
            self.publisher.publish(epoch, rows(ROWS * epoch, ROWS))

    def rows(self, **query: str) -> dict[str, Any]:
        client = BrokerClient(self.url, "default")
        answer: dict[str, Any] = client.request(
            "GET", f"{TRADES}/rows", query=query, timeout=SECONDS
        ).body
        return answer

    def close(self) -> None:
        self.agent.kill()
        self.broker.kill()


@pytest.fixture
def feed(tmp_path: Path) -> Iterator[Feed]:
    made = Feed(tmp_path)
    yield made
    made.close()


def test_the_last_rows_come_in_the_order_of_their_publishing(feed: Feed) -> None:
    found = feed.rows(limit="150")
    assert [one["name"] for one in found["columns"]] == ["n", "name"]
    assert [row[0] for row in found["rows"]] == list(range(350, 500))
    assert found["rows"][-1] == [499, "row 499"]
    assert found["truncated"]
    assert not feed.rows(limit="1000")["truncated"]


def test_filter_and_columns_apply_before_the_limit(feed: Feed) -> None:
    found = feed.rows(filter="n < 120", columns="name", limit="3")
    assert found["rows"] == [["row 117"], ["row 118"], ["row 119"]]


def test_only_what_was_published_since_comes_after_a_position(feed: Feed) -> None:
    before = feed.rows()
    assert feed.rows(after=before["position"])["rows"] == []
    feed.publisher.publish(EPOCHS, rows(ROWS * EPOCHS, 2))
    found = feed.rows(after=before["position"])
    assert [row[0] for row in found["rows"]] == [500, 501]
    assert found["position"] != before["position"]


def test_a_look_is_no_reader_and_counts_nothing(feed: Feed) -> None:
    before = feed.agent.status()["exports"]["default/feed/0/trades"]
    feed.rows(limit="1000")
    after = feed.agent.status()["exports"]["default/feed/0/trades"]
    assert after["readers"] == {} == before["readers"]
    assert after["held"] == before["held"]


@pytest.mark.parametrize(
    ("query", "code", "says"),
    [
        ({"filter": "n <"}, "FilterInvalid", "Expected"),
        ({"filter": "price > 1"}, "SchemaMismatch", "price"),
        ({"columns": "price"}, "SchemaMismatch", "no column 'price'"),
        ({"limit": "1001"}, "QueryInvalid", "from 1 to 1000"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(
    feed: Feed, query: dict[str, str], code: str, says: str
) -> None:
    with pytest.raises(BrokerRefusedError) as refused:
        feed.rows(**query)
    assert refused.value.code == code
    assert says.lower() in str(refused.value).lower()


def test_a_few_rows_of_a_large_block_come_whole(feed: Feed) -> None:
    numbers = list(range(1000, 6000))
    wide = pa.RecordBatch.from_pydict(
        {"n": numbers, "name": ["x" * 400] * len(numbers)}, schema=rows(0, 1).schema
    )
    feed.publisher.publish(EPOCHS, wide)

    assert [row[0] for row in feed.rows(limit="20")["rows"]] == numbers[-20:]


def test_rows_beyond_a_megabyte_are_left_out_the_newest_stay(feed: Feed) -> None:
    wide = pa.RecordBatch.from_pydict(
        {"n": list(range(1000, 1020)), "name": [str(n) * 20_000 for n in range(1000, 1020)]},
        schema=rows(0, 1).schema,
    )
    feed.publisher.publish(EPOCHS, wide)
    found = feed.rows(limit="20")
    kept = [row[0] for row in found["rows"]]
    assert found["truncated"]
    assert kept == list(range(1020 - len(kept), 1020))
    assert 200_000 < sum(len(row[1]) for row in found["rows"]) < peek.MAX_BYTES


def test_the_command_prints_rows_as_table_json_csv_and_arrow(
    feed: Feed, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMBROKER_URL", feed.url)

    def run(*arguments: str) -> bytes:
        assert main(["peek", "feed/0/trades", "--filter", "n < 3", "--rows", "2", *arguments]) == 0
        return capfdbinary.readouterr().out

    assert run().decode().splitlines() == ["n  name", "1  row 1", "2  row 2"]
    lines = run("-o", "json").decode().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"n": 1, "name": "row 1"},
        {"n": 2, "name": "row 2"},
    ]
    assert run("-o", "csv", "--columns", "name").decode() == "name\nrow 1\nrow 2\n"
    table = pa.ipc.open_stream(io.BytesIO(run("-o", "arrow"))).read_all()
    assert table.to_pydict() == {"n": [1, 2], "name": ["row 1", "row 2"]}


def test_values_that_json_lacks_become_text() -> None:
    moment = datetime(2026, 1, 31, 12, tzinfo=UTC)
    values = [2**53 + 1, float("nan"), Decimal("1.10"), moment, b"\x00\xff", {"a": [b"\x01"]}, None]
    assert [peek._plain(one) for one in values] == [
        "9007199254740993", "nan", "1.10", "2026-01-31T12:00:00+00:00", "00ff", {"a": ["01"]}, None,
    ]  # fmt: skip


def test_versions_of_the_columns_are_listed_and_rows_before_have_nulls(
    feed: Feed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STREAMBROKER_URL", feed.url)
    before = rows(500, 1)
    more = before.append_column("more", pa.array(["a"]))
    feed.publisher.ddl = "`n` bigint, `name` string, `more` string"
    feed.publisher.publish(EPOCHS, more)

    found = feed.rows(limit="2")
    assert found["rows"] == [[499, "row 499", None], [500, "row 500", "a"]]
    assert [one["version"] for one in found["schemaVersions"]] == [1, 2]
    assert main(["schema", "feed/0/trades", "-o", "versions"]) == 0
    _, first, second = capsys.readouterr().out.splitlines()
    assert first.split()[:3] == ["1", "0", "-"]
    assert second.split()[:2] == ["2", str(EPOCHS)]
    assert second.endswith("n bigint, name string, more string")
