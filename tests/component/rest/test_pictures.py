"""Lists of all routes: drawn while others are answered, and once for all who ask meanwhile."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from streambroker_operator.broker import Broker
from streambroker_operator.rest.guard.rate_limits import FairQueue
from streambroker_operator.rest.http.responses import json_answer, long_answer
from streambroker_operator.rest.lists import list_cache as pictures
from streambroker_operator.rest.lists.list_cache import ROUTES_SOURCE, ListCache, build_routes
from support.brokers.brokers import EXPORT, IMPORT, Rest, running_broker
from support.core.resources import board_of, export_of, import_of

VIEW = "/job/feed/pe/0"


class Brush:
    """Draws as the broker does; counts, and once held draws only when it may."""

    def __init__(self, draws: Callable[..., tuple[Any, ...]] = build_routes) -> None:
        self.times = 0
        self._draws = draws
        self._held = False
        self._begun, self._free = threading.Semaphore(0), threading.Semaphore(0)

    def __call__(self, *arguments: Any) -> tuple[Any, ...]:
        self.times += 1
        if self._held:
            self._begun.release()
            assert self._free.acquire(timeout=10.0)
        return self._draws(*arguments)

    def hold(self) -> None:
        self._held = True

    async def begun(self) -> None:
        """Wait until the next drawing has begun."""
        assert await asyncio.to_thread(self._begun.acquire, timeout=10.0)

    def go_on(self) -> None:
        self._free.release()


@pytest.fixture
def brush(monkeypatch: pytest.MonkeyPatch) -> Brush:
    found = Brush()
    monkeypatch.setattr(pictures, "build_routes", found)
    return found


@pytest.fixture(params=["exports", "imports", "pes"])
def listed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Brush]:
    """The path of a list, and what draws it."""
    name = "build_pes" if request.param == "pes" else "build_ports"
    found = Brush(getattr(pictures, name))
    monkeypatch.setattr(pictures, name, found)
    return f"/{request.param}", found


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[tuple[Broker, Rest]]:
    async with running_broker(tmp_path / "broker.db") as (broker, client):
        for number in range(3):
            await client("PUT", f"/job/feed/pe/0/export/p{number}", EXPORT)
        await client("PUT", "/job/alerts/pe/0/import/i", IMPORT)
        yield broker, client


@pytest.fixture
def rest(door: tuple[Broker, Rest]) -> Rest:
    return door[1]


def exporters(answer: Any, name: str = "items") -> list[str]:
    return [route["export"].rpartition("/")[2] for route in answer.body[name]]


@pytest.mark.parametrize("path", ["/routes", "/routes?limit=1", "/top"])
async def test_others_are_answered_while_routes_are_drawn(
    rest: Rest, brush: Brush, path: str
) -> None:
    brush.hold()
    asked = asyncio.create_task(rest("GET", path))
    await brush.begun()
    assert (await rest("GET", VIEW)).status == 200
    assert (await rest("PUT", f"{VIEW}/export/new", EXPORT)).status == 201
    assert not asked.done()
    brush.go_on()

    answer = await asked
    name = "routes" if path == "/top" else "items"
    assert exporters(answer, name) == ["p0", "p1", "p2"][: 1 if "limit" in path else 3]


async def test_routes_are_drawn_again_only_after_a_change(rest: Rest, brush: Brush) -> None:
    for path in ("/routes?limit=1", "/routes?limit=1", "/routes", "/top", "/top?namespace=*"):
        assert (await rest("GET", path)).status == 200
    assert brush.times == 1

    await rest("DELETE", f"{VIEW}/export/p1")
    assert exporters(await rest("GET", "/routes")) == ["p0", "p2"]
    assert exporters(await rest("GET", "/top"), "routes") == ["p0", "p2"]
    assert brush.times == 2


async def test_one_drawing_is_for_all_who_asked_before_it_began(
    door: tuple[Broker, Rest], brush: Brush
) -> None:
    broker, rest = door
    asked = ListCache(broker.runtime, ROUTES_SOURCE, FairQueue())
    brush.hold()
    first = asyncio.create_task(asked.get_current("a"))
    await brush.begun()
    await rest("DELETE", f"{VIEW}/export/p1")
    others = [asyncio.create_task(asked.get_current(who)) for who in "aabbc"]
    await asyncio.sleep(0)
    brush.go_on()
    await brush.begun()
    await rest("DELETE", f"{VIEW}/export/p2")
    brush.go_on()
    found = [await task for task in (first, *others)]

    assert [len(picture.items) for picture in found] == [3, 2, 2, 2, 2, 2]
    assert brush.times == 2


async def test_others_are_answered_while_ports_and_pes_are_drawn(
    rest: Rest, listed: tuple[str, Brush]
) -> None:
    path, brush = listed
    before = await rest("GET", path)
    await rest("PUT", f"{VIEW}/export/new", EXPORT)
    brush.hold()
    asked = asyncio.create_task(rest("GET", path))
    await brush.begun()
    assert (await rest("GET", VIEW)).status == 200
    await rest("PUT", "/job/later/pe/0/export/later", EXPORT)
    await rest("PUT", "/job/later/pe/0/import/later", IMPORT)
    assert not asked.done()
    brush.go_on()

    found = await asked
    assert len(found.body["items"]) == len(before.body["items"]) + (path == "/exports")
    assert "later" not in json.dumps(found.body)


async def test_ports_and_pes_are_drawn_again_only_after_a_change(
    rest: Rest, listed: tuple[str, Brush]
) -> None:
    path, brush = listed
    for _ in range(3):
        await rest("GET", path)
    assert brush.times == 1
    await rest("PUT", f"{VIEW}/export/new", EXPORT)
    await rest("GET", path)
    assert brush.times == 2


async def test_a_page_of_routes_continues_with_the_routes_of_its_picture(rest: Rest) -> None:
    first = await rest("GET", "/routes?limit=2")
    await rest("DELETE", f"{VIEW}/export/p2")
    second = await rest("GET", f"/routes?limit=2&continue={first.body['continue']}")

    assert exporters(first) + exporters(second) == ["p0", "p1", "p2"]


def test_what_is_drawn_are_the_routes_of_the_board_in_their_order() -> None:
    dice = random.Random(7)
    places = [
        f"{n}/{job}/{pe}/{p}" for n in ("a", "b") for job in "xy" for pe in (2, 10) for p in "pq"
    ]
    exports = [
        export_of(at, uid=f"x{n}", created=dice.random(), allowedNamespaces=["*"])
        for n, at in enumerate(dice.choices(places, k=12))
    ]
    imports = [
        import_of(at, uid=f"i{n}", created=dice.random(), filter=dice.choice((None, "size > 1")))
        for n, at in enumerate(dice.choices(places, k=12))
    ]
    board = board_of(*exports, *imports)
    met = [
        (export, board.reader.outcomes("Export", export.uid))
        for export in board.reader.iter_exports()
    ]

    assert len(board.reader.routes()) > 20
    assert list(build_routes(met, board.reader.iter_imports())) == board.reader.routes()


@pytest.mark.parametrize("body", [{}, {"b": [], "a": [{"y": 1, "x": [2.0]}, None], "c": "é"}])
def test_a_long_answer_is_written_as_any_other(body: dict[str, Any]) -> None:
    assert long_answer(body).body == json_answer(body).body
