"""The control log: a number for each tuple, durable, kept for who needs it, read as pinned."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pe_agent.agent.state.control_log as module
from pe_agent.agent.state.control_log import (
    READER_GRACE_SECONDS,
    ControlLog,
    ControlLogFullError,
    EntryStatus,
    NotLoggedError,
    RequestDiffersError,
)
from pe_agent.agent.state.store import Store
from streambroker_core.control.tuples import ControlLimitError
from streambroker_core.errors import ManifestError
from streambroker_core.ledger.losses import DataLossError

ROUNDS = 8
KEPT = 20
WRITER = """
import sys, types
from pathlib import Path

package = types.ModuleType("pe_agent")  # the log alone: Spark's part starts slowly
package.__path__ = [sys.argv[2]]
sys.modules["pe_agent"] = package
from pe_agent.agent.state.control_log import EntryStatus, ControlLog
from pe_agent.agent.state.store import Store

log = ControlLog(Store(Path(sys.argv[1])), lambda: None)
print("open", flush=True)
for step in range(100_000):
    request = f"{sys.argv[3]}/{step}"
    told = log.append(request, {"type": "set", "payload": request})
    print(told["id"], request, flush=True)
"""


class Bench:
    """A control log on a store, under a clock in hand."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.now, self.notified = directory, 1000.0, 0
        self.open()

    def open(self) -> None:
        self.store = Store(self.directory / "state.sqlite")
        self.log = ControlLog(self.store, self._notify, lambda: self.now)

    def _notify(self) -> None:
        self.notified += 1

    def reopen(self) -> None:
        self.store.close()
        self.open()

    def put(self, request: str, **what: Any) -> EntryStatus:
        return self.log.append(request, {"type": "set", "payload": request, **what})

    def read(self, first: int, next_: int, id_: str | None = None, **how: bool) -> list[Any]:
        found = self.log.read_range(id_ or self.log.id, first, next_, **{"skip_lost": False, **how})
        return [one.payload for one in found]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(module, "RETAINED_ENTRIES", KEPT)
    one = Bench(tmp_path)
    yield one
    one.store.close()


def test_a_tuple_has_its_number_at_once_and_is_read_by_it(made: Bench) -> None:
    first, second = made.put("a"), made.put("b", delivery="END_WINDOW", target={"operator": "x"})
    assert [first["id"], second["id"]] == [f"{made.log.id}/0", f"{made.log.id}/1"]
    assert (made.log.next_seq, made.notified) == (2, 2)
    made.reopen()
    (one,) = made.log.read_range(made.log.id, 1, 2, skip_lost=False)
    assert (one.id, one.target.operator, one.payload) == (second["id"], "x", "b")
    assert made.put("c")["seq"] == 2


def test_a_repeated_request_appends_nothing(made: Bench) -> None:
    first = made.put("a")
    made.reopen()
    assert made.put("a") == first
    assert made.log.next_seq == 1
    with pytest.raises(RequestDiffersError, match="request a has put another"):
        made.log.append("a", {"type": "other"})
    with pytest.raises(RequestDiffersError, match="1 to 128"):
        made.put("x" * 129)


def test_what_cannot_be_emitted_gets_no_number(made: Bench) -> None:
    with pytest.raises(ManifestError, match="delivery"):
        made.put("a", delivery="LATER")
    with pytest.raises(ControlLimitError):
        made.put("a", payload="x" * (1 << 20))
    assert made.log.next_seq == 0


def test_entries_are_kept_for_readers_until_they_are_acknowledged(made: Bench) -> None:
    made.log.acknowledge("r", 0)
    for n in range(KEPT + 5):
        made.put(str(n))
    assert made.log.first_retained() == 0
    made.log.acknowledge("r", KEPT)
    made.put("more")
    assert made.log.first_retained() == 6
    made.log.acknowledge("r", KEPT + 6)
    made.reopen()
    assert made.log.next_seq == KEPT + 6


def test_a_reader_that_is_away_for_longer_than_grace_holds_nothing(made: Bench) -> None:
    made.log.acknowledge("r", 0)
    for n in range(KEPT):
        made.put(str(n))
    made.now += READER_GRACE_SECONDS + 1
    made.put("more")
    assert made.log.first_retained() == 1
    with pytest.raises(DataLossError, match="1 control tuples"):
        made.read(0, 2)
    assert made.read(0, 2, skip_lost=True) == ["1"]


def test_a_restart_gives_readers_their_grace_again(made: Bench) -> None:
    made.log.acknowledge("r", 0)
    made.now += READER_GRACE_SECONDS - 1
    made.reopen()
    made.now += READER_GRACE_SECONDS - 1
    for n in range(KEPT + 2):
        made.put(str(n))
    assert made.log.first_retained() == 0


def test_readers_that_are_gone_are_forgotten_when_a_new_one_comes(made: Bench) -> None:
    made.log.acknowledge("old", 0)
    made.now += READER_GRACE_SECONDS + 1
    made.log.acknowledge("new", 0)
    assert made.store.query("SELECT reader FROM control_readers") == [("new",)]


def test_a_log_that_is_not_read_takes_so_much_and_no_more(
    made: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETAINED_ENTRIES", 3)
    monkeypatch.setattr(module, "MAX_TUPLES", 5)
    for n in range(10):
        made.put(f"nobody {n}")
    made.log.acknowledge("r", 10)
    for n in range(5):
        made.put(str(n))
    with pytest.raises(ControlLogFullError, match="reader r has 5 entries"):
        made.put("one more")
    made.log.acknowledge("r", 11)
    assert made.put("one more")["seq"] == 15


def test_another_log_is_loss_unless_that_is_agreed_to(made: Bench) -> None:
    made.put("a")
    with pytest.raises(DataLossError, match=f"now {made.log.id}, are missing"):
        made.read(0, 1, "gone")
    assert made.read(0, 1, "gone", skip_lost=True) == []


def test_a_window_takes_what_it_has_room_for_and_one_entry_in_any_case(made: Bench) -> None:
    for n in range(4):
        made.put(str(n))
    size = made.log.size(0, 1)
    assert made.log.size(0, 4) == 4 * size
    assert made.log.window_end(0, 10, 10 * size) == 4
    assert made.log.window_end(0, 2, 10 * size) == 2
    assert made.log.window_end(1, 10, 2 * size) == 3
    assert made.log.window_end(1, 0, 0) == 2
    assert made.log.window_end(1, 10, 10 * size, limit=3) == 3
    assert made.log.window_end(4, 10, 10 * size) == 4


def test_it_is_applied_when_all_readers_have_an_offset_behind_it(made: Bench) -> None:
    made.log.acknowledge("a", 0)
    made.log.acknowledge("b", 0)
    assert made.put("x")["applied"] is False
    made.log.acknowledge("a", 1)
    assert made.log.backlog() == 1
    notified = made.log.entry(0)
    assert (notified["applied"], notified["readers"]) == (
        False,
        [{"reader": "a", "applied": True}, {"reader": "b", "applied": False}],
    )
    made.log.acknowledge("b", 1)
    assert made.log.backlog() == 0
    assert made.log.entry(0)["applied"] is True
    made.reopen()
    assert made.log.entry(0)["applied"] is True
    with pytest.raises(NotLoggedError, match="no entry 7: it has those from 0 to 0"):
        made.log.entry(7)


def test_nobody_has_applied_what_nobody_reads(made: Bench) -> None:
    assert made.put("x")["applied"] is False


def test_every_answered_tuple_survives_kill_9_at_any_moment(tmp_path: Path) -> None:
    chance, promised = random.Random(3), dict[str, str]()
    package = Path(module.__file__).parents[2]
    path = tmp_path / "state.sqlite"
    for round_ in range(ROUNDS):
        command = [sys.executable, "-c", WRITER, *map(str, (path, package, round_))]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"
            try:
                process.wait(0.1 * chance.random())
            except subprocess.TimeoutExpired:
                process.kill()
            lines = process.stdout.read().splitlines(keepends=True)
        for line in lines:
            if line.endswith("\n"):
                id_, request = line.split()
                promised[id_] = request
        store = Store(path)
        log = ControlLog(store, lambda: None)
        numbers = [n for (n,) in store.query("SELECT seq FROM control_log ORDER BY seq")]
        assert numbers == list(range(log.first_retained(), log.next_seq))
        found = {
            c.id: c.payload
            for c in log.read_range(log.id, log.first_retained(), log.next_seq, skip_lost=False)
        }
        kept = {
            i: r for i, r in promised.items() if int(i.rpartition("/")[2]) >= log.first_retained()
        }
        assert {i: found.get(i) for i in kept} == kept
        store.close()
    assert len(promised) > ROUNDS


def test_entries_are_counted_by_delivery_when_they_come_and_when_readers_have_applied_them(
    made: Bench,
) -> None:
    for request, delivery in (("a", "BEGIN"), ("b", "END_WINDOW"), ("b", "END_WINDOW")):
        made.log.append(request, {"type": "set", "delivery": delivery})
    for reader, next_ in (("one", 0), ("two", 0), ("one", 1), ("two", 2), ("one", 1), ("one", 2)):
        made.log.acknowledge(reader, next_)

    assert made.log.accepted == {"BEGIN": 1, "END_WINDOW": 1}
    assert made.log.applied == {"BEGIN": 2, "END_WINDOW": 2}
