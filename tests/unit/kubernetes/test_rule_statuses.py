"""Statuses of rules: conditions by what broker and job say, and nothing written in vain."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from streambroker_core.board import (
    Board,
    PeWithdrawn,
    RuleApplied,
    RuleRemoved,
    Synced,
    Unreadable,
)
from streambroker_core.model import RULE, PeKey, Rule
from streambroker_core.wire.manifests.rules import read_rule_spec, write_rule_spec
from streambroker_core.wire.reports.rule_status import RuleStatus
from streambroker_operator.kubernetes.replicas.agent_reports import RulesReport
from streambroker_operator.kubernetes.status.events import EventNote, transition_notes
from streambroker_operator.kubernetes.status.rule_reconciler import COUNTS_S, RuleReconciler
from streambroker_operator.kubernetes.status.writer import Name, StatusWrite

PE = PeKey("default", "alerts", 0)
ACTIVE = RuleStatus(version=1, state="active", since=12, buckets=4, of=4, matches=7)


def rule(uid: str = "u1", where: str = "price > 10", **fields: Any) -> Rule:
    pattern = {"stages": [{"name": "a", "where": where}]}
    spec = {"job": "alerts", "id": "dear", "version": 1, "pattern": pattern}
    return replace(read_rule_spec(spec), uid=uid, name=uid, **fields)


class Bench:
    """Statuses with the API server's part played."""

    def __init__(self, *rules: Rule) -> None:
        self.board, self.now, self.version = Board(), 1000.0, 10
        self.offers: list[tuple[Name, bool]] = []
        self.objects: dict[str, Any] = {}
        self.notes: list[EventNote] = []
        self.statuses = self.fresh()
        listed = tuple((one, number + 1) for number, one in enumerate(rules))
        for event in (
            Synced(kind=RULE, listed=listed, version=9),
            Synced(kind="Export", listed=(), version=9),
            Synced(kind="Import", listed=(), version=9),
        ):
            self.publish(event)

    def fresh(self) -> RuleReconciler:
        return RuleReconciler(
            self.board.reader,
            lambda name, urgent: self.offers.append((name, urgent)),
            on_written=lambda write: self.notes.extend(transition_notes(write)),
            clock=lambda: self.now,
            monotonic=lambda: self.now,
        )

    def publish(self, event: Any) -> None:
        self.statuses.on_actions(event, self.board.handle(event))

    def apply(self, one: Rule) -> None:
        self.version += 1
        self.publish(RuleApplied(rule=one, version=self.version))

    def write(self, uid: str = "u1") -> StatusWrite | None:
        write = self.statuses.build((RULE, uid))
        if write is not None:
            self.version += 1
            self.objects[uid] = self.written(write, uid)
            self.statuses.on_written(write, self.objects[uid])
        return write

    def written(self, write: StatusWrite, uid: str = "u1") -> Any:
        metadata = {"uid": uid, "resourceVersion": str(self.version)}
        return {"metadata": metadata, "status": dict(write.status)}

    def conditions(self, uid: str = "u1") -> dict[str, tuple[str, str]]:
        self.write(uid)
        shown = self.objects[uid]["status"]["conditions"]
        return {c["type"]: (c["status"], c["reason"]) for c in shown}


def test_a_rule_of_which_no_job_has_reported_is_accepted_and_not_known_to_be_active() -> None:
    bench = Bench(rule())

    assert bench.conditions() == {
        "Accepted": ("True", "Accepted"),
        "Active": ("Unknown", "NotHeard"),
        "Ready": ("Unknown", "NotHeard"),
    }
    assert bench.offers == [((RULE, "u1"), False)] * len(bench.offers)


@pytest.mark.parametrize(
    ("reported", "accepted", "active"),
    [
        (ACTIVE, ("True", "Accepted"), ("True", "Active")),
        (replace(ACTIVE, since=None), ("True", "Accepted"), ("False", "Pending")),
        (replace(ACTIVE, state="disabled"), ("True", "Accepted"), ("False", "Disabled")),
        (RuleStatus(), ("True", "Accepted"), ("False", "Absent")),
        (
            replace(ACTIVE, refused=2, reason="ContentDiffers", message="it differs"),
            ("False", "ContentDiffers"),
            ("True", "Active"),
        ),
    ],
)
def test_what_the_job_says_is_reported(
    reported: RuleStatus, accepted: tuple[str, str], active: tuple[str, str]
) -> None:
    bench = Bench(rule())
    bench.statuses.on_report(PE, RulesReport({"dear": reported}))

    found = bench.conditions()

    assert (found["Accepted"], found["Active"]) == (accepted, active)
    # Which version was refused stands in the spec.
    assert bench.statuses.published_status("u1") == replace(reported, refused=None)


def test_a_status_has_the_window_the_buckets_and_the_counts() -> None:
    bench = Bench(rule())
    bench.statuses.on_report(PE, RulesReport({"dear": ACTIVE}))
    write = bench.write()

    assert write is not None
    reported = {name: value for name, value in write.status.items() if name != "conditions"}
    assert reported == {
        "observedGeneration": 1,
        "accepted": {"generation": 1, "spec": write_rule_spec(rule())},
        "version": 1,
        "since": 12,
        "buckets": 4,
        "of": 4,
        "applied": "4/4",
        "matches": 7,
        "errors": 0,
    }
    assert "Version 1 since window 12." in [c["message"] for c in write.status["conditions"]]


def test_an_invalid_rule_says_where_and_is_urgent_and_what_runs_is_still_reported() -> None:
    bench = Bench(rule())
    bench.statuses.on_report(PE, RulesReport({"dear": ACTIVE}))
    bench.write()
    bench.offers.clear()

    bench.apply(rule(where="price >", generation=2))
    write = bench.write()

    assert bench.offers[0] == ((RULE, "u1"), True)
    assert write is not None
    assert "pattern.stages[0].where, line 1" in write.status["conditions"][0]["message"]
    assert bench.conditions()["Accepted"] == ("False", "RuleInvalid")
    assert bench.conditions()["Active"] == ("True", "Active")


def test_what_is_right_is_not_written_and_counts_alone_once_a_minute() -> None:
    bench = Bench(rule())
    bench.statuses.on_report(PE, RulesReport({"dear": ACTIVE}))
    first = bench.write()
    again = bench.write()
    bench.statuses.on_report(PE, RulesReport({"dear": replace(ACTIVE, matches=99)}))
    soon = bench.write()
    bench.now += COUNTS_S
    late = bench.write()
    bench.statuses.on_report(
        PE, RulesReport({"dear": replace(ACTIVE, matches=100, state="disabled")})
    )
    other = bench.write()

    assert (first is None, again, soon) == (False, None, None)
    assert late is not None
    assert late.status["matches"] == 99
    assert other is not None
    assert other.status["matches"] == 100


def test_counts_that_came_too_soon_are_written_in_time_though_nobody_tells_of_them_again() -> None:
    bench = Bench(rule())
    bench.statuses.on_report(PE, RulesReport({"dear": ACTIVE}))
    bench.write()
    bench.now += COUNTS_S / 2
    bench.statuses.on_report(PE, RulesReport({"dear": replace(ACTIVE, matches=99)}))
    assert bench.write() is None
    bench.offers.clear()

    bench.now += COUNTS_S / 2 - 1
    bench.statuses.offer_due()
    assert bench.offers == []
    bench.now += 1
    bench.statuses.offer_due()
    bench.statuses.offer_due()
    assert bench.offers == [((RULE, "u1"), False)]
    late = bench.write()
    assert late is not None
    assert late.status["matches"] == 99
    bench.now += COUNTS_S
    bench.statuses.offer_due()
    assert len(bench.offers) == 1


def test_a_replica_shows_the_counts_that_another_one_has_written() -> None:
    bench = Bench(rule())
    replica = bench.fresh()
    for matches in (7, 99):
        bench.now += COUNTS_S
        bench.statuses.on_report(PE, RulesReport({"dear": replace(ACTIVE, matches=matches)}))
        bench.write()
        replica.observe(bench.objects["u1"], listed=False)

    assert replica.published_status("u1") == replace(ACTIVE, matches=99)


def test_what_the_watch_tells_of_the_time_before_a_write_is_passed_over() -> None:
    bench = Bench(rule())
    bench.write()
    before = bench.objects["u1"]
    bench.statuses.observe(before, listed=False)
    bench.statuses.on_report(PE, RulesReport({"dear": ACTIVE}))
    bench.write()
    bench.offers.clear()

    bench.statuses.observe(before, listed=False)
    assert (bench.write(), bench.offers) == (None, [])
    bench.statuses.observe(before, listed=True)
    assert bench.offers == [((RULE, "u1"), False)]
    assert bench.write() is not None


def test_the_answer_to_a_write_of_a_rule_that_has_gone_is_passed_over() -> None:
    bench = Bench(rule())
    bench.statuses.on_report(PE, RulesReport({"dear": ACTIVE}))
    write = bench.statuses.build((RULE, "u1"))
    assert write is not None
    bench.publish(RuleRemoved(uid="u1", version=30))
    bench.statuses.on_written(write, bench.written(write))

    assert bench.statuses.published_status("u1") is None


def test_what_an_agent_said_that_has_gone_counts_no_more() -> None:
    other = PeKey(PE.namespace, PE.job, 1)
    bench = Bench(rule())
    bench.statuses.on_report(PE, RulesReport({"dear": ACTIVE}))
    bench.statuses.on_report(other, RulesReport({"dear": ACTIVE}))
    bench.write()
    assert bench.objects["u1"]["status"]["applied"] == "8/8"
    bench.offers.clear()
    bench.publish(PeWithdrawn(pe=other, version=40))

    assert bench.offers == [((RULE, "u1"), False)]
    bench.write()
    assert bench.objects["u1"]["status"]["applied"] == "4/4"


def test_a_condition_keeps_the_time_at_which_its_status_changed() -> None:
    bench = Bench(rule())
    bench.statuses.on_report(PE, RulesReport({"dear": ACTIVE}))
    bench.write()
    bench.now += 500
    bench.statuses.on_report(PE, RulesReport({"dear": replace(ACTIVE, state="disabled")}))
    write = bench.write()

    assert write is not None
    times = {c["type"]: c["lastTransitionTime"] for c in write.status["conditions"]}
    assert times["Accepted"] < times["Active"] == times["Ready"]


def test_who_begins_to_lead_leaves_what_stands_there_until_it_hears() -> None:
    bench = Bench(rule())
    bench.statuses.on_report(PE, RulesReport({"dear": ACTIVE}))
    bench.write()
    stands = bench.objects["u1"]

    bench.statuses = bench.fresh()
    bench.statuses.observe(stands, listed=True)

    assert bench.statuses.build((RULE, "u1")) is None
    assert bench.statuses.published_status("u1") == ACTIVE


@pytest.mark.parametrize("message", ["no", "no.", "no...", "x" * 2000, "x" * 2000 + "."])
def test_who_begins_to_lead_leaves_a_refusal_as_it_stands(message: str) -> None:
    bench = Bench(rule())
    refusal = replace(ACTIVE, reason="FieldUnknown", message=message)
    bench.statuses.on_report(PE, RulesReport({"dear": refusal}))
    bench.write()
    stands = bench.objects["u1"]

    bench.statuses = bench.fresh()
    bench.statuses.observe(stands, listed=True)

    assert bench.statuses.build((RULE, "u1")) is None
    shown = bench.statuses.published_status("u1")
    assert shown is not None
    assert (shown.message == message) is (len(message) < 1000)


def test_a_rival_and_what_cannot_be_read_have_their_reasons_and_what_is_gone_none() -> None:
    bench = Bench(rule("u1", created=1.0), rule("u2", created=2.0))
    bench.statuses.on_report(PE, RulesReport({"dear": ACTIVE}))
    bad = Unreadable(
        kind=RULE, uid="u3", version=20, namespace="n", name="x", code="Bad", problem="why"
    )
    bench.publish(bad)

    assert bench.conditions("u2")["Accepted"] == ("False", "IdTaken")
    assert bench.conditions("u2")["Active"] == ("Unknown", "NotHeard")
    assert bench.conditions("u3")["Accepted"] == ("False", "Bad")
    bench.publish(RuleRemoved(uid="u1", version=30))
    assert bench.statuses.build((RULE, "u1")) is None
    assert bench.conditions("u2")["Accepted"] == ("True", "Accepted")


def test_a_rule_that_cannot_be_read_is_looked_at_before_ports_were_listed() -> None:
    bench = Bench()
    bench.board = Board()
    bench.statuses = bench.fresh()
    bad = Unreadable(
        kind=RULE, uid="u3", version=20, namespace="n", name="x", code="Bad", problem="why"
    )
    bench.statuses.on_actions(bad, ())

    assert bench.offers == [((RULE, "u3"), False)]


def test_people_are_informed_once_of_a_rule_that_is_refused_or_off() -> None:
    bench = Bench(rule())
    bench.conditions()
    assert bench.notes == []
    bench.statuses.on_report(
        PE, RulesReport({"dear": replace(ACTIVE, reason="FieldUnknown", message="no")})
    )
    bench.conditions()
    bench.statuses.on_report(PE, RulesReport({"dear": replace(ACTIVE, state="disabled")}))
    bench.conditions()
    bench.statuses.on_report(
        PE, RulesReport({"dear": replace(ACTIVE, state="disabled", matches=9)})
    )
    bench.now += COUNTS_S
    bench.conditions()

    assert [(note.event_type, note.reason) for note in bench.notes] == [
        ("Warning", "FieldUnknown"),
        ("Normal", "Accepted"),
        ("Warning", "Disabled"),
    ]
    assert bench.notes[0].text == "The job refuses it: no."
    assert {note.kind for note in bench.notes} == {RULE}


def test_a_rule_that_the_broker_refuses_at_once_is_reported_also_if_the_watch_is_first() -> None:
    bench = Bench(rule(where="price >"))
    write = bench.statuses.build((RULE, "u1"))
    assert write is not None
    bench.version += 1
    answer = bench.written(write)
    bench.statuses.observe(answer, False)
    bench.statuses.on_written(write, answer)

    ((weight, reason),) = [(note.event_type, note.reason) for note in bench.notes]
    assert (weight, reason) == ("Warning", "RuleInvalid")
