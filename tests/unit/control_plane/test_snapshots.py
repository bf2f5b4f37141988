"""Snapshots of a broker's file, and restores that are killed at each step."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from streambroker_core.wire.broker import snapshot as wire
from streambroker_core.wire.broker.snapshot import (
    FILE,
    RESTORED,
    SnapshotFile,
    SnapshotInvalidError,
    SnapshotManifest,
)
from streambroker_operator.cli import main
from streambroker_operator.errors import StoreError
from streambroker_operator.storage.snapshot import (
    TargetInUseError,
    check,
    restore,
    save_broker,
)
from streambroker_operator.storage.sqlite_store import Store
from support.core.resources import export_of
from support.cuts.points import search_path

MODULE = "streambroker_operator.storage.snapshot"


def levels(store: Store) -> list[str]:
    return sorted(str(one.resource.key) for one in store.ports.unordered_resources("Export"))


def filled(path: Path, count: int = 3) -> Path:
    store = Store(path)
    for number in range(count):
        store.ports.put(export_of(f"job{number}/trades"))
    store.close()
    return path


def agent_snapshot(folder: Path) -> Path:
    """Write a snapshot as an agent does, of files without meaning."""
    content = {"state.sqlite": b"s" * 5000, "log/trades/ab/0000000001.segment": b"x" * 3_000_000}
    for name, data in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    files = {
        name: SnapshotFile(size=len(data), sha256=hashlib.sha256(data).hexdigest())
        for name, data in content.items()
    }
    made = SnapshotManifest(kind="agent", source="default/feed/0", created="now", files=files)
    (folder / FILE).write_text(wire.encode(made))
    return folder


def killed(number: int, function: str, *paths: Path) -> bool:
    """Run a function in a process that is killed at a step; return whether it came to that step."""
    command = [sys.executable, "-m", "support.brokers.killed_at", str(number), function]
    environment = {**os.environ, "PYTHONPATH": search_path(held=False)}
    done = subprocess.run(
        [*command, *map(str, paths)], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode != 0


def test_a_broker_is_saved_while_it_writes_and_restored_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "broker.db"
    store, ended, written = Store(path), threading.Event(), list[str]()
    store.close()

    def write() -> None:
        store = Store(path)
        while not ended.is_set():
            written.append(str(store.ports.put(export_of(f"j{len(written)}/p")).resource.key))
        store.close()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for number in range(5):
            before = len(written)
            save_broker(path, tmp_path / f"s{number}")
            assert check(tmp_path / f"s{number}").kind == "broker"
            restore(tmp_path / f"s{number}", tmp_path / f"r{number}.db")
            again = Store(tmp_path / f"r{number}.db")
            found = levels(again)
            assert len(found) >= before
            assert found == sorted(written[: len(found)])
            assert (again.loss_warning, again.file.version) == ("", len(found))
            again.close()
    finally:
        ended.set()
        thread.join()
    assert (tmp_path / "r0.db").stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
def test_a_save_that_is_killed_at_any_step_leaves_nothing_or_a_whole_snapshot(
    tmp_path: Path,
) -> None:
    path, refused = filled(tmp_path / "broker.db"), 0
    for number in itertools.count(1):
        folder = tmp_path / f"s{number}"
        ran = killed(number, f"{MODULE}:save_broker", path, folder)
        if folder.exists():
            check(folder)
        else:
            with contextlib.suppress(SnapshotInvalidError):  # whole, before it has its name
                check(folder.with_name(f"{folder.name}.new"))
                refused -= 1
            refused += 1
            save_broker(path, folder)
        restore(folder, tmp_path / f"r{number}.db")
        again = Store(tmp_path / f"r{number}.db")
        assert len(levels(again)) == 3
        again.close()
        if not ran:
            break
    assert refused > 5
    again = Store(path)
    assert len(levels(again)) == 3
    again.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["agent", "broker"])
def test_a_restore_that_is_killed_at_any_step_is_whole_or_is_repeated(
    tmp_path: Path, kind: str
) -> None:
    if kind == "agent":
        folder = agent_snapshot(tmp_path / "snapshot")
    else:
        folder = tmp_path / "snapshot"
        save_broker(filled(tmp_path / "broker.db"), folder)
    wanted = {name: (folder / name).read_bytes() for name in check(folder).files}
    for number in itertools.count(1):
        target = tmp_path / f"r{number}"
        ran = killed(number, f"{MODULE}:restore", folder, target)
        if not target.exists():
            restore(folder, target)
        if kind == "agent":
            files = {p.relative_to(target).as_posix(): p for p in target.rglob("*") if p.is_file()}
            assert {n: p.read_bytes() for n, p in files.items()} == {**wanted, RESTORED: b""}
        else:
            assert target.read_bytes() == wanted["streambroker.db"]
        with pytest.raises(TargetInUseError):
            restore(folder, target)
        if not ran:
            break
    assert number > 5


def test_a_restore_into_the_files_of_a_broker_is_refused(tmp_path: Path) -> None:
    path = filled(tmp_path / "broker.db")
    save_broker(path, tmp_path / "s")
    with pytest.raises(TargetInUseError, match=r"broker.db exists.*stop the broker"):
        restore(tmp_path / "s", path)
    path.rename(tmp_path / "away")
    (tmp_path / "broker.db-wal").touch()
    with pytest.raises(TargetInUseError, match=r"broker.db-wal exists"):
        restore(tmp_path / "s", path)
    with pytest.raises(TargetInUseError, match="needs a new directory"):
        save_broker(path, tmp_path / "s")


def _missing(path: Path) -> None:
    path.unlink()


def _foreign(path: Path) -> None:
    path.write_bytes(b"no database at all" * 100)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _newer(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")


@pytest.mark.parametrize("spoil", [_missing, _foreign, _empty, _newer])
def test_what_is_no_database_of_a_broker_is_not_saved(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    path = filled(tmp_path / "broker.db")
    spoil(path)
    with pytest.raises(StoreError, match=r"cannot be saved: .*Give the file of a broker"):
        save_broker(path, tmp_path / "s")
    assert not list(tmp_path.glob("s*"))


def test_the_command_saves_checks_and_restores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, folder = filled(tmp_path / "broker.db"), tmp_path / "s"
    target = tmp_path / "again.db"
    for words in (("save", path, folder), ("check", folder), ("restore", folder, target)):
        assert main(["snapshot", *map(str, words)]) == 0
    saved, checked, restored = capsys.readouterr().out.splitlines()
    assert saved.startswith(f"broker {path} saved: ")
    assert saved.endswith(f" in {folder}")
    assert checked.startswith(f"broker {path} checked: ")
    assert restored.endswith(f" in {target}")
    shutil.rmtree(folder)
    assert main(["snapshot", "check", str(folder)]) == 1
    assert "SnapshotInvalid" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sawe", "a", "b"], "none of create, save, check, restore. Did you mean 'save'?"),
        (["save", "a"], "Write `streambroker snapshot save FILE DIR`."),
        (["create", "feed", "one"], "is not JOB/PE"),
    ],
)
def test_a_wrong_command_is_explained(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["snapshot", *words]) == 2
    assert message in capsys.readouterr().err
