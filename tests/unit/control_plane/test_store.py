"""The store keeps what it was given, and gives identity, generation and version."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from streambroker_core.model import kind_of
from streambroker_core.wire.manifests.ports import write_spec
from streambroker_operator.errors import StoreError
from streambroker_operator.storage.sqlite_store import Store
from support.core.resources import export_of, import_of, pe, port, registration


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "broker.db", clock=lambda: 100.0)
    yield opened
    opened.close()


def test_creating_gives_identity_and_the_first_generation(store: Store) -> None:
    stored = store.ports.put(export_of(uid="mine"))

    assert stored.created
    assert stored.resource.uid != "mine"
    assert (stored.resource.generation, stored.version) == (1, 1)
    assert store.get("Export", port("feed/trades")) == replace(stored, created=False, changed=False)
    assert store.get("Import", port("feed/trades")) is None


def test_only_a_change_of_the_spec_raises_generation_and_version(store: Store) -> None:
    first = store.ports.put(export_of())
    same = store.ports.put(export_of())
    other = store.ports.put(export_of(properties={"kind": "quote"}))

    assert (same.changed, same.version, same.resource) == (False, 1, first.resource)
    assert (other.changed, other.version, other.resource.generation) == (True, 2, 2)
    assert (other.resource.uid, other.resource.created) == (
        first.resource.uid,
        first.resource.created,
    )


def test_true_is_not_1(store: Store) -> None:
    store.ports.put(export_of(properties={"hot": 1}))

    assert store.ports.put(export_of(properties={"hot": True})).changed
    found = store.get("Export", port("feed/trades"))
    assert found is not None
    assert write_spec(found.resource)["properties"] == {"hot": True}


def test_a_new_name_is_kept_without_a_new_generation(store: Store) -> None:
    store.ports.put(export_of())
    named = store.ports.put(replace(export_of(), name="mine"))
    unnamed = store.ports.put(export_of())

    assert (named.changed, named.resource.generation, named.resource.name) == (True, 1, "mine")
    assert (unnamed.changed, unnamed.resource.name) == (False, "mine")


def test_creating_again_gives_another_identity(store: Store) -> None:
    first = store.ports.put(import_of())
    version = store.ports.delete("Import", first.resource.key).version
    second = store.ports.put(import_of())

    assert version == 2
    assert second.version == 3
    assert second.resource.uid != first.resource.uid


def test_who_came_later_is_younger_even_if_the_clock_stands(store: Store) -> None:
    ages = [store.ports.put(export_of(f"feed/p{n}")).resource.created for n in range(5)]

    assert ages == sorted(set(ages))


def test_who_comes_after_a_restart_is_younger_than_all_that_was_there(tmp_path: Path) -> None:
    before = Store(tmp_path / "broker.db", clock=lambda: 100.0)
    first = before.ports.put(export_of("feed/a")).resource.created
    before.close()
    after = Store(tmp_path / "broker.db", clock=lambda: 50.0)

    assert after.ports.put(export_of("feed/b")).resource.created > first
    after.close()


def test_a_new_resource_is_stored_with_the_same_work_however_many_there_are(store: Store) -> None:
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1

    taken = []
    for number in range(200):
        steps = 0
        store.file.db.set_progress_handler(step, 1)
        store.ports.put(export_of(f"feed/p{number}"))
        store.file.db.set_progress_handler(None, 1)
        taken.append(steps)

    assert taken[1] > 10
    assert taken[-1] < taken[1] + 20


async def test_pes_are_known_from_their_first_resource_or_registration(store: Store) -> None:
    store.ports.put(export_of())
    version = await store.register(pe("alerts"), registration())
    again = await store.register(pe("alerts"), registration())
    moved = await store.register(pe("alerts"), registration("grpc+tcp://h:2"))
    store.ports.delete("Export", port("feed/trades"))
    known = {str(found.pe): found.registration for found in store.agents.pes()}

    assert (version, again, moved) == (2, 2, 3)
    assert known == {"default/feed/0": None, "default/alerts/0": registration("grpc+tcp://h:2")}
    await store.withdraw(pe("feed"))
    assert [str(found.pe) for found in store.agents.pes()] == ["default/alerts/0"]


async def test_everything_is_there_after_opening_again(tmp_path: Path) -> None:
    path = tmp_path / "broker.db"
    store = Store(path)
    kept = [store.ports.put(resource) for resource in (export_of(), import_of(filter="a == 1"))]
    await store.register(pe("feed"), registration())
    secret, version, pes = store.secret, store.file.version, list(store.agents.pes())
    store.close()
    again = Store(path)

    assert (again.secret, again.file.version, list(again.agents.pes())) == (secret, version, pes)
    assert len(secret) == 32
    for stored in kept:
        found = again.get(kind_of(stored.resource), stored.resource.key)
        assert found is not None
        assert (found.resource, found.version) == (stored.resource, stored.version)
    again.close()


def test_a_file_is_given_to_one_broker_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "broker.db"
    store = Store(path)
    with pytest.raises(StoreError, match="in use by another broker"):
        Store(path)
    store.close()

    Store(path).close()


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "broker.db"
    uids = iter(["one", "one", "two"])
    store = Store(path, new_uid=lambda: next(uids))
    store.ports.put(export_of("feed/a"))
    with pytest.raises(Exception, match="UNIQUE"):
        store.ports.put(export_of("feed/b"))

    assert store.file.version == 1
    assert store.get("Export", port("feed/b")) is None
    assert store.ports.put(export_of("feed/b")).version == 2
    store.close()


def test_a_set_of_writes_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "broker.db"
    uids = iter(["one", "two", "two", "three"])
    store = Store(path, new_uid=lambda: next(uids))
    first = store.ports.put(export_of("feed/a"))

    def change() -> None:
        with store.file.transaction():
            store.ports.put(export_of("feed/a", properties={"kind": "quote"}))
            store.ports.put(export_of("feed/b"))
            store.ports.delete("Export", port("feed/a"))
            store.ports.put(export_of("feed/c"))

    with pytest.raises(Exception, match="UNIQUE"):
        change()
    known = store.get("Export", port("feed/a"))
    assert (known and known.resource, store.file.version) == (first.resource, 1)
    assert [stored.resource.key for stored in store.unordered_resources("Export")] == [
        port("feed/a")
    ]
    with store.file.transaction():
        store.ports.delete("Export", port("feed/a"))
        store.ports.put(export_of("feed/b"))
    store.close()
    again = Store(path)
    assert (
        again.file.version,
        [str(s.resource.key) for s in again.unordered_resources("Export")],
    ) == (
        3,
        ["default/feed/0/b"],
    )
    again.close()
