"""What a feed makes of lists, events and sweeps, however they come: the board is what is there."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from streambroker_core.board import (
    Board,
    ExportApplied,
    ExportRemoved,
    FeedAdvanced,
    FeedLost,
    ImportApplied,
    ImportRemoved,
    Synced,
    Unreadable,
)
from streambroker_core.model import Kind
from streambroker_core.wire.manifests.ports import write_spec
from streambroker_operator.kubernetes.watch.observed_cache import (
    ObservedCache,
    _applied_event,
    object_ref,
    parse_object,
    read_entry,
)
from support.kubernetes.object_store import KINDS, Object, ObjectStore, World

Step = tuple[str, Kind, int, int]

WRITES = ("write", "write", "write", "touch", "delete", "write_statuses")
FEED = ("deliver", "deliver", "deliver", "ask", "ask", "arrive", "arrive", "mix", "gap")


def steps(*more: str) -> st.SearchStrategy[list[Step]]:
    """Draw what happens: to the server, to its watches, to lists under way, and more."""
    return st.lists(
        st.tuples(
            st.sampled_from((*WRITES, *FEED, *more)),
            st.sampled_from(KINDS),
            st.integers(0, 2),
            st.integers(0, 2),
        ),
        max_size=30,
    )


@dataclass
class Answer:
    """A list on its way."""

    bodies: list[Object]
    version: int
    asked_at: int
    session: int
    whole: bool


@dataclass
class Rig:
    """A server, a feed of both kinds that hears of it late and in part, and the board."""

    store: ObjectStore = field(default_factory=ObjectStore)
    board: Board = field(default_factory=Board)
    feeds: dict[Kind, ObservedCache] = field(
        default_factory=lambda: {k: ObservedCache(k) for k in KINDS}
    )
    pending: dict[Kind, list[tuple[str, Object]]] = field(
        default_factory=lambda: {k: [] for k in KINDS}
    )
    asked: dict[Kind, Answer] = field(default_factory=dict)
    copy: tuple[int, World] = (0, {})

    def __post_init__(self) -> None:
        for kind in KINDS:
            self.relist(kind)

    # ---- what happens ----------------------------------------------------

    def step(self, step: Step) -> None:
        """Do one thing, and see that nothing went that is still there."""
        action, kind, place, variant = step
        before = self.shown() & set(self.store.world)
        current = {uid: self.store.world[uid]["spec"] for uid in before if self.is_current(uid)}
        routes = [
            r for r in self.board.reader.routes() if {r.export_uid, r.import_uid} <= set(current)
        ]
        getattr(self, action)(kind, place, variant)

        world = self.store.world
        assert (before & set(world)) - self.unread() <= self.shown()
        same = {uid for uid, spec in current.items() if uid in world and world[uid]["spec"] == spec}
        left = self.board.reader.routes()
        assert [r for r in routes if {r.export_uid, r.import_uid} <= same and r not in left] == []

    def is_current(self, uid: str) -> bool:
        body = self.store.world[uid]
        return self.board.reader.get(body["kind"], uid) == read_entry(
            body["kind"], parse_object(body)
        )

    def write(self, kind: Kind, place: int, variant: int) -> None:
        self.pending[kind].append(self.store.write(kind, f"n{place}", variant))

    def write_here(self, kind: Kind, place: int, variant: int) -> None:
        """Write through this broker, whose board sees the answer ahead of the feed."""
        if variant == 2:  # refused before it is written
            return
        self.write(kind, place, variant)
        body = self.pending[kind][-1][1]
        event = _applied_event(read_entry(kind, parse_object(body)), object_ref(body).version)
        assert isinstance(event, ExportApplied | ImportApplied)
        self.publish([replace(event, ahead_of_feed=True)])

    def delete_here(self, kind: Kind, place: int, _: int) -> None:
        """Delete through this broker, which gets no version of the deletion."""
        found = self.store.find(kind, f"n{place}")
        if found is None:
            return
        uid = found["metadata"]["uid"]
        known = self.board.reader.version_of(kind, uid)
        self.pending[kind].append(self.store.delete(uid))
        removed = ExportRemoved if kind == "Export" else ImportRemoved
        self.publish([removed(uid=uid, version=known, ahead_of_feed=True)])

    def touch(self, kind: Kind, place: int, _: int) -> None:
        found = self.store.find(kind, f"n{place}")
        if found is not None:
            self.pending[kind].append(self.store.touch(found["metadata"]["uid"]))

    def delete(self, kind: Kind, place: int, _: int) -> None:
        found = self.store.find(kind, f"n{place}")
        if found is not None:
            self.pending[kind].append(self.store.delete(found["metadata"]["uid"]))

    def deliver(self, kind: Kind, place: int, _: int) -> None:
        """Let the first events arrive."""
        for _ in range(min(place + 1, len(self.pending[kind]))):
            self.hear(kind, *self.pending[kind].pop(0))

    def mix(self, kind: Kind, place: int, _: int) -> None:
        """Let an event wait behind the next one of another object, and come twice."""
        pending = self.pending[kind]
        if place + 1 < len(pending):
            first, second = pending[place], pending[place + 1]
            if first[1]["metadata"]["uid"] != second[1]["metadata"]["uid"]:
                pending[place], pending[place + 1] = second, first
            pending.append(pending[place])

    def gap(self, kind: Kind, *_: int) -> None:
        """Lose all events that have not arrived."""
        self.pending[kind].clear()

    def ask(self, kind: Kind, _: int, variant: int) -> None:
        """Have a list made, for a whole one or a sweep, that arrives later."""
        feed = self.feeds[kind]
        self.asked[kind] = Answer(
            self.store.of(kind),
            self.store.version,
            self.high(kind),
            feed.session,
            whole=variant == 0,
        )

    def high(self, kind: Kind) -> int:
        return max(self.feeds[kind].max_version, self.board.reader.newest_version(kind))

    def arrive(self, kind: Kind, *_: int) -> None:
        answer = self.asked.pop(kind, None)
        if answer is None or answer.session != self.feeds[kind].session:
            return
        if answer.whole:
            self.take_whole(kind, answer, restored=False)
        else:
            self.take_marks(kind, answer)

    def stale(self, kind: Kind, _: int, variant: int) -> None:
        """Answer a new question with the copy made before; questions take turns."""
        self.asked.pop(kind, None)
        version, world = self.copy
        feed = self.feeds[kind]
        bodies = [body for body in world.values() if body["kind"] == kind]
        answer = Answer(bodies, version, self.high(kind), feed.session, whole=variant == 0)
        if answer.whole:
            self.take_whole(kind, answer, restored=False)
        else:
            self.take_marks(kind, answer)

    def save(self, *_: Any) -> None:
        self.copy = (self.store.version, dict(self.store.world))

    def restore(self, *_: Any) -> None:
        """Go on from the copy; watches end, and lists under way are not answered."""
        self.store.version, world = self.copy
        self.store.world = dict(world)
        for kind in KINDS:
            self.pending[kind].clear()
            self.asked.pop(kind, None)

    def outgrow(self, *_: Any) -> None:
        """Restore, and come past all versions of before until anybody looks."""
        high = self.store.version
        self.restore()
        self.store.version = high + 20

    def undefine(self, kind: Kind, *_: int) -> None:
        """Delete the definition and all its objects; the feed sees that it went."""
        before = self.shown()
        for body in self.store.of(kind):
            self.pending[kind].append(self.store.delete(body["metadata"]["uid"]))
        self.pending[kind].clear()
        self.asked.pop(kind, None)
        self.publish(self.feeds[kind].mark_lost("CrdMissing"))
        assert self.shown() == before

    def write_statuses(self, *_: Any) -> None:
        """Write which generations run, as the broker does that leads."""
        for uid, body in list(self.store.world.items()):
            found = self.board.reader.get(body["kind"], uid)
            if found is not None:
                accepted = {"generation": found.generation, "spec": write_spec(found)}
                self.pending[body["kind"]].append(self.store.touch(uid, {"accepted": accepted}))

    # ---- what the shell does with it -------------------------------------

    def publish(self, events: list[Any]) -> None:
        for event in events:
            self.board.handle(event)

    def hear(self, kind: Kind, type_: str, body: Object) -> None:
        feed = self.feeds[kind]
        if not feed.synced:
            return
        event = (
            feed.remove(object_ref(body)) if type_ == "DELETED" else feed.apply(parse_object(body))
        )
        self.publish([] if event is None else [event])

    def take_whole(self, kind: Kind, answer: Answer, *, restored: bool) -> bool:
        feed = self.feeds[kind]
        sightings = [parse_object(body) for body in answer.bodies]
        odd = feed.contradicts((s.ref for s in sightings), answer.version, answer.asked_at)
        if odd and not restored:
            return False
        found = [feed.read_listed(sighting) for sighting in sightings]
        self.publish(feed.apply_list(found, answer.version, restored=odd))
        return True

    def take_marks(self, kind: Kind, answer: Answer) -> bool:
        feed = self.feeds[kind]
        marks = [object_ref(body) for body in answer.bodies]
        if not feed.synced or feed.contradicts(marks, answer.version, answer.asked_at):
            return False
        self.publish(feed.apply_resync(marks, answer.version))
        for mark in feed.stale_refs(marks):
            body = self.store.world.get(mark.uid)
            if body is not None:
                self.hear(kind, "MODIFIED", body)
        if not feed.stale_refs(marks):
            self.publish(feed.mark_caught_up(answer.version))
        return True

    def question(self, kind: Kind) -> Answer:
        feed = self.feeds[kind]
        high = self.high(kind)
        return Answer(self.store.of(kind), self.store.version, high, feed.session, whole=True)

    def relist(self, kind: Kind) -> None:
        if not self.take_whole(kind, self.question(kind), restored=False):
            assert self.take_whole(kind, self.question(kind), restored=True)

    def sweep(self, kind: Kind) -> None:
        if not self.take_marks(kind, self.question(kind)):
            self.relist(kind)

    # ---- what there is ---------------------------------------------------

    def shown(self) -> set[str]:
        return {export.uid for export in self.board.reader.iter_exports()} | {
            import_.uid for import_ in self.board.reader.iter_imports()
        }

    def unread(self) -> set[str]:
        return {
            uid
            for uid, body in self.store.world.items()
            if self.board.reader.unreadable(body["kind"], uid) is not None
        }

    def assert_quiet(self) -> None:
        """The board shows what the server holds, and says of the rest that it cannot be read."""
        self.write_statuses()
        for each in KINDS:
            self.deliver(each, len(self.pending[each]), 0)
        fresh = Rig(store=self.store)
        assert self.board.reader.exports() == fresh.board.reader.exports()
        assert self.board.reader.imports() == fresh.board.reader.imports()
        assert self.board.reader.routes() == fresh.board.reader.routes()
        assert self.unread() == fresh.unread()
        for uid in self.unread():
            kind: Kind = self.store.world[uid]["kind"]
            assert self.board.reader.status(kind, uid) == fresh.board.reader.status(kind, uid)
        assert {k: len(f) for k, f in self.feeds.items()} == {
            k: len(f) for k, f in fresh.feeds.items()
        }


@settings(deadline=None, max_examples=400)
@given(plan=steps())
def test_once_a_sweep_has_passed_the_board_is_what_the_server_holds(plan: list[Step]) -> None:
    """Events come late, twice, mixed or never; lists arrive while events pass them."""
    rig = Rig()
    for step in plan:
        rig.step(step)
    for kind in KINDS:
        rig.sweep(kind)

    rig.assert_quiet()
    for kind in KINDS:
        for pending in rig.pending[kind]:
            rig.hear(kind, *pending)
    rig.assert_quiet()


@settings(deadline=None, max_examples=300)
@given(plan=steps())
def test_events_that_all_arrive_need_no_sweep(plan: list[Step]) -> None:
    rig = Rig()
    for step in plan:
        if step[0] != "gap":
            rig.step(step)
    for kind in KINDS:
        rig.deliver(kind, len(rig.pending[kind]), 0)

    rig.assert_quiet()


@settings(deadline=None, max_examples=400)
@given(plan=steps("save", "stale"))
def test_an_old_list_tears_nothing_down(plan: list[Step]) -> None:
    rig = Rig()
    for step in plan:
        rig.step(step)
    for kind in KINDS:
        rig.sweep(kind)

    rig.assert_quiet()


HERE = ("write_here", "write_here", "delete_here")


@settings(deadline=None, max_examples=300)
@given(plan=steps(*HERE))
@example(
    # A change from here is listed, and the object goes before it can be fetched.
    plan=[
        ("write_here", "Export", 0, 1),
        ("ask", "Export", 0, 1),
        ("arrive", "Export", 0, 0),
        ("write_here", "Export", 0, 0),
        ("ask", "Export", 0, 1),
        ("delete", "Export", 0, 0),
        ("arrive", "Export", 0, 0),
    ]
)
@example(
    # A list made before a deletion from here arrives after the feed has reported it.
    plan=[
        ("write", "Export", 0, 0),
        ("ask", "Export", 0, 0),
        ("delete_here", "Export", 0, 0),
        ("deliver", "Export", 1, 0),
        ("arrive", "Export", 0, 0),
    ]
)
def test_writes_from_here_are_overtaken_by_nothing_older(plan: list[Step]) -> None:
    """They are on the board before the feed reports them, if it ever does."""
    rig = Rig()
    for step in plan:
        rig.step(step)
    for _ in range(2):
        for kind in KINDS:
            rig.sweep(kind)

    rig.assert_quiet()


@settings(deadline=None, max_examples=300)
@given(plan=steps(*HERE, "save", "save", "restore", "outgrow"))
@example(
    # A change from here, and a store that has lost it and is past its version.
    plan=[
        ("write", "Import", 0, 0),
        ("deliver", "Import", 0, 0),
        ("save", "Import", 0, 0),
        ("write_here", "Import", 0, 1),
        ("outgrow", "Import", 0, 0),
    ]
)
@example(
    # The same, and a status is written before anybody compares.
    plan=[
        ("write", "Import", 0, 0),
        ("deliver", "Import", 0, 0),
        ("save", "Import", 0, 0),
        ("write_here", "Import", 0, 1),
        ("outgrow", "Import", 0, 0),
        ("touch", "Import", 0, 0),
        ("deliver", "Import", 0, 0),
    ]
)
@example(
    # A deletion from here that the store has lost.
    plan=[
        ("write", "Import", 0, 0),
        ("deliver", "Import", 0, 0),
        ("save", "Import", 0, 0),
        ("delete_here", "Import", 0, 0),
        ("outgrow", "Import", 0, 0),
    ]
)
@example(
    # An object made here is lost, and an older version of the store has another of its name.
    plan=[
        ("write", "Export", 0, 0),
        ("write_here", "Export", 1, 0),
        ("restore", "Export", 0, 0),
        ("write", "Export", 1, 0),
        ("write", "Export", 0, 0),
    ]
)
@example(
    # The same, and the object made here was deleted from here before it was lost.
    plan=[
        ("write", "Export", 0, 0),
        ("write_here", "Export", 1, 0),
        ("delete_here", "Export", 1, 0),
        ("restore", "Export", 0, 0),
        ("write", "Export", 1, 0),
        ("write", "Export", 0, 0),
    ]
)
@example(
    # An object made here is saved and deleted from here; the store comes back with it.
    plan=[
        ("write_here", "Export", 0, 0),
        ("save", "Export", 0, 0),
        ("delete_here", "Export", 0, 0),
        ("outgrow", "Export", 0, 0),
    ]
)
@example(
    # The same, and the store comes back with an earlier version of it.
    plan=[
        ("write_here", "Export", 0, 1),
        ("save", "Export", 0, 0),
        ("write_here", "Export", 0, 0),
        ("delete_here", "Export", 0, 0),
        ("restore", "Export", 0, 0),
    ]
)
@example(
    # Objects made here are lost twice, and the one made last has a lower version.
    plan=[
        ("write", "Import", 0, 0),
        ("write_here", "Export", 0, 0),
        ("restore", "Export", 0, 0),
        ("write_here", "Export", 0, 1),
        ("write", "Export", 2, 0),
    ]
)
@example(
    # A reported object is replaced from here while a list without it is under way; both are lost.
    plan=[
        ("write_here", "Export", 0, 0),
        ("deliver", "Export", 0, 0),
        ("outgrow", "Export", 0, 0),
        ("ask", "Export", 0, 0),
        ("write_here", "Export", 0, 0),
        ("arrive", "Export", 0, 0),
        ("outgrow", "Export", 0, 0),
    ]
)
@example(
    # The deletion is not reported, another object takes the name, and the first one comes back.
    plan=[
        ("write_here", "Export", 0, 0),
        ("save", "Export", 0, 0),
        ("delete", "Export", 0, 0),
        ("deliver", "Export", 0, 0),
        ("gap", "Export", 0, 0),
        ("write", "Export", 0, 0),
        ("deliver", "Export", 0, 0),
        ("outgrow", "Export", 0, 0),
    ]
)
@example(
    # A deletion and another object of the name, both lost.
    plan=[
        ("write", "Import", 0, 0),
        ("deliver", "Import", 0, 0),
        ("save", "Import", 0, 0),
        ("delete_here", "Import", 0, 0),
        ("write_here", "Import", 0, 1),
        ("outgrow", "Import", 0, 0),
    ]
)
def test_a_write_from_here_that_a_restore_has_lost_leaves_what_the_store_lists(
    plan: list[Step],
) -> None:
    rig = Rig()
    for step in plan:
        rig.step(step)
    for _ in range(2):
        for kind in KINDS:
            rig.sweep(kind)

    rig.assert_quiet()


@settings(deadline=None, max_examples=400)
@given(plan=steps("save", "save", "restore", "outgrow"))
@example(
    # Restored, and at the same version again, before anybody looks: one name is another object's.
    plan=[
        ("write", "Import", 0, 0),
        ("write", "Export", 1, 0),
        ("deliver", "Export", 0, 0),
        ("restore", "Export", 0, 0),
        ("write", "Export", 1, 0),
        ("write", "Export", 0, 0),
    ]
)
def test_after_a_restore_the_list_decides_and_what_persists_is_kept(plan: list[Step]) -> None:
    rig = Rig()
    for step in plan:
        rig.step(step)
    for kind in KINDS:
        rig.sweep(kind)

    rig.assert_quiet()


@settings(deadline=None, max_examples=300)
@given(plan=steps("undefine"))
def test_a_kind_that_goes_with_its_definition_stays_on_the_board_until_the_next_list(
    plan: list[Step],
) -> None:
    rig = Rig()
    for step in plan:
        rig.step(step)
    for kind in KINDS:
        if not rig.feeds[kind].synced:
            rig.relist(kind)
        rig.sweep(kind)

    rig.assert_quiet()


# ---- single cases --------------------------------------------------------------------------


def listed(store: ObjectStore, feed: ObservedCache) -> list[Any]:
    found = [feed.read_listed(parse_object(body)) for body in store.of("Export")]
    return feed.apply_list(found, store.version)


def synced_feed(*variants: int) -> tuple[ObjectStore, ObservedCache]:
    store, feed = ObjectStore(), ObservedCache("Export")
    for place, variant in enumerate(variants):
        store.write("Export", f"n{place}", variant)
    listed(store, feed)
    return store, feed


def test_a_status_moves_the_point_and_nothing_else() -> None:
    store, feed = synced_feed(0)
    _, body = store.touch("Export-1")

    assert feed.apply(parse_object(body)) == FeedAdvanced(kind="Export", version=2, uid="Export-1")


def test_a_deletion_that_waits_for_a_finalizer_is_news_of_the_same_resource() -> None:
    store, feed = synced_feed(0)
    _, body = store.touch("Export-1")
    body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:09Z"
    event = feed.apply(parse_object(body))

    assert isinstance(event, ExportApplied)
    assert event.export.uid == "Export-1"


def test_an_object_created_while_it_was_listed_is_not_swept() -> None:
    store, feed = synced_feed(0)
    version = store.version
    marks = [object_ref(body) for body in store.of("Export")]
    _, body = store.write("Export", "late", 0)
    feed.apply(parse_object(body))

    assert feed.apply_resync(marks, version) == []


def test_a_deletion_nobody_reported_is_swept_at_the_version_it_was_known_at() -> None:
    store, feed = synced_feed(0, 0)
    store.delete("Export-1")
    store.write("Export", "n0", 1)
    marks = [object_ref(body) for body in store.of("Export")]

    assert feed.apply_resync(marks, store.version) == [ExportRemoved(uid="Export-1", version=2)]
    assert [mark.uid for mark in feed.stale_refs(marks)] == ["Export-3"]


def test_what_is_not_known_is_distinguished_from_what_is_known_as_it_was() -> None:
    store, feed = synced_feed(0)
    store.touch("Export-1")
    store.write("Export", "late", 0)
    behind = feed.stale_refs([object_ref(body) for body in store.of("Export")])

    assert [feed.difference(mark) for mark in behind] == ["changed", "missing"]


def test_a_resource_that_cannot_be_read_says_where() -> None:
    store, feed = synced_feed(0)
    _, body = store.write("Export", "n0", 2)
    event = feed.apply(parse_object(body))

    assert isinstance(event, Unreadable)
    assert (event.uid, event.code, event.generation) == ("Export-1", "PropertyInvalid", 2)
    assert str(event.key) == "default/n0/0/p"
    assert "`a b`" in event.problem


def test_an_object_without_a_spec_cannot_be_read_and_has_no_port() -> None:
    store, feed = synced_feed(0)
    _, body = store.touch("Export-1")
    del body["spec"]
    event = feed.apply(parse_object(body))

    assert isinstance(event, Unreadable)
    assert (event.key, event.path) == (None, "spec")


def test_a_lost_feed_is_reported_once_and_the_next_list_has_the_word() -> None:
    store, feed = synced_feed(0)

    assert feed.mark_lost("CrdMissing") == [FeedLost(kind="Export", reason="CrdMissing")]
    assert feed.mark_lost("CrdMissing") == []
    (event,) = listed(store, feed)
    assert isinstance(event, Synced)
    assert [(r.uid, version) for r, version in event.listed] == [("Export-1", 1)]


def test_what_is_late_is_not_reported() -> None:
    store, feed = synced_feed(0)
    early = [store.touch("Export-1")[1] for _ in range(2)]
    _, body = store.write("Export", "n0", 1)
    feed.apply(parse_object(body))

    assert [feed.apply(parse_object(body)) for body in early] == [None, None]
    assert feed.remove(object_ref(early[0])) is None


def test_a_list_forgets_nothing_that_was_seen_after_it() -> None:
    store, feed = synced_feed(0)
    old, version = store.of("Export"), store.version
    for name in ("n0", "late"):
        feed.apply(parse_object(store.write("Export", name, 1)[1]))
    feed.apply_list([feed.read_listed(parse_object(body)) for body in old], version)

    for uid in ("Export-1", "Export-2"):
        assert isinstance(feed.apply(parse_object(store.touch(uid)[1])), FeedAdvanced)


def test_an_object_listed_at_a_lower_version_than_it_is_known_at_contradicts() -> None:
    store, feed = synced_feed(0)
    old = [object_ref(body) for body in store.of("Export")]
    feed.apply(parse_object(store.touch("Export-1")[1]))

    assert feed.contradicts(old, store.version, feed.max_version)
    assert not feed.contradicts(old, store.version - 1, store.version - 1)


def test_a_list_that_brings_back_what_had_gone_contradicts() -> None:
    store, feed = synced_feed(0)
    old = [object_ref(body) for body in store.of("Export")]
    _, body = store.delete("Export-1")
    feed.remove(object_ref(body))

    assert feed.contradicts(old, store.version + 5, feed.max_version)
    assert feed.contradicts([], store.version - 1, feed.max_version)
    assert not feed.contradicts([], store.version, feed.max_version)
