"""Rules on streams: what fails, what is told, traffic while rules change, SQL, and refusals."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from new_factor import SetFactor
from pyspark.sql import SparkSession

import streambroker as sb
from pe_agent.cep.discovery.discoverer import Wanted
from streambroker.operators import AlignedError, ControlFile, OperatorOptions, Stream
from streambroker.patterns import (
    DirectoryDiscoverer,
    DiscoveryError,
    MatchFunction,
    Pattern,
    PatternProcessor,
    PatternStream,
    sql,
)
from streambroker_core.cep.rules.rule_set import RuleSet
from streambroker_core.wire.reports.rule_metrics import WatermarkWait
from support.aligned.spark import SHUFFLE
from support.patterns.spark import DDL, Given, Play, letters
from support.patterns.ticker import PRICES, TICKER
from support.processes.waiting import until

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def rule(name: str, word: str, version: int = 1, **fields: Any) -> dict[str, Any]:
    stages = [{"name": one, "where": f'n == "{one}"'} for one in word]
    for stage in stages[1:]:
        stage["join"] = "followed_by"
    return {"id": name, "version": version, "pattern": {"stages": stages}, **fields}


def rows(window: int, *events: str) -> list[dict[str, Any]]:
    """Return rows ``user letter``, and one of somebody else whose time lets theirs pass."""
    times = (BEGIN + timedelta(seconds=100 * window + place) for place in range(100))
    given = [(*reversed(event.split()), "i") for event in events]
    made = [{"t": next(times), "n": n, "user": user, "item": item} for n, user, item in given]
    last = BEGIN + timedelta(seconds=100 * window + 99)
    return [*made, {"t": last, "n": "", "user": "end", "item": ""}]


def dynamic(control: Path, **settings: Any) -> Callable[[Stream, Sequence[Any]], PatternStream]:
    options = OperatorOptions(buckets=settings.pop("buckets", 4))
    delay = settings.pop("delay", "0 seconds")

    def make(stream: Stream, first: Sequence[Any]) -> PatternStream:
        timed = stream if delay is None else stream.with_watermark("t", delay)
        return timed.match_rules(
            Given(first), control_file=control, key="user", options=options, **settings
        )

    return make


def fails_on_x(row: Mapping[str, Any], run: Any) -> bool:
    del run
    if row["n"] == "X":
        raise ValueError("X is not to be asked for")
    return bool(row["n"] == "A")


def alert(found: Any) -> dict[str, Any]:
    return {"user": found.key[0], "letters": len(found.events)}


FUNCTIONS: dict[str, Any] = {
    "fails_on_x": fails_on_x,
    "alert": MatchFunction(
        schema=pa.schema([("user", pa.string()), ("letters", pa.int64())]), matched=alert
    ),
}


@pytest.mark.slow
def test_a_rule_that_fails_is_off_in_all_buckets_from_the_next_window_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    """D-12, functions for matches, time-outs, late rows, figures, and what is enabled again."""
    stages = [{"name": "A", "where": {"function": "fails_on_x"}}]
    bad = rule("bad", "A", onError="disable", pattern={"stages": stages})
    good = rule("good", "AC", function="alert")
    slow = rule("slow", "AZ")
    slow["pattern"]["within"] = "10s"
    played = Play(spark, tmp_path, dynamic(tmp_path / "rules", functions=FUNCTIONS))
    played.start([bad, good, slow])
    assert played.made is not None
    processors = played.made.rules
    played.rows(rows(0, "u A", "u X", "v A"))
    assert [one.id for one in processors.current_pattern_processors()] == ["good", "slow"]
    over = [(row["rule"], row["key"]["user"], letters(row)) for row in played.output("timeouts")]
    assert sorted(over) == [("slow", "u", "A"), ("slow", "v", "A")]
    played.rows(rows(1, *(f"{user} X" for user in "uvwxyz"), "u C"))
    played.rows(rows(0, "late A"))
    assert [(one["rule"], one["version"]) for one in played.output("errors")] == [("bad", 1)]
    assert "ValueError: X is not to be asked for" in played.output("errors")[0]["problem"]
    assert played.output("alert") == [{"rule": "good", "version": 1, "user": "u", "letters": 2}]
    assert [row["user"] for row in played.output("late")] == ["late", "end"]
    processors.enable("bad")
    played.rows(rows(2, "u A"))
    assert [row["rule"] for row in played.output()][-1] == "bad"
    figures = {one.rule: one for one in processors.metrics()}
    assert (figures["good"].matches, figures["good"].alive) == (1, 2)
    assert figures["good"].tested > 0
    assert figures["good"].nanoseconds > 0
    played.stop()


class Shop:
    """Rules that can be out of reach."""

    def __init__(self, rules: Sequence[Any]) -> None:
        self.rules, self.away = rules, False

    def create(self) -> DirectoryDiscoverer:
        return _OfShop(self)


class _OfShop(DirectoryDiscoverer):
    def __init__(self, shop: Shop) -> None:
        super().__init__("/", interval=0.1)
        self._shop = shop

    def check_pattern_processor_update(self) -> bool:
        return True

    def latest_pattern_processors(self) -> Wanted:
        if self._shop.away:
            raise DiscoveryError("the shop is closed")
        return self._shop.rules


@pytest.mark.slow
def test_how_many_rows_wait_for_the_watermark_is_reported(
    spark: SparkSession, tmp_path: Path
) -> None:
    played = Play(spark, tmp_path, dynamic(tmp_path / "rules", delay="30 seconds"))
    played.start([rule("r", "AC")])
    assert played.made is not None
    processors = played.made.rules
    output = partial(WatermarkWait, operator="patterns", log="log")
    assert processors.waiting("patterns", "log") == output()
    played.rows(rows(0, "u A", "u C"))
    last = int((BEGIN + timedelta(seconds=99)).timestamp() * 1_000_000)
    waiting = output(rows=1, first=last, watermark=last - 30_000_000)
    assert processors.waiting("patterns", "log") == waiting
    played.rows(rows(1, "u A"))
    waiting = output(rows=1, first=last + 100_000_000, watermark=last + 70_000_000)
    assert processors.waiting("patterns", "log") == waiting
    played.stop()


@pytest.mark.slow
def test_rules_stay_while_their_source_is_away_also_over_a_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    """D-17."""
    shop = Shop([rule("r", "AC")])

    def make(stream: Stream, first: Sequence[Any]) -> PatternStream:
        del first
        return stream.with_watermark("t", "0 seconds").match_rules(
            shop,
            control_file=tmp_path / "rules",
            key="user",
            options=OperatorOptions(buckets=2),
        )

    shop.away = True
    played = Play(spark, tmp_path, make)
    with pytest.raises(DiscoveryError, match="the shop is closed"):
        played.start([])
    shop.away = False
    played.start([])
    played.rows(rows(0, "u A"))
    shop.away = True
    assert played.made is not None
    processors = played.made.rules
    until(lambda: processors.problem is not None, 10.0, "the source is away")
    played.stop()
    played.start([])
    played.rows(rows(1, "u C"))
    assert [letters(row) for row in played.output()] == ["AC"]
    shop.rules, shop.away = [], False
    processors = played.made.rules
    until(lambda: not processors.current_pattern_processors(), 10.0, "the rule is gone")
    assert processors.problem is None
    played.stop()


@pytest.mark.long
def test_all_partitions_change_in_one_window_in_heavy_traffic(
    spark: SparkSession, tmp_path: Path
) -> None:
    """D-15: no window in which one bucket matches by one version and another by the other."""
    before = spark.conf.get(SHUFFLE)
    spark.conf.set(SHUFFLE, "4")
    try:
        played = Play(spark, tmp_path, dynamic(tmp_path / "rules", buckets=16))
        played.start([rule("r", "AC")])
    finally:
        spark.conf.set(SHUFFLE, str(before))
    users = [f"u{number}" for number in range(50)]

    def change() -> None:
        for version in range(2, 5):
            until(lambda: len(played.windows) >= 5 * (version - 1), 240.0, "windows go on")  # noqa: B023
            word = "AC" if version % 2 else "ABC"
            played.rules.on_pattern_processors_updated([rule("r", word, version)])

    thread = threading.Thread(target=change)
    thread.start()
    window = 0
    while thread.is_alive() or window < 8:
        seen = len(played.windows)
        for part, letter in enumerate("AC" if window % 2 else "ABC"):
            given = rows(3 * window + part, *(f"{user} {letter}" for user in users))
            played.rows(given, wait=False)
        until(lambda: len(played.windows) > seen, 240.0, "a window")  # noqa: B023
        window += 1
    assert played.query is not None
    thread.join()
    played.query.processAllAvailable()
    played.stop()
    versions: list[set[int]] = []
    for window in sorted(played.windows):
        output = played.windows[window]["matches"]
        versions.append({row["version"] for row in output})
        assert len(output) % len(users) == 0, "all users or none"
        for row in output:
            assert letters(row) == ("AC" if row["version"] % 2 else "ABC")
    assert max(map(len, versions)) == 1
    order = [min(each) for each in versions if each]
    assert order == sorted(order)
    assert len(set(order)) > 1


@pytest.mark.slow
def test_one_rule_needs_no_control_file_and_another_one_takes_its_place(
    spark: SparkSession, tmp_path: Path
) -> None:
    def make(stream: Stream, first: Sequence[Any]) -> PatternStream:
        shape = Pattern.begin("A").where(fails_on_x)
        for letter in first:
            shape = shape.followed_by(letter).where(f'n == "{letter}"')
        return stream.with_watermark("t", "0 seconds").match(
            shape, key="user", options=OperatorOptions(buckets=2)
        )

    played = Play(spark, tmp_path, make)
    played.start("C")
    played.rows(rows(0, "u A"))
    played.stop()
    played.start("C")
    played.rows(rows(1, "u C", "u A"))
    played.stop()
    played.start("BC")
    played.rows(rows(2, "u C", "v A"))
    played.rows(rows(3, "v B", "v C"))
    assert [letters(row) for row in played.output()] == ["AC", "ABC"]
    played.stop()


@pytest.mark.slow
def test_rows_that_one_rule_need_not_see_are_left_out_and_time_passes_by_all(
    spark: SparkSession, tmp_path: Path
) -> None:
    beside = ControlFile(tmp_path / "control")
    beside.append(SetFactor(2), delivery="BEGIN")

    def output(push_down: bool) -> dict[str, list[str]]:
        def make(stream: Stream, first: Sequence[Any]) -> PatternStream:
            del first
            stream = stream.union(sb.control_stream(spark, beside.path))
            shape = Pattern.begin("A").where('n == "A"').followed_by("C").where('n == "C"')
            return stream.with_watermark("t", "0 seconds").match(
                shape.within("150s"),
                key="user",
                push_down=push_down,
                options=OperatorOptions(buckets=2),
            )

        played = Play(spark, tmp_path / str(push_down), make)
        played.start([])
        assert played.made is not None
        relevant = played.made.rules.relevance.filter
        assert relevant == ('n == "A" || n == "C"' if push_down else None)
        played.rows(rows(0, "u A", "u X", "v A", "w X"))
        played.stop()
        played.start([])
        played.rows(rows(1, "u C", "w A", "w X", "w C"))
        played.rows(rows(0, "u A", "u X"))  # all of them are late
        found = {
            tag: [letters(row) for row in played.output(tag)] for tag in ("matches", "timeouts")
        }
        played.stop()
        return {**found, "late": [row["n"] for row in played.output("late")]}

    assert output(True) == {"matches": ["AC", "AC"], "timeouts": ["A"], "late": ["A"]}
    assert output(False) == {"matches": ["AC", "AC"], "timeouts": ["A"], "late": ["A", "X", ""]}


MATCHES = """
SELECT who, first_time, amount FROM trades MATCH_RECOGNIZE (
  PARTITION BY who ORDER BY t
  MEASURES FIRST(A.t) AS first_time, SUM(v) AS amount, LAST(B.v) AS last_amount
  ONE ROW PER MATCH AFTER MATCH SKIP PAST LAST ROW
  PATTERN (A B+ C)
  DEFINE A AS A.v < 10, B AS B.v >= 10, C AS C.v < 5
)
"""


@pytest.mark.slow
def test_in_processing_time_windows_end_though_nothing_comes_also_after_a_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A match with a negated end and a time-out take a micro-batch each, and nothing else does."""
    quiet, slow = rule("quiet", "AZ"), rule("slow", "AZ")
    quiet["pattern"] |= {"within": "1s"}
    quiet["pattern"]["stages"][1]["join"] = "not_followed_by"
    slow["pattern"]["within"] = "4s"
    make = dynamic(tmp_path / "rules", delay=None, buckets=2)
    played = Play(spark, tmp_path, make)

    def over() -> list[str]:
        return [row["key"]["user"] for row in played.output("timeouts")]

    played.start([quiet, slow])
    played.rows([{"n": "A", "user": "u"}])
    until(lambda: over() == ["u"], 120.0, "the match and the time-out of u")
    assert [row["rule"] for row in played.output()] == ["quiet"]
    assert len(played.windows) <= 4, "rules, the row, and one for each that ended"
    played.rows([{"n": "A", "user": "v"}])
    played.stop()
    played.start([quiet, slow])
    until(lambda: over() == ["u", "v"], 120.0, "the match and the time-out of v")
    played.stop()
    assert [row["key"]["user"] for row in played.output()] == ["u", "v"]


def test_only_new_checkpoints_in_processing_time_have_a_source_of_ticks(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark refuses a checkpoint whose query has got one more source."""
    stream = sb.stream(spark.readStream.schema(DDL).parquet(str(tmp_path)))

    def ticks(made: PatternStream) -> bool:
        made.rules.close()
        plan = made.node().frame._jdf.queryExecution().analyzed().toString()
        return "streambroker-side-ticks" in plan

    def of_file(name: str, source: Stream = stream) -> bool:
        return ticks(source.match_rules([rule("r", "A")], control_file=tmp_path / name))

    @dataclass
    class Earlier:
        control_type: ClassVar[str] = "PatternRules"
        rules: dict[str, Any]

    ControlFile(tmp_path / "earlier").append(Earlier(RuleSet().document()), delivery="BEGIN")
    one = Pattern.begin("A").where('n == "A"')
    timed = stream.with_watermark("t", "1 second")
    assert [of_file("new"), of_file("new"), of_file("earlier")] == [True, True, False]
    assert not of_file("timed", timed)
    assert [ticks(stream.match(one, timer=timer)) for timer in (True, False)] == [True, False]
    assert not ticks(timed.match(one))


def test_a_statement_in_sql_makes_a_row_of_each_match(spark: SparkSession, tmp_path: Path) -> None:
    values = [("u", 1), ("v", 2), ("u", 20), ("u", 30), ("v", 3), ("u", 4), ("end", 0)]
    frame = spark.createDataFrame(
        [(who, v, BEGIN + timedelta(seconds=at)) for at, (who, v) in enumerate(values)],
        "who string, v bigint, t timestamp",
    )
    frame.coalesce(1).write.parquet(str(tmp_path / "in"))
    source = spark.readStream.schema(frame.schema).parquet(str(tmp_path / "in"))
    made = sql(
        MATCHES, {"trades": source}, watermark="0 seconds", options=OperatorOptions(buckets=2)
    )
    query = (
        made.to_df()
        .writeStream.format("memory")
        .queryName("told")
        .option("checkpointLocation", str(tmp_path / "ck"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = [tuple(row) for row in spark.table("told").collect()]
    assert [(who, amount) for who, _, amount in found] == [("u", 55)]
    assert made.schema().names == ["who", "first_time", "amount"]


@pytest.mark.slow
def test_the_first_example_of_the_original_runs_and_counts_what_it_finds(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The statement has the original's text; two more measures are added."""
    times = [f"2011-04-01 10:00:{second:02}" for second in range(len(PRICES))]
    rows = [("ACME", time, price, 1) for time, price in zip(times, PRICES, strict=True)]
    frame = spark.createDataFrame(rows, "symbol string, at string, price int, tax int")
    frame = frame.selectExpr("symbol", "cast(at as timestamp) rowtime", "price", "tax")
    frame.coalesce(1).write.parquet(str(tmp_path / "in"))
    source = spark.readStream.schema(frame.schema).parquet(str(tmp_path / "in"))
    more = ", CLASSIFIER() AS variable, MATCH_NUMBER() AS number ONE ROW PER MATCH"
    made = sql(
        TICKER.replace("ONE ROW PER MATCH", more), {"Ticker": source},
        watermark="0 seconds", options=OperatorOptions(buckets=2),
    )  # fmt: skip
    query = (
        made.to_df()
        .writeStream.format("memory")
        .queryName("ticker")
        .option("checkpointLocation", str(tmp_path / "ck"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    (found,) = spark.table("ticker").collect()
    assert (found.symbol, found.variable, found.number) == ("ACME", "PRICE_UP", 1)
    ends = (found.start_tstamp, found.bottom_tstamp, found.end_tstamp)
    assert [str(end) for end in ends] == [times[4], times[7], times[8]]


@pytest.mark.slow
def test_a_dynamic_statement_takes_its_rules_from_a_discoverer(
    spark: SparkSession, tmp_path: Path
) -> None:
    text = """SELECT * FROM letters MATCH_RECOGNIZE_DYNAMIC (PARTITION BY user ORDER BY t
              pattern_processor_discoverer_factory = shop)"""

    def make(stream: Stream, first: Sequence[Any]) -> PatternStream:
        made = sql(
            text, {"letters": stream}, {"shop": Shop(first)}, control_file=tmp_path / "rules",
            watermark="0 seconds", options=OperatorOptions(buckets=2),
        )  # fmt: skip
        assert isinstance(made, PatternStream)
        return made

    played = Play(spark, tmp_path, make)
    played.start([rule("r", "AC")])
    played.rows(rows(0, "u A", "u C"))
    assert [letters(row) for row in played.output()] == ["AC"]
    played.stop()


def dynamic_statement(
    stream: Stream, factory: Any, columns: str = "*", options: str = "f", **settings: Any
) -> Stream:
    text = f"SELECT {columns} FROM s MATCH_RECOGNIZE_DYNAMIC (pattern_processor_discoverer_factory"
    return sql(f"{text} = {options}) AS T", {"s": stream}, {"f": factory}, **settings)


def test_what_does_not_fit_is_refused_before_anything_starts(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = sb.stream(spark.readStream.schema(DDL).parquet(str(tmp_path)))
    control = tmp_path / "rules"
    timed = stream.with_watermark("t", "0 seconds")
    one = Pattern.begin("A").where('n == "A"')
    ways: dict[str, Callable[[], object]] = {
        "the key has 'nobody', which": lambda: timed.match(one, key="nobody"),
        "the event time when is not a column": lambda: stream.match(one, event_time="when"),
        "64 buckets without a key": lambda: stream.match(one, options=OperatorOptions(buckets=64)),
        "with_watermark": lambda: stream.match(one, event_time="t"),
        "is refused .FieldUnknown": lambda: stream.match(Pattern.begin("A").where("m > 1")),
        "push_down of one rule is for a stream of rows": lambda: stream.match(one).match(
            Pattern.begin("A").where('rule == "x"'), push_down=True
        ),
        "two functions of the pattern are called <lambda>": lambda: stream.match(
            one.where(lambda row, run: True).or_(lambda row, run: False)
        ),
        "selectors has 'nobody', which": lambda: timed.match_rules(
            Given([]), control_file=control, selectors=["nobody"]
        ),
        "rules need a file through which they reach the query": lambda: dynamic_statement(
            stream, Given([]), control_file=None
        ),
        "watermark= without ORDER BY": lambda: dynamic_statement(
            stream, Given([]), control_file=control, watermark="1 s"
        ),
        "f does not make a discoverer with the options .n.: .* Register": lambda: dynamic_statement(
            timed, Given([]), options="f, n = 1", control_file=control
        ),
        "SELECT names user, which nothing has together: matches has rule, ": (
            lambda: dynamic_statement(timed, Given([]), "user", control_file=tmp_path / "few")
        ),
        "SELECT names user, which the functions alert and more have": lambda: dynamic_statement(
            timed,
            partial(Given, []),
            "T.user",
            control_file=tmp_path / "many",
            functions={"alert": FUNCTIONS["alert"], "more": FUNCTIONS["alert"]},
        ),
    }
    for why, act in ways.items():
        with pytest.raises(AlignedError, match=why):
            act()
    timed.match_rules(Given([]), control_file=control, key="user").rules.close()
    with pytest.raises(AlignedError, match="the checkpoint is one without copies"):
        timed.match_rules(Given([]), control_file=control, key="user", selectors=["item"])
    kept = json.loads(control.read_text().splitlines()[1])["payload"]
    assert kept == {
        "rules": {"format": 2, "rules": [], "disabled": []},
        "selectors": [],
        "relevant": None,
        "whole": "",
        "ticks": False,
        "output": "typed",
    }


def test_a_rule_is_made_of_python_as_of_documents(spark: SparkSession, tmp_path: Path) -> None:
    """A function that the job has not registered is found before any task runs."""
    stream = sb.stream(spark.readStream.schema(DDL).parquet(str(tmp_path)))
    rules = [
        PatternProcessor(id="r", version=1, pattern=Pattern.begin("A").where(fails_on_x)),
        PatternProcessor(id="s", version=1, pattern=Pattern.begin("A").where('n == "A"')),
    ]
    made = stream.match_rules(Given(rules), control_file=tmp_path / "rules")
    outcomes = {one.rule: one.change for one in made.rules.outcomes()}
    assert outcomes == {"r": "refused", "s": "added"}
    made.rules.close()
