"""What a job does wrong, or its surroundings: a clear error with a remedy, and nothing is lost."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import SparkSession

import streambroker as sb
from pe_agent.job.agent.agent_process import AgentFailedError
from pe_agent.job.arguments import ArgumentError
from streambroker_client.errors import BrokerRefusedError, BrokerUnavailableError
from streambroker_core.errors import FilterError, PropertyError, SubscriptionError
from support.processes.jobs import Broker
from support.processes.waiting import until
from support.spark.feeds import Feed
from support.spark.session import SECONDS, Session, exporter_status

SCHEMA = "line bigint, price double, name string"


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    return Feed(tmp_path / "feed", rows_per_file=20)


def test_an_import_that_nobody_declared_fails_the_query_and_says_how_to_declare_it(
    jobs: Session,
) -> None:
    pe = jobs.pe("alerts")
    until(pe.view, SECONDS, "a view")
    frame = (
        jobs.spark.readStream.format("streambroker")
        .option("import", "nowhere")
        .option("agent", pe.agent.location)
        .option("agentToken", pe.agent.token)
        .schema(SCHEMA)
        .load()
    )
    query, _ = jobs.collect(frame, "nowhere")

    with pytest.raises(StreamingQueryException, match=r"nowhere does not exist.*subscribe\(\)"):
        query.awaitTermination(int(SECONDS))


def test_an_export_that_nobody_declared_fails_the_query_and_says_how_to_declare_it(
    jobs: Session, feed: Feed
) -> None:
    pe = jobs.pe("feed")
    feed.release()
    query = (
        jobs.files(feed)
        .writeStream.format("streambroker")
        .option("export", "nowhere")
        .option("agent", pe.agent.location)
        .option("agentToken", pe.agent.token)
        .option("checkpointLocation", str(jobs.folder / "ck"))
        .start()
    )
    jobs.queries.append(query)

    with pytest.raises(StreamingQueryException, match=r"nowhere does not exist.*publish\(\)"):
        query.awaitTermination(int(SECONDS))


def test_a_second_query_may_not_publish_while_the_first_is_alive(
    jobs: Session, feed: Feed, tmp_path: Path
) -> None:
    pe = jobs.pe("feed")
    feed.release()
    jobs.publish(pe, feed, "out", properties={"kind": "a"})
    until(lambda: exporter_status(pe, "out")["publisher"]["batch"] == 0, SECONDS, "batch 0")
    other = Feed(tmp_path / "other", rows_per_file=20)
    other.release()
    second = jobs.publish(pe, other, "out", checkpoint=jobs.folder / "ck-second")

    with pytest.raises(StreamingQueryException, match="is in use by query"):
        second.awaitTermination(int(SECONDS))
    (stream,) = exporter_status(pe, "out")["streams"].values()
    assert stream["rows"] == 20


def test_a_filter_that_fits_no_connected_export_is_refused_and_the_old_one_stays(
    jobs: Session, feed: Feed
) -> None:
    exporter, importer = jobs.pe("feed"), jobs.pe("alerts")
    jobs.publish(exporter, feed, "out", properties={"kind": "a"})
    until(lambda: (exporter.view() or {}).get("exports"), SECONDS, "the export")
    importer.subscribe("in", 'kind == "a"', filter="price > 1.0", schema=SCHEMA)
    port = importer.imports["in"]
    until(lambda: port.routes, SECONDS, "a route")

    with pytest.raises(BrokerRefusedError) as refused:
        port.set_filter("prize > 2.0")

    assert refused.value.code == "FilterInvalid"
    assert "price" in str(refused.value)
    assert port.filter == "price > 1.0"


def test_texts_that_cannot_be_read_are_refused_before_anything_is_declared(jobs: Session) -> None:
    pe = jobs.pe("alerts")
    with pytest.raises(SubscriptionError, match="line 1, column"):
        pe.subscribe("in", "kind = 1", schema=SCHEMA)
    with pytest.raises(FilterError, match="line 1, column"):
        pe.subscribe("in", 'kind == "a"', filter="price >", schema=SCHEMA)
    with pytest.raises(ArgumentError, match="exclude each other"):
        pe.subscribe("in", 'kind == "a"', stream_id="x", schema=SCHEMA)
    with pytest.raises(ArgumentError, match="not in the schema"):
        pe.subscribe("in", 'kind == "a"', schema=SCHEMA, columns=["prize"])

    assert pe.status()["declarations"] == {}


def test_properties_that_cannot_be_kept_are_refused_before_anything_is_declared(
    jobs: Session, feed: Feed
) -> None:
    pe = jobs.pe("feed")
    with pytest.raises(PropertyError, match="kind"):
        jobs.publish(pe, feed, "out", properties={"kind": float("nan")})
    with pytest.raises(ArgumentError, match="exclude each other"):
        jobs.publish(pe, feed, "out", properties={"kind": "a"}, stream_id="x")

    assert pe.status()["declarations"] == {}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"import": "in", "agent": "grpc+tcp://127.0.0.1:9", "pricee": "1"}, "unknown option"),
        ({"agent": "grpc+tcp://127.0.0.1:9"}, "option `import` is missing"),
        ({"import": "in"}, "no agent is configured"),
        (
            {"import": "in", "agent": "grpc+tcp://127.0.0.1:9", "maxBytesPerBatch": "x"},
            "has to be a number above 0",
        ),
    ],
)
def test_options_are_checked_when_the_stream_is_loaded(
    session: SparkSession, tmp_path: Path, settings: dict[str, str], message: str
) -> None:
    from pe_agent.datasource import StreambrokerDataSource

    session.dataSource.register(StreambrokerDataSource)
    reader = session.readStream.format("streambroker").options(**settings)

    with pytest.raises(PySparkException, match=message):
        reader.schema(SCHEMA).load().writeStream.format("noop").option(
            "checkpointLocation", str(tmp_path / "ck")
        ).start().awaitTermination(int(SECONDS))


def test_reserved_columns_and_batch_writes_are_refused(jobs: Session, feed: Feed) -> None:
    pe = jobs.pe("feed")
    feed.release()
    reserved = jobs.files(feed).withColumnRenamed("line", "_seq")
    query = pe.publish(reserved, "out", properties={"kind": "a"}, checkpoint=jobs.folder / "ck")
    jobs.queries.append(query)
    with pytest.raises(StreamingQueryException, match="'_seq' has a reserved name"):
        query.awaitTermination(int(SECONDS))

    batch = jobs.spark.createDataFrame([(1,)], "line bigint").write.format("streambroker")
    with pytest.raises((AnalysisException, PySparkException), match="writes streams only"):
        batch.options(export="out", agent=pe.agent.location).mode("append").save()


def test_an_export_whose_schema_changes_opens_a_new_stream_and_tells_importers_it_does_not_fit(
    jobs: Session, feed: Feed
) -> None:
    exporter, importer = jobs.pe("feed"), jobs.pe("alerts")
    first = jobs.publish(exporter, feed, "out", properties={"kind": "a"}, schema_policy="none")
    frame = importer.subscribe("in", 'kind == "a"', start="earliest", schema=SCHEMA)
    _, sink = jobs.collect(frame, "in")
    feed.release()
    sink.await_rows(20)
    first.stop()
    narrow = jobs.files(feed).drop("price")
    jobs.queries.append(exporter.publish(narrow, "out", checkpoint=jobs.folder / "ck-feed-out"))
    feed.release()
    until(lambda: len(exporter_status(exporter, "out")["streams"]) == 2, SECONDS, "a new stream")

    def reported() -> list[dict[str, str]]:
        view = importer.view()
        return [] if view is None else list(view["imports"]["in"]["refused"])

    (refused,) = until(reported, SECONDS, "the importer hears what does not fit")
    assert refused["export"] == "default/feed/0/out"
    assert refused["reason"] == "SchemaMismatch"
    assert "price" in refused["message"]
    assert importer.imports["in"].routes == []
    assert sum(sink.rows.values()) == 20


def test_without_a_broker_jobs_start_declare_later_and_setters_say_so(
    jobs: Session, feed: Feed, broker: Broker
) -> None:
    broker.kill()
    exporter, importer = jobs.pe("feed"), jobs.pe("alerts")
    jobs.publish(exporter, feed, "out", properties={"kind": "a"})
    frame = importer.subscribe("in", 'kind == "a"', start="earliest", schema=SCHEMA)
    _, sink = jobs.collect(frame, "in")
    feed.release()
    until(lambda: exporter_status(exporter, "out")["publisher"]["batch"] == 0, SECONDS, "batch 0")
    with pytest.raises(BrokerUnavailableError, match="does not answer"):
        importer.imports["in"].set_filter("price > 1.0")
    assert importer.imports["in"].routes == []

    again = broker.restart()
    try:
        sink.await_rows(20)
        again.kill()
        feed.release()
        sink.await_rows(40)
        assert len(importer.imports["in"].routes) == 1
    finally:
        again.end()


def test_an_agent_whose_port_is_taken_does_not_start_and_says_what_to_do(jobs: Session) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(AgentFailedError, match=r"AddressInUse.*another `port`"):
            jobs.pe("feed", agent=sb.AgentOptions(port=taken.getsockname()[1]))
