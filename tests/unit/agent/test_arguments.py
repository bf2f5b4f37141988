"""Arguments of a job's program: durations in all forms, choices, keywords, and clear refusals."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql.types import DoubleType, StringType, StructType

import streambroker as sb
from pe_agent.job.arguments import check_choice, check_keywords, seconds
from pe_agent.job.port_settings import ExportSettings, export_spec, import_spec
from pe_agent.job.publish import Publication, QueryStart, Sink, start_query
from streambroker.operators import Limits, OperatorOptions


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("1m", 60.0),
        ("PT2S", 2.0),
        (timedelta(hours=1), 3600.0),
        (5, 5.0),
        (-1, -1.0),
        (10**400, math.inf),
        (math.inf,) * 2,
    ],
)
def test_a_duration_has_many_forms(given: Any, expected: float) -> None:
    assert seconds(given, "linger") == expected


@pytest.mark.parametrize("given", ["soon", None, math.nan, True, [1]])
def test_what_is_no_duration_is_refused_by_name(given: Any) -> None:
    with pytest.raises(sb.ArgumentError, match=r"linger is .*, which is no duration: write"):
        seconds(given, "linger")


def test_a_choice_is_its_text_everywhere() -> None:
    assert (f"{sb.Congestion.DROP}", str(sb.Missing.WAIT), json.dumps(sb.StartAt.LATEST)) == (
        "drop", "wait", '"latest"',
    )  # fmt: skip
    assert check_choice(sb.Congestion, sb.Congestion.WAIT, "p") == "wait"
    with pytest.raises(sb.ArgumentError, match=r"p is 'wiat'; it has to be 'wait' or 'drop'"):
        check_choice(sb.Congestion, "wiat", "p")


def test_settings_of_ports_are_checked_before_anything_is_declared() -> None:
    spec = export_spec(
        "publish",
        "out",
        {"buffer": {"maxAge": timedelta(minutes=1), "grace": 5, "waitLimit": "30s"}},
    )
    assert spec["buffer"] == {"maxAge": "1m", "grace": "5s", "waitLimit": "30s"}
    with pytest.raises(sb.ArgumentError, match="congestion_policy is 'wiat'"):
        export_spec("publish", "out", {"congestion_policy": "wiat"})
    with pytest.raises(
        TypeError, match=r"publish\(\) got .* 'propertes'. Did you mean 'properties'"
    ):
        export_spec("publish", "out", cast(ExportSettings, {"propertes": {}}))
    spec = export_spec(
        "publish", "out", {"archive": {"maxAge": timedelta(days=7), "maxBytes": "1Ti"}}
    )
    assert spec["archive"] == {"maxAge": "7d", "maxBytes": "1Ti"}
    with pytest.raises(sb.ArgumentError, match=r"archive\.maxAge is \[7\], which is no duration"):
        export_spec("publish", "out", {"archive": {"maxAge": cast(Any, [7])}})


COMMENTED = (
    StructType()
    .add("price", DoubleType(), metadata={"comment": "in USD"})
    .add("note", StringType(), metadata={"comment": "x" * 5000})
    .add("plain", StringType())
)


class DeclaredError(Exception):
    """Ends a start where it has declared."""


class Declaring:
    """A job that declares nothing and shows what it would declare."""

    def declare(self, kind: str, port: str, spec: dict[str, Any], **_: Any) -> None:
        raise DeclaredError(kind, port, spec)


@pytest.mark.parametrize(
    ("settings", "comments"),
    [
        ({"description": "Trades"}, {"price": "in USD", "note": "x" * 1024}),
        ({"owner": "a", "column_comments": {"plain": "p"}}, {"plain": "p"}),
        ({"properties": {}}, None),
        ({}, None),
    ],
)
def test_an_export_with_a_description_has_the_comments_of_its_frame(
    settings: Any, comments: dict[str, str] | None
) -> None:
    spec = export_spec("publish", "out", settings)
    sink = Sink(exports=(Publication(port="out", columns=COMMENTED, spec=spec),))
    with pytest.raises(DeclaredError) as stopped:
        start_query(cast(Any, Declaring()), cast(Any, None), sink, QueryStart("c"), redeclare=False)

    kind, port, declared = stopped.value.args
    assert (kind, port) == ("export", "out")
    assert declared.get("columnComments") == comments
    assert {name: declared[name] for name in spec} == spec


def test_texts_for_people_reach_the_export_as_they_are() -> None:
    spec = export_spec("publish", "out", {"description": "d", "owner": "o", "tags": ("b", "a")})
    assert spec == {"description": "d", "owner": "o", "tags": ["b", "a"], "properties": {}}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (sb.StartAt.EARLIEST, "earliest"),
        ("-7d", "-7d"),
        ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00Z"),
        (datetime(2026, 1, 31, 12, tzinfo=UTC), "2026-01-31T12:00:00+00:00"),
    ],
)
def test_an_import_starts_at_an_end_or_at_a_time(given: Any, text: str) -> None:
    assert import_spec("in", "a == 1", {"start": given})["start"] == text


@pytest.mark.parametrize("given", ["lastest", "7d", datetime(2026, 1, 31), 5])  # noqa: DTZ001
def test_what_is_no_start_is_refused_with_all_forms(given: Any) -> None:
    with pytest.raises(sb.ArgumentError, match=r"start is .*; it has to be latest, earliest, a ti"):
        import_spec("in", "a == 1", {"start": given})


def test_a_keyword_that_moved_is_named_with_its_place() -> None:
    with pytest.raises(TypeError, match=r"match\(\) got .* 'buckets'. Use options=OperatorOptions"):
        check_keywords("match", {"buckets": 4}, ["key"])


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"buckets": "8"}, "buckets is '8'"),
        ({"limits": 5}, "limits is 5"),
        ({"on_invalid": "skip"}, "on_invalid is 'skip'"),
    ],
)
def test_options_of_an_operator_are_checked_when_they_are_made(settings: Any, why: str) -> None:
    assert OperatorOptions(buckets=8, limits=Limits()).changed() == {
        "buckets": 8,
        "limits": Limits(),
    }
    with pytest.raises(sb.AlignedError, match=why):
        OperatorOptions(**settings)


def test_start_refuses_settings_of_another_type(tmp_path: Path) -> None:
    with pytest.raises(sb.ArgumentError, match=r"agent is {.*}: it has to be AgentOptions"):
        sb.start(cast(Any, None), job="feed", data_dir=tmp_path, agent=cast(Any, {"host": "h"}))


def test_a_choice_does_not_change_what_state_has_a_digest_of() -> None:
    from pe_agent.streams.side_inputs import _as_text

    assert repr(_as_text(sb.Missing.WAIT)) == repr("wait")
