"""What a running broker forgets of resources and PEs that came and went."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType

import pytest

from streambroker_core.model import PeKey
from streambroker_operator.agents.hint_sender import HintSender
from streambroker_operator.runtime import change_log as changes
from streambroker_operator.runtime import history
from streambroker_operator.runtime.runtime import Runtime
from streambroker_operator.storage.sqlite_store import Store
from support.core.at_once import at_once
from support.core.resources import export_of, import_of, pe, port, registration

_CODE = (type, ModuleType, FunctionType, BuiltinFunctionType)


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[Runtime]:
    store, sender = Store(tmp_path / "broker.db"), HintSender()
    runtime = Runtime(store, sender)
    runtime.feed.start()
    yield runtime
    sender.close()
    store.close()


def held_by(root: object) -> int:
    """Return how many objects something holds, itself or by others."""
    seen: dict[int, object] = {}
    left = [root]
    while left:
        one = left.pop()
        if id(one) not in seen and not isinstance(one, _CODE):
            seen[id(one)] = one
            left += gc.get_referents(one)
    return len(seen)


def come(runtime: Runtime, name: str) -> tuple[PeKey, PeKey]:
    """Let a pair of PEs come with a route between them, and ask for their views."""
    at_once(runtime.put(replace(export_of(f"feed-{name}/trades"), name=f"x-{name}")))
    at_once(runtime.put(replace(import_of(f"alerts-{name}/trades"), name=f"i-{name}")))
    both = pe(f"feed-{name}"), pe(f"alerts-{name}")
    for one in both:
        at_once(runtime.register(one, registration(hint=None)))
        assert runtime.view(one) is not None
    return both


def come_and_go(runtime: Runtime, name: str) -> None:
    both = come(runtime, name)
    assert at_once(runtime.delete("Export", port(f"feed-{name}/trades"))) is not None
    assert at_once(runtime.delete("Import", port(f"alerts-{name}/trades"))) is not None
    for one in both:
        at_once(runtime.withdraw(one))


def test_nothing_is_kept_of_what_came_and_went(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "MAX_EVENTS", 1)
    monkeypatch.setattr(history, "MAX_CHARACTERS", 0)
    come(runtime, "stays")
    for number in range(3):
        come_and_go(runtime, f"a{number}")
    before = held_by(runtime)
    for number in range(20):
        come_and_go(runtime, f"b{number}")

    assert held_by(runtime) <= before + 5
    assert runtime.board.route_count == 1
    assert runtime.board.uid_by_name("Export", "default", "x-stays") is not None


def test_what_comes_again_under_the_name_of_what_went_takes_part(runtime: Runtime) -> None:
    for _ in range(3):
        come_and_go(runtime, "a")
    come(runtime, "a")

    assert runtime.board.route_count == 1
    assert runtime.board.uid_by_name("Import", "default", "i-a") is not None
    location = registration().location
    view = runtime.view(pe("alerts-a"))
    assert view is not None
    assert [r.location for r in view.imports["trades"].routes] == [location]
