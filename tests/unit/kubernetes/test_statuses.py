"""The desk of the writer: which statuses to look at, and what stands there by now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from streambroker_core.board import (
    Action,
    AgentRegistered,
    Board,
    BoardEvent,
    ExportApplied,
    ExportRemoved,
    FeedAdvanced,
    FeedLost,
    ImportApplied,
    PeWithdrawn,
    Synced,
    Unreadable,
)
from streambroker_core.model import Export, Import
from streambroker_core.wire.broker.ended_exports import EndedExports
from streambroker_core.wire.reports.health import Health, HealthState
from streambroker_core.wire.reports.schema_status import NO_VERSION, SchemaStatus
from streambroker_core.wire.reports.storage_status import StorageStatus
from streambroker_operator.kubernetes.client.documents import ObjectMetadata
from streambroker_operator.kubernetes.replicas.agent_reports import (
    DamageReport,
    EndsReport,
    HealthReport,
    SchemaReport,
    StorageReport,
    ViewReport,
)
from streambroker_operator.kubernetes.status.port_reconciler import PortReconciler
from streambroker_operator.kubernetes.status.writer import Name, StatusWrite
from support.core.resources import export_of, import_of, pe, registration

FEED = replace(export_of(), name="feed-trades")
ALERTS = replace(import_of(), name="alerts-trades")
OTHER = replace(import_of("other/news", subscription='kind == "news"'), name="other-news")
EXPORT: Name = ("Export", FEED.uid)
IMPORT: Name = ("Import", ALERTS.uid)
NEWS: Name = ("Import", OTHER.uid)


class Bench:
    """A desk over a board with a stream, and what was offered since it was asked last."""

    def __init__(self) -> None:
        self.board = Board()
        self.offers: list[tuple[Name, bool]] = []
        self.version = 100
        self.now = 1000.0
        self.turned: list[Name] = []
        self.statuses = PortReconciler(
            self.board.reader,
            lambda name, urgent: self.offers.append((name, urgent)),
            on_port_state=self.turned.append,
            clock=lambda: self.now,
            monotonic=lambda: self.now,
        )
        self.list(FEED, ALERTS, OTHER)

    def apply(self, event: BoardEvent) -> list[Action]:
        actions = self.board.handle(event)
        self.statuses.on_actions(event, actions)
        return actions

    def list(self, *resources: Export | Import) -> None:
        self.version += 1
        exports = tuple((r, self.version) for r in resources if isinstance(r, Export))
        imports = tuple((r, self.version) for r in resources if isinstance(r, Import))
        for resource in resources:
            kind = "Export" if isinstance(resource, Export) else "Import"
            self.look(kind, resource.uid, None, listed=True)
        self.apply(Synced(kind="Export", listed=exports, version=self.version))
        self.apply(Synced(kind="Import", listed=imports, version=self.version))

    def look(self, kind: Any, uid: str, status: Any, *, listed: bool = False) -> None:
        metadata: ObjectMetadata = {"uid": uid, "resourceVersion": str(self.version)}
        self.statuses.observe(kind, {"metadata": metadata, "status": status}, listed)

    def asked(self) -> dict[Name, bool]:
        found, self.offers = dict(self.offers), []
        return found

    def write(self, name: Name) -> StatusWrite | None:
        """Write a status, if there is one to write, as the API server would take it."""
        write = self.statuses.build(name)
        if write is not None:
            self.version += 1
            metadata: ObjectMetadata = {"uid": write.uid, "resourceVersion": str(self.version)}
            self.statuses.on_written(write, {"metadata": metadata, "status": write.status})
        return write

    def poll(self, job: str) -> None:
        view = self.board.reader.view(pe(job))
        assert view is not None
        self.statuses.on_report(pe(job), ViewReport(view.version))

    def say(self, *ports: str, ago_s: float = 0.0, instance: str | None = None) -> None:
        """Tell which of the exporter's ports have ended."""
        ends = EndedExports(ports=frozenset(ports))
        self.statuses.on_report(pe("feed"), EndsReport(ends, ago_s=ago_s, instance=instance))

    def ended(self) -> Sequence[str]:
        """Write what was offered; return which Exports were written, and how each has ended."""
        writes = [write for name in self.asked() if (write := self.write(name)) is not None]
        return [
            next((c["reason"] for c in w.status["conditions"] if c["type"] == "Ended"), "")
            for w in writes
            if w.kind == "Export"
        ]

    def written(self) -> Mapping[str, str]:
        """Write what was offered; return whose `Programmed` says what."""
        writes = [write for name in self.asked() if (write := self.write(name)) is not None]
        return {write.name: reason(write, "Programmed") for write in writes}

    def change(self, import_: Import) -> None:
        self.version += 1
        self.apply(ImportApplied(import_=import_, version=self.version))


def reason(write: StatusWrite | None, condition: str) -> str:
    assert write is not None
    return str(next(c["reason"] for c in write.status["conditions"] if c["type"] == condition))


def test_a_list_has_everything_looked_at() -> None:
    assert set(Bench().asked()) == {EXPORT, IMPORT, NEWS}


def test_a_change_has_both_ends_looked_at_and_no_others() -> None:
    bench = Bench()
    bench.asked()

    bench.change(replace(ALERTS, generation=2, subscription='kind == "news"'))

    assert set(bench.asked()) == {EXPORT, IMPORT}


def test_a_change_that_moves_no_route_has_its_own_status_looked_at() -> None:
    bench = Bench()
    bench.write(NEWS)
    bench.asked()

    bench.change(replace(OTHER, generation=2, subscription='kind == "none"'))

    assert NEWS in bench.asked()
    write = bench.write(NEWS)
    assert write is not None
    assert write.status["observedGeneration"] == 2


def test_what_breaks_is_urgent() -> None:
    bench = Bench()
    bench.asked()

    bench.change(replace(ALERTS, generation=2, subscription="kind =="))

    assert bench.asked()[IMPORT]


def test_what_was_written_stands_there_though_the_watch_has_not_shown_it() -> None:
    bench = Bench()
    before = bench.version

    assert bench.write(NEWS) is not None
    assert bench.write(NEWS) is None

    bench.version = before
    bench.look("Import", OTHER.uid, None)
    assert bench.write(NEWS) is None


def test_a_list_is_believed_before_what_was_answered() -> None:
    bench = Bench()
    bench.write(NEWS)

    bench.version -= 1
    bench.look("Import", OTHER.uid, None, listed=True)

    assert bench.write(NEWS) is not None


def test_what_comes_back_as_it_was_written_asks_for_nothing() -> None:
    bench = Bench()
    write = bench.write(NEWS)
    assert write is not None
    bench.asked()

    bench.look("Import", OTHER.uid, write.status)
    bench.apply(FeedAdvanced(kind="Import", version=bench.version, uid=OTHER.uid))

    assert bench.asked() == {}


def test_what_somebody_else_has_written_is_looked_at() -> None:
    bench = Bench()
    write = bench.write(NEWS)
    assert write is not None
    bench.asked()

    bench.version += 1
    bench.look("Import", OTHER.uid, {**write.status, "matches": 7})

    assert set(bench.asked()) == {NEWS}
    assert bench.write(NEWS) is not None


def test_a_resource_that_is_gone_is_not_written_and_not_remembered() -> None:
    bench = Bench()
    bench.version += 1
    bench.apply(ExportRemoved(uid=FEED.uid, version=bench.version))
    bench.asked()

    assert bench.statuses.build(EXPORT) is None
    bench.statuses.offer_all()
    assert set(bench.asked()) == {IMPORT, NEWS}


def test_what_a_list_leaves_out_is_forgotten() -> None:
    bench = Bench()
    bench.list(FEED, ALERTS)
    bench.asked()

    bench.statuses.offer_all()

    assert set(bench.asked()) == {EXPORT, IMPORT}


def test_an_answer_about_another_resource_of_the_name_changes_nothing() -> None:
    bench = Bench()
    write = bench.statuses.build(NEWS)
    assert write is not None

    metadata: ObjectMetadata = {"uid": "another", "resourceVersion": "999"}
    bench.statuses.on_written(write, {"metadata": metadata, "status": write.status})

    assert bench.statuses.build(NEWS) is not None


def test_an_agent_that_registers_and_polls_has_the_ends_of_its_routes_looked_at() -> None:
    bench = Bench()
    bench.asked()
    said = [reason(bench.write(IMPORT), "Programmed")]
    for job in ("feed", "alerts"):
        bench.apply(AgentRegistered(pe=pe(job), registration=registration(), version=1))
    assert set(bench.asked()) >= {EXPORT, IMPORT}
    said.append(reason(bench.write(IMPORT), "Programmed"))

    for job in ("feed", "alerts"):
        view = bench.board.reader.view(pe(job))
        assert view is not None
        bench.statuses.on_report(pe(job), ViewReport(view.version))
    assert set(bench.asked()) == {EXPORT, IMPORT}
    said.append(reason(bench.write(IMPORT), "Programmed"))

    assert said == ["NoAgent", "NotHeard", "Programmed"]


def running() -> Bench:
    """Return a desk that leads, whose agents have asked and whose statuses are written."""
    bench = Bench()
    bench.statuses.on_leader_change(True)
    for job in ("feed", "alerts"):
        bench.apply(AgentRegistered(pe=pe(job), registration=registration(), version=1))
        bench.poll(job)
    bench.written()
    return bench


def test_an_agent_that_goes_and_comes_back_costs_each_end_one_write_for_either() -> None:
    bench = running()
    bench.now += 60.0
    bench.poll("feed")
    bench.statuses.offer_away()
    reported = [bench.written()]
    for _ in range(3):
        bench.now += 30.0
        bench.poll("feed")
        bench.statuses.offer_away()
        reported.append(bench.written())
    bench.poll("alerts")
    reported.append(bench.written())
    bench.statuses.offer_all()

    ends = "alerts-trades", "feed-trades"
    away, back = (dict.fromkeys(ends, word) for word in ("AgentAway", "Programmed"))
    assert reported == [{}, away, {}, {}, back]
    assert bench.written() == {}


def silent(bench: Bench, *jobs: str) -> dict[str, str]:
    """Let time pass in which these jobs say nothing; return how each agent is."""
    bench.now += 60.0
    for job in {"feed", "alerts"}.difference(jobs):
        bench.poll(job)
    bench.now += 60.0
    bench.statuses.offer_away()
    return {job: bench.statuses.agent_state(pe(job)) for job in ("feed", "alerts")}


def test_an_agent_that_is_away_is_missed_while_somebody_who_is_there_reads_of_it() -> None:
    assert silent(running(), "feed") == {"feed": "away", "alerts": "current"}


def test_nobody_misses_who_only_reads() -> None:
    assert silent(running(), "alerts") == {"feed": "current", "alerts": "gone"}


def test_of_a_pipeline_that_has_finished_nobody_is_missed() -> None:
    assert silent(running(), "feed", "alerts") == {"feed": "gone", "alerts": "gone"}


def test_an_exporter_that_has_reported_its_end_is_not_missed() -> None:
    bench = running()
    bench.say("trades")
    assert bench.ended() == ["Finished"]
    assert silent(bench, "feed") == {"feed": "gone", "alerts": "current"}
    bench.poll("feed")
    assert bench.statuses.agent_state(pe("feed")) == "current"


def test_an_exporter_whose_importers_never_had_an_agent_is_not_missed() -> None:
    bench = Bench()
    bench.statuses.on_leader_change(True)
    bench.apply(AgentRegistered(pe=pe("feed"), registration=registration(), version=1))
    bench.poll("feed")
    bench.now += 120.0
    bench.statuses.offer_away()
    assert bench.statuses.agent_state(pe("feed")) == "gone"


def test_another_who_leads_says_nothing_new_of_who_is_away() -> None:
    bench = running()
    bench.now += 100.0
    bench.poll("feed")
    bench.statuses.offer_away()
    assert bench.written()

    reported: dict[str, str] = {}
    bench.statuses.on_leader_change(False)
    bench.now += 5.0
    bench.statuses.on_leader_change(True)
    for _ in range(5):
        bench.statuses.offer_all()
        reported.update(bench.written())
        bench.now += 30.0
        bench.poll("feed")
        bench.statuses.offer_away()
        reported.update(bench.written())

    assert reported == {}
    bench.poll("alerts")
    assert set(bench.written().values()) == {"Programmed"}


def test_another_instance_keeps_what_is_shown_until_it_asks_or_is_away() -> None:
    bench = running()
    other = replace(registration(), instance="f" * 16)
    bench.apply(AgentRegistered(pe=pe("alerts"), registration=other, version=2))
    assert bench.written() == {}

    bench.now += 95.0
    bench.poll("feed")
    bench.statuses.offer_away()
    assert set(bench.written().values()) == {"AgentAway"}


# ---- ends ------------------------------------------------------------------------------------


def test_an_end_is_written_once_and_taken_back_once() -> None:
    bench = running()
    said = []
    for ports in ([], ["trades"], ["trades"], ["trades", "other"], [], []):
        bench.say(*ports)
        said.append(bench.ended())

    assert said == [[], ["Finished"], [], [], [""], []]
    assert bench.turned == [EXPORT, EXPORT]


def test_an_end_leaves_the_stream_ready_and_the_other_times_as_they_are() -> None:
    bench = running()
    bench.statuses.offer(EXPORT)
    before = bench.statuses._published.get(EXPORT).since
    bench.say("trades")
    bench.statuses.offer(EXPORT)
    bench.now += 100
    write = bench.write(EXPORT)

    assert write is not None
    assert {c["type"]: c["status"] for c in write.status["conditions"]} == {
        **dict.fromkeys(("Accepted", "Matched", "Programmed", "Ready", "Ended"), "True")
    }
    assert bench.statuses._published.get(EXPORT).since[: len(before)] == before


def test_who_begins_to_lead_leaves_an_end_until_it_has_heard() -> None:
    bench = running()
    bench.say("trades")
    bench.ended()
    bench.statuses.on_leader_change(False)
    bench.say()  # by a poll that came here, before others that did not
    bench.statuses.on_leader_change(True)
    bench.statuses.offer_all()
    heard_nothing = bench.ended()
    bench.say("trades")
    bench.statuses.offer_all()
    heard_the_same = bench.ended()
    bench.say()

    assert (heard_nothing, heard_the_same, bench.ended()) == ([], [], [""])


def test_another_process_leaves_an_end_that_is_written_and_takes_it_back() -> None:
    bench = running()
    bench.say("trades")
    write = next(w for name in bench.asked() if (w := bench.write(name)) is not None)
    another = Bench()
    another.look("Export", FEED.uid, write.status, listed=True)
    another.statuses.on_leader_change(True)
    for job in ("feed", "alerts"):
        another.apply(AgentRegistered(pe=pe(job), registration=registration(), version=1))
        another.poll(job)

    assert another.ended() == []
    assert another.statuses.published_facts(EXPORT).ended
    another.say()
    assert another.ended() == [""]


def test_an_earlier_word_that_comes_late_takes_nothing_back() -> None:
    bench = running()
    bench.now += 10
    bench.say("trades")
    bench.say(ago_s=5.0)
    said = [bench.ended()]
    bench.say(ago_s=0.0)
    said.append(bench.ended())

    assert said == [["Finished"], [""]]


def test_a_replica_is_believed_of_the_instance_that_is_registered_alone() -> None:
    bench = running()
    bench.say("trades", instance="f" * 16)
    said = [bench.ended()]
    bench.say("trades", instance=registration().instance)
    said.append(bench.ended())

    assert said == [[], ["Finished"]]


def test_another_instance_of_an_agent_leaves_the_end_until_it_tells() -> None:
    bench = running()
    bench.say("trades")
    said = [bench.ended()]
    other = replace(registration(), instance="f" * 16)
    bench.apply(AgentRegistered(pe=pe("feed"), registration=other, version=2))
    said.append(bench.ended())
    bench.say()
    said.append(bench.ended())

    assert said == [["Finished"], [], [""]]


def test_of_a_port_that_is_not_named_among_very_many_nothing_changes() -> None:
    bench = running()
    some = EndedExports(ports=frozenset({"a"}), more=True)
    bench.statuses.on_report(pe("feed"), EndsReport(some))
    said = [bench.ended()]
    bench.say("trades")
    said.append(bench.ended())
    bench.statuses.on_report(pe("feed"), EndsReport(some))
    said.append(bench.ended())

    assert said == [[], ["Finished"], []]


def test_an_end_that_was_reported_before_the_resource_came_is_written_with_it() -> None:
    bench = running()
    bench.say("late")
    assert bench.ended() == []
    late = replace(export_of("feed/late"), name="feed-late")
    bench.version += 1
    bench.apply(ExportApplied(export=late, version=bench.version))

    assert bench.ended() == ["Finished"]


def test_an_end_is_not_reported_of_who_lost_the_port() -> None:
    bench = running()
    bench.say("trades")
    bench.ended()
    second = replace(export_of(uid="second", created=9.0), name="second")
    bench.version += 1
    bench.apply(ExportApplied(export=second, version=bench.version))

    assert bench.ended() == [""]


def test_an_end_that_somebody_removes_is_written_again() -> None:
    bench = running()
    bench.say("trades")
    write = next(w for name in bench.asked() if (w := bench.write(name)) is not None)
    bench.version += 1
    bench.look("Export", FEED.uid, {**write.status, "conditions": write.status["conditions"][:4]})

    assert bench.turned == [EXPORT, EXPORT]
    assert bench.ended() == ["Finished"]


def test_ends_of_a_pe_that_has_no_view_are_no_fault() -> None:
    bench = running()
    bench.statuses.on_report(pe("nobody"), EndsReport(EndedExports()))

    assert bench.ended() == []


HOLE = {"trades": "epochs 3 to 5 of stream s (30 rows) are missing."}


def damaged(bench: Bench) -> list[str]:
    """Write what was offered; return what each Export that was written says of damage."""
    writes = [write for name in bench.asked() if (write := bench.write(name)) is not None]
    return [
        next((c["message"] for c in w.status["conditions"] if c["type"] == "Damaged"), "")
        for w in writes
        if w.kind == "Export"
    ]


def test_damage_that_an_agent_reports_is_a_condition_until_it_reports_none() -> None:
    bench = running()
    bench.statuses.on_report(pe("feed"), DamageReport(HOLE))
    assert damaged(bench) == [HOLE["trades"]]
    bench.statuses.on_report(pe("feed"), DamageReport(HOLE))
    assert damaged(bench) == []
    bench.statuses.on_report(pe("feed"), DamageReport({}))
    assert damaged(bench) == [""]
    assert bench.turned == [EXPORT, EXPORT]


def test_another_who_leads_keeps_what_is_written_of_damage_until_the_agent_reports() -> None:
    bench = running()
    bench.statuses.on_report(pe("feed"), DamageReport(HOLE))
    damaged(bench)
    bench.statuses.on_leader_change(True)
    bench.statuses.offer_all()
    assert damaged(bench) == []
    bench.statuses.on_report(pe("feed"), DamageReport({}))
    assert damaged(bench) == [""]


def test_damage_that_an_earlier_instance_reported_is_passed_over() -> None:
    bench = running()
    bench.statuses.on_report(pe("feed"), DamageReport(HOLE, ago_s=0.5, instance="another instance"))
    assert damaged(bench) == []


UNAVAILABLE = StorageStatus(error="it fails.")


def uploads(bench: Bench, storage: StorageStatus, **how: Any) -> list[str]:
    """Report uploads and write what was offered; return `Stored` of each Export written."""
    bench.statuses.on_report(pe("feed"), StorageReport({"trades": storage}, **how))
    return stored(bench)


def stored(bench: Bench) -> list[str]:
    writes = [write for name in bench.asked() if (write := bench.write(name)) is not None]
    return [
        next((f"{c['status']} {c['reason']}" for c in found if c["type"] == "Stored"), "")
        for found in (w.status["conditions"] for w in writes if w.kind == "Export")
    ]


def test_uploads_are_a_condition_that_is_written_for_transitions() -> None:
    bench = running()
    reported = [
        *(StorageStatus(bytes=5), StorageStatus(bytes=9_000, seconds=50)),
        *(StorageStatus(seconds=60), StorageStatus(seconds=599), UNAVAILABLE, StorageStatus()),
    ]
    assert [uploads(bench, one) for one in reported] == [
        *(["True UpToDate"], [], ["False Behind"], []),
        *(["False StorageUnavailable"], ["True UpToDate"]),
    ]
    assert bench.turned == [EXPORT] * 4


def test_the_condition_of_uploads_leaves_an_export_ready() -> None:
    bench = running()
    bench.statuses.on_report(pe("feed"), StorageReport({"trades": UNAVAILABLE}))
    write = next(w for name in bench.asked() if (w := bench.write(name)) is not None)
    by_type = {c["type"]: c for c in write.status["conditions"]}
    assert by_type["Ready"]["status"] == "True"
    assert by_type["Stored"]["message"].startswith("it fails. Less than 64 KiB are not uploaded.")


def test_an_export_without_storage_has_no_such_condition_unless_it_demands_storage() -> None:
    bench = running()
    assert uploads(bench, StorageStatus(exists=False)) == []
    bench.version += 1
    bench.apply(ExportApplied(export=replace(FEED, durability="stored"), version=bench.version))
    assert stored(bench) == ["False StorageMissing"]
    assert uploads(bench, StorageStatus()) == ["True UpToDate"]


def test_another_who_leads_keeps_what_is_written_of_uploads_until_the_agent_reports() -> None:
    bench = running()
    assert uploads(bench, UNAVAILABLE) == ["False StorageUnavailable"]
    bench.statuses.on_leader_change(True)
    bench.statuses.offer_all()
    assert stored(bench) == []
    assert uploads(bench, StorageStatus(), instance="another instance") == []
    assert uploads(bench, StorageStatus()) == ["True UpToDate"]


FAILED = HealthState(reason="DataLoss", message="A query failed.")


def health(bench: Bench, job: str, report: Health, **how: Any) -> list[tuple[str, str]]:
    """Report health and write what was offered; return `Healthy` of each port written."""
    bench.statuses.on_report(pe(job), HealthReport(report, **how))
    writes = [write for name in bench.asked() if (write := bench.write(name)) is not None]
    found = [(w.kind, {c["type"]: c for c in w.status["conditions"]}) for w in writes]
    shown = [(kind, types.get("Healthy")) for kind, types in found]
    return [(kind, f"{c['status']} {c['reason']}" if c else "") for kind, c in shown]


def test_health_is_a_condition_of_both_kinds_that_is_written_for_changes() -> None:
    bench = running()
    failed = Health(problems={("Import", ALERTS.key.port): FAILED})
    worse = Health(problems={("Export", FEED.key.port): FAILED})
    assert health(bench, "feed", Health()) == [("Export", "True AsExpected")]
    assert health(bench, "feed", worse) == [("Export", "False DataLoss")]
    assert health(bench, "feed", Health()) == [("Export", "True AsExpected")]
    reported = [health(bench, "alerts", one) for one in (failed, failed, Health(), Health())]
    imports = [[found for found in one if found[1]] for one in reported]
    assert imports[0][:1] == [("Import", "False DataLoss")]
    assert imports[1] == []
    assert imports[2][:1] == [("Import", "True AsExpected")]
    assert imports[3] == []


def test_the_condition_of_health_leaves_a_port_ready() -> None:
    bench = running()
    failed = Health(problems={("Import", ALERTS.key.port): FAILED})
    bench.statuses.on_report(pe("alerts"), HealthReport(failed))
    write = bench.write(IMPORT)
    assert write is not None
    by_type = {c["type"]: c for c in write.status["conditions"]}
    assert by_type["Ready"]["status"] == "True"
    assert by_type["Healthy"]["message"] == FAILED.message
    facts = bench.statuses.published_facts(IMPORT)
    assert facts.healthy == FAILED


def test_an_agent_of_an_earlier_release_takes_the_condition_of_health_away() -> None:
    bench = running()
    assert health(bench, "feed", Health(is_reported=False)) == []
    assert health(bench, "feed", Health()) == [("Export", "True AsExpected")]
    assert health(bench, "feed", Health(is_reported=False)) == [("Export", "")]


def test_another_who_leads_keeps_what_is_written_of_health_until_the_agent_reports() -> None:
    bench = running()
    worse = Health(problems={("Export", FEED.key.port): FAILED})
    assert health(bench, "feed", worse) == [("Export", "False DataLoss")]
    bench.statuses.on_leader_change(True)
    bench.statuses.offer_all()
    assert health(bench, "feed", Health(), instance="another instance") == []
    assert health(bench, "feed", Health()) == [("Export", "True AsExpected")]


def test_a_pe_that_is_withdrawn_has_no_condition_of_health_left() -> None:
    bench = running()
    worse = Health(problems={("Export", FEED.key.port): FAILED})
    assert health(bench, "feed", worse) == [("Export", "False DataLoss")]
    bench.apply(PeWithdrawn(pe=pe("feed"), version=bench.version))
    write = bench.write(EXPORT)
    assert write is not None
    assert "Healthy" not in {c["type"] for c in write.status["conditions"]}


SECOND = SchemaStatus(number=2, since="2026-11-30T06:00:00Z")


def versions(bench: Bench, *schemas: SchemaStatus, **how: Any) -> list[Any]:
    """Report versions and write what was offered; return `schemaVersion` of each Export written."""
    for schema in schemas:
        bench.statuses.on_report(pe("feed"), SchemaReport({"trades": schema}, **how))
    writes = [write for name in bench.asked() if (write := bench.write(name)) is not None]
    return [write.status.get("schemaVersion") for write in writes if write.kind == "Export"]


def test_the_version_of_the_columns_is_written_once_when_it_changes() -> None:
    bench = running()
    first = SchemaStatus(number=1)
    reported = [NO_VERSION, first, first, SECOND, SECOND, NO_VERSION]
    assert [versions(bench, one) for one in reported] == [
        *([], [{"number": 1}], [], [{"number": 2, "since": SECOND.since}], [], [None])
    ]
    assert bench.turned == [EXPORT] * 3


def test_another_leader_keeps_the_published_version_until_the_agent_reports() -> None:
    bench = running()
    assert versions(bench, SECOND) == [{"number": 2, "since": SECOND.since}]
    bench.statuses.on_leader_change(True)
    bench.statuses.offer_all()
    assert versions(bench) == []
    assert versions(bench, NO_VERSION, instance="another instance") == []
    assert versions(bench, SchemaStatus(number=3)) == [{"number": 3}]


def test_other_changes_of_a_status_keep_the_version() -> None:
    bench = running()
    versions(bench, SECOND)
    bench.statuses.on_report(pe("feed"), DamageReport(HOLE))
    assert versions(bench) == [{"number": 2, "since": SECOND.since}]


def test_a_ring_of_waiting_jobs_is_a_condition_at_both_ends() -> None:
    bench = running()
    back = import_of("feed/news", subscription='kind == "answer"')
    answers = export_of("alerts/answers", properties={"kind": "answer"})
    bench.version += 2
    bench.apply(ExportApplied(export=answers, version=bench.version - 1))
    bench.apply(ImportApplied(import_=back, version=bench.version))
    writes = [write for name in bench.asked() if (write := bench.write(name)) is not None]
    found = {
        (w.kind, w.uid): c for w in writes for c in w.status["conditions"] if c["type"] == "InRing"
    }
    assert len(found) == 4
    assert {c["reason"] for c in found.values()} == {"WaitsInRing"}
    assert all(" waits for " in c["message"] for c in found.values())


def test_what_cannot_be_read_has_a_status_too() -> None:
    bench = Bench()
    bench.asked()
    bench.version += 1
    bench.look("Import", "odd", None)
    bench.apply(
        Unreadable(
            kind="Import",
            uid="odd",
            version=bench.version,
            namespace="default",
            name="odd",
            generation=4,
            code="ManifestInvalid",
            problem="spec.pe is no number.",
        )
    )

    assert bench.asked() == {("Import", "odd"): True}
    write = bench.write(("Import", "odd"))
    assert reason(write, "Accepted") == "ManifestInvalid"
    assert write is not None
    assert (write.name, write.status["observedGeneration"]) == ("odd", 4)
    assert "Held" not in {each["type"] for each in write.status["conditions"]}


def test_an_import_of_which_nothing_known_runs_is_held_and_says_so() -> None:
    bench = Bench()
    odd = import_of("odd/in", uid="odd", subscription='kind == "trade"')
    name: Name = ("Import", "odd")
    bench.look("Import", "odd", None)
    bench.change(
        replace(odd, name="odd", generation=2, subscription="kind = 1", earlier_unknown=True)
    )
    write = bench.write(name)
    assert write is not None
    assert reason(write, "Accepted") == "SubscriptionInvalid"
    assert reason(write, "Held") == "EarlierUnknown"
    assert "accepted" not in write.status


def test_a_generation_that_no_status_has_is_remembered_until_one_has_it() -> None:
    bench = Bench()
    bench.change(replace(ALERTS, generation=2, subscription='kind = "trade"'))
    assert bench.statuses.must_write(IMPORT)
    write = bench.write(IMPORT)
    assert write is not None
    assert write.status["accepted"]["generation"] == 1
    assert not bench.statuses.must_write(IMPORT)
    assert not bench.statuses.must_write(EXPORT)


def test_a_lost_feed_changes_no_status() -> None:
    bench = Bench()
    for name in (EXPORT, IMPORT, NEWS):
        bench.write(name)
    bench.asked()

    bench.apply(FeedLost(kind="Import"))

    assert bench.asked() == {}
    assert [bench.write(name) for name in (EXPORT, IMPORT, NEWS)] == [None, None, None]


def test_before_both_kinds_are_read_nothing_is_written_and_then_everything() -> None:
    board = Board()
    offers: list[Name] = []
    statuses = PortReconciler(board.reader, lambda name, urgent: offers.append(name))
    for name in (EXPORT, IMPORT):
        metadata: ObjectMetadata = {"uid": name[1], "resourceVersion": "1"}
        statuses.observe(name[0], {"metadata": metadata}, True)
    first = Synced(kind="Export", listed=((FEED, 1),), version=1)
    statuses.on_actions(first, board.handle(first))

    assert offers == []
    assert statuses.build(EXPORT) is None

    second = Synced(kind="Import", listed=((ALERTS, 1),), version=1)
    statuses.on_actions(second, board.handle(second))

    assert set(offers) == {EXPORT, IMPORT}
    assert statuses.build(EXPORT) is not None
