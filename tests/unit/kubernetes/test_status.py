"""A status tells facts, keeps the times of its transitions, and is written only if it says more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streambroker_core.board import Status
from streambroker_core.model import RejectedGeneration, Resource
from streambroker_core.wire.broker.view import RefusedPair
from streambroker_core.wire.manifests.ports import write_spec
from streambroker_operator.kubernetes.client.objects import MAX_MESSAGE
from streambroker_operator.kubernetes.status.conditions import (
    MAX_SUMMARY,
    NOTHING_PUBLISHED,
    Condition,
    PublishedStatus,
    StatusBody,
    desired_status,
    format_time,
    read_published,
    status_to_write,
    summarise,
    unreadable_status,
)
from support.core.resources import board_of, export_of, import_of, port

RUNS = Condition(type="Programmed", status="True", reason="Programmed")
PENDING = Condition(type="Programmed", status="False", reason="Pending")
MATCHED = Status(matches=1, peers=(port("alerts/trades"),))


def made(
    resource: Resource | None = None,
    status: Status = MATCHED,
    programmed: Condition | None = RUNS,
    shown: PublishedStatus = NOTHING_PUBLISHED,
    now: float = 1000.0,
    steered: str | None = None,
) -> StatusBody | None:
    facts = desired_status(
        resource or export_of(), status, programmed=programmed, published=shown, steered=steered
    )
    return status_to_write(facts, shown, now)


def conditions(status: StatusBody | None) -> dict[str, tuple[str, str]]:
    assert status is not None
    return {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}


def test_a_resource_whose_agents_run_it_is_ready() -> None:
    status = made()

    assert conditions(status) == {
        "Accepted": ("True", "Accepted"),
        "Matched": ("True", "Matched"),
        "Programmed": ("True", "Programmed"),
        "Ready": ("True", "Ready"),
    }
    assert status is not None
    assert status["matches"] == 1
    assert status["topMatches"] == ["default/alerts/0/trades"]
    assert status["summary"] == "kind=trade"
    assert status["observedGeneration"] == 1


@pytest.mark.parametrize(
    ("status", "programmed", "reason"),
    [
        (Status(accepted=False, reason="PortTaken", message="…"), RUNS, "PortTaken"),
        (Status(), RUNS, "NoMatch"),
        (MATCHED, PENDING, "Pending"),
        (MATCHED, None, "NotHeard"),
    ],
)
def test_ready_names_the_first_thing_that_is_missing(
    status: Status, programmed: Condition, reason: str
) -> None:
    assert conditions(made(status=status, programmed=programmed))["Ready"][1] == reason


def test_an_expression_that_cannot_be_read_is_reported_with_its_position() -> None:
    broken = import_of(subscription="kind == == 1")
    status = board_of(broken).reader.status("Import", broken.uid)
    assert status is not None

    reported = made(broken, status)

    assert conditions(reported)["Accepted"] == ("False", "SubscriptionInvalid")
    assert reported is not None
    assert "line 1, column 9" in reported["conditions"][0]["message"]


def test_the_only_pair_that_nearly_fits_gives_the_reason() -> None:
    pair = RefusedPair(export=port("feed/trades"), reason="SchemaMismatch", message="no `price`")

    reported = made(import_of(), Status(refused=(pair, pair)))

    assert reported is not None
    matched = reported["conditions"][1]
    assert (matched["reason"], matched["status"]) == ("SchemaMismatch", "False")
    assert matched["message"] == (
        "default/feed/0/trades is refused, SchemaMismatch: no `price` (1 more)"
    )


def test_an_import_that_wants_nothing_says_so() -> None:
    status = made(replace(import_of(), subscription=None), Status())
    assert conditions(status)["Matched"][1] == "NothingWanted"
    assert matched_of(status) == "It has neither a subscription nor streams."


def test_what_stands_there_already_is_not_written() -> None:
    assert made(shown=read_published(made()), now=2000.0) is None


def test_what_others_write_into_a_status_makes_no_difference() -> None:
    status = made()
    assert status is not None
    foreign = {"type": "Audited", "status": "True", "reason": "X", "lastTransitionTime": "…"}
    there = {
        **status,
        "endpoint": {"location": "grpc+tcp://a:1"},
        "conditions": [foreign, *reversed(status["conditions"])],
    }

    assert made(shown=read_published(there)) is None


def test_a_condition_keeps_its_time_while_its_status_is_the_same() -> None:
    before = read_published(made(programmed=PENDING, now=1000.0))

    after = made(shown=before, now=2000.0)

    assert after is not None
    times = {c["type"]: c["lastTransitionTime"] for c in after["conditions"]}
    assert times["Accepted"] == times["Matched"] == format_time(1000.0)
    assert times["Programmed"] == times["Ready"] == format_time(2000.0)


def test_agents_not_heard_of_since_a_start_change_nothing() -> None:
    assert made(programmed=None, shown=read_published(made())) is None


def test_agents_not_heard_of_learn_where_the_routes_are_others() -> None:
    shown = read_published(made())
    two = Status(matches=2, peers=(port("alerts/trades"), port("other/trades")))

    assert conditions(made(status=two, programmed=None, shown=shown))["Programmed"] == (
        "Unknown",
        "NotHeard",
    )


def test_steering_is_a_condition_that_comes_and_goes() -> None:
    steered = made(steered="filter by streambroker-api")
    assert steered is not None
    assert steered["conditions"][-1]["message"] == "filter by streambroker-api"

    released = made(shown=read_published(steered))

    assert "Steered" not in conditions(released)


def test_a_long_message_is_cut() -> None:
    reported = status_to_write(
        unreadable_status(3, "ManifestInvalid", "x" * 5000), NOTHING_PUBLISHED, 0.0
    )
    assert reported is not None
    assert len(reported["conditions"][0]["message"]) == MAX_MESSAGE
    assert reported["observedGeneration"] == 3


def test_ready_has_the_reason_and_the_message_of_the_condition_that_fails() -> None:
    status = status_to_write(
        unreadable_status(1, "PropertyInvalid", "a sentence"), NOTHING_PUBLISHED, 0.0
    )
    assert status is not None
    assert [c["message"] for c in status["conditions"]] == ["a sentence", "", "", "a sentence"]
    assert conditions(status)["Ready"] == ("False", "PropertyInvalid")


def test_every_condition_has_the_generation_that_it_is_about() -> None:
    status = made(replace(export_of(), generation=7))
    assert status is not None
    assert [c["observedGeneration"] for c in status["conditions"]] == [7, 7, 7, 7]


def matched_of(status: StatusBody | None) -> str:
    assert status is not None
    return str(next(c["message"] for c in status["conditions"] if c["type"] == "Matched"))


def test_a_resource_that_matches_nothing_has_the_sentence_about_the_nearest() -> None:
    found = desired_status(import_of(), Status(), programmed=None, nearest="Nearest is a.")
    status = status_to_write(found, NOTHING_PUBLISHED, 0.0)

    assert matched_of(status) == "Nearest is a."
    assert status is not None
    assert status["conditions"][-1]["message"] == "Nearest is a."


def test_the_sentence_that_is_shown_stays_until_another_is_computed() -> None:
    one = import_of()
    found = desired_status(one, Status(), programmed=None, nearest="Nearest is a.")
    shown = read_published(status_to_write(found, NOTHING_PUBLISHED, 0.0))

    assert made(one, Status(), shown=shown) is None
    assert matched_of(made(replace(one, generation=2), Status(), shown=shown)) == ""


@pytest.mark.parametrize(
    ("resource", "summary"),
    [
        (
            export_of(properties={"kind": "trade", "tickers": ["IBM", "GOOG"]}),
            "kind=trade tickers=[IBM GOOG]",
        ),
        (
            export_of(properties={**{f"name{n}": "x" * 12 for n in range(9)}, "a": True}),
            "a=true name0=xxxxxxxxxxxx name1=xxxxxxxxxxxx +7",
        ),
        (export_of(properties={"a": "x" * 99, "b": 1}), "a=" + "x" * 54 + "… +1"),
        (export_of(properties={"a": 'two "words"', "b": 1.5}), 'a="two \\"words\\"" b=1.5'),
        (export_of(properties={}), ""),
        (export_of(streamId="nyse"), "stream nyse"),
        (import_of(subscription='kind  ==\n "trade"'), 'kind == "trade"'),
        (import_of(subscription=f'k == "{"x" * 99}"'), 'k == "' + "x" * 53 + "…"),
        (
            import_of(streams=[{"applicationName": "m.Feed", "streamId": "a"}, {"streamId": "b"}]),
            "stream m.Feed/a b",
        ),
        (replace(import_of(), subscription=None), ""),
    ],
)
def test_a_summary_is_one_short_line(resource: Resource, summary: str) -> None:
    assert summarise(resource) == summary


@given(
    st.dictionaries(
        st.from_regex(r"[a-z]{1,30}", fullmatch=True).filter(
            lambda name: name not in {"in", "true", "false"}
        ),
        st.one_of(st.booleans(), st.integers(0, 10**15), st.text(max_size=80), st.just(["a", "b"])),
        max_size=30,
    )
)
def test_every_summary_fits(properties: dict[str, Any]) -> None:
    summary = summarise(export_of(properties=properties))
    assert len(summary) <= MAX_SUMMARY
    assert "\n" not in summary


@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda x: (
            st.dictionaries(
                st.sampled_from(["conditions", "type", "status", "matches", "topMatches", "x"]), x
            )
            | st.lists(x)
        ),
    )
)
def test_whatever_stands_there_can_be_read(status: Any) -> None:
    assert made(shown=read_published(status)) is not None


words = st.sampled_from(["Matched", "NoMatch", "X"])
truths: Any = st.sampled_from(["True", "False"])


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 2), st.sampled_from([RUNS, PENDING, None]), words),
        min_size=1,
        max_size=8,
    )
)
def test_after_a_write_nothing_is_left_to_write_and_times_move_with_statuses_alone(
    steps: list[tuple[bool, int, Condition | None, str]],
) -> None:
    shown, last = NOTHING_PUBLISHED, dict[str, tuple[str, str]]()
    for now, (accepted, matches, programmed, reason) in enumerate(steps):
        peers = tuple(port(f"a{n}/p") for n in range(matches))
        status = Status(accepted=accepted, reason=reason, matches=matches, peers=peers)
        reported = made(status=status, programmed=programmed, shown=shown, now=float(now))
        if reported is None:
            continue
        for condition in reported["conditions"]:
            before = last.get(condition["type"])
            same = before is not None and before[0] == condition["status"]
            moved = condition["lastTransitionTime"]
            assert moved == (before[1] if same and before else format_time(now))
            last[condition["type"]] = (condition["status"], moved)
        shown = read_published(reported)
        assert made(status=status, programmed=programmed, shown=shown, now=now + 0.5) is None


def test_a_refused_generation_says_what_runs_and_keeps_the_accepted_spec_in_the_status() -> None:
    newer = RejectedGeneration(generation=5, code="FilterInvalid", problem="no column `prise`")
    running = replace(
        import_of("alerts/trades", filter="price > 1.0"), generation=4, rejected=newer
    )
    message = "generation 5 is refused: no column `prise`; generation 4 runs"
    status = replace(
        MATCHED, accepted=False, reason="FilterInvalid", message=message, running_generation=4
    )
    programmed = Condition(type="Programmed", status="True", reason="Programmed")
    facts = desired_status(running, status, programmed=programmed)
    found = status_to_write(facts, NOTHING_PUBLISHED, 0.0)

    assert found is not None
    assert found["observedGeneration"] == 5
    assert found["accepted"] == {"generation": 4, "spec": write_spec(running)}
    reported = {c["type"]: (c["status"], c["reason"]) for c in found["conditions"]}
    assert reported == {
        "Accepted": ("False", "FilterInvalid"),
        "Matched": ("True", "Matched"),
        "Programmed": ("True", "Programmed"),
        "Ready": ("False", "FilterInvalid"),
    }
    assert found["conditions"][0]["message"] == message
    assert status_to_write(facts, read_published(found), 1.0) is None


def test_what_was_accepted_stays_in_the_status_when_an_export_makes_its_filter_invalid() -> None:
    import_ = import_of("alerts/trades", filter="price > 1.0")
    shown = read_published(
        status_to_write(desired_status(import_, MATCHED, programmed=None), NOTHING_PUBLISHED, 0.0)
    )
    invalid = Status(accepted=False, reason="FilterInvalid", message="no column `price`")
    never = status_to_write(
        desired_status(import_, invalid, programmed=None), NOTHING_PUBLISHED, 0.0
    )
    again = status_to_write(
        desired_status(import_, invalid, programmed=None, published=shown), shown, 0.0
    )

    assert never is not None
    assert "accepted" not in never
    assert again is not None
    assert again["accepted"]["generation"] == 1
