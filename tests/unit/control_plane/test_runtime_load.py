"""What the broker does when it starts with much, and what it says when matching gets slow."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from streambroker_core.errors import FilterError, FilterTypeError
from streambroker_core.matching import scan
from streambroker_operator import cooperative as long_work
from streambroker_operator.agents.hint_sender import HintSender
from streambroker_operator.runtime.feed import Feed
from streambroker_operator.runtime.runtime import Runtime
from streambroker_operator.storage.sqlite_store import Store
from support.core.at_once import at_once
from support.core.resources import export_of, import_of, pe

SIZE = [{"name": "size", "type": "bigint"}]
PRICE = [{"name": "price", "type": "double"}]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "broker.db")
    yield store
    store.close()


@pytest.fixture
def runtime(store: Store) -> Iterator[Runtime]:
    sender = HintSender()
    yield Runtime(store, sender)
    sender.close()


def test_a_start_leaves_the_collector_as_it_was(runtime: Runtime) -> None:
    frozen = gc.get_freeze_count()

    runtime.feed.start()

    assert gc.isenabled()
    assert gc.get_freeze_count() == frozen


def test_what_many_resources_take_is_kept_from_the_collector(
    store: Store, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_work, "FREEZE_MIN", 2)
    store.ports.put(export_of("a/p"))
    store.ports.put(import_of("b/p"))
    gc.unfreeze()

    runtime.feed.start()

    frozen = gc.get_freeze_count()
    gc.unfreeze()
    assert frozen > 0
    assert runtime.board.view(pe("b")) is not None


def test_the_collector_is_given_back_when_the_start_fails(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Feed, "_fill", lambda self, event: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        runtime.feed.start()

    assert gc.isenabled()


def test_subscriptions_that_cannot_be_looked_up_are_reported_once(
    store: Store,
    runtime: Runtime,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(scan, "MANY_UNINDEXED", 2)
    store.ports.put(import_of("a/p", subscription="price > 1"))
    runtime.feed.start()
    at_once(runtime.put(import_of("b/p", subscription="price > 2")))
    assert caplog.messages == []

    for job in ("c", "d"):
        at_once(runtime.put(import_of(f"{job}/p", subscription="price > 3")))

    (record,) = caplog.records
    assert record.name == "streambroker.matching"
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("3 of 3 subscriptions")


def test_a_filter_is_checked_against_what_the_import_matches_alone(runtime: Runtime) -> None:
    runtime.feed.start()
    other = export_of("other/p", properties={"kind": "quote"}, schema=PRICE)
    wrong = export_of("wrong/p", schema=SIZE)
    for export in (other, wrong):
        at_once(runtime.put(export))
    import_ = import_of(filter="price > 1.0")

    with pytest.raises((FilterError, FilterTypeError)):
        at_once(runtime.put(import_))

    assert runtime.store.get("Import", import_.key) is None
    at_once(runtime.put(export_of("right/p", schema=PRICE)))
    assert at_once(runtime.put(import_)).stored.created
