from __future__ import annotations

import hashlib
import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def peer_jars(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The module, with a lock of one jar and an empty place for it."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    module = importlib.import_module("peer_jars")
    lock = tmp_path / "peer.lock"
    lock.write_text(f"# a comment\nkafka g.h:a:1 {hashlib.sha256(b'right').hexdigest()}\n")
    monkeypatch.setattr(module, "LOCK", lock)
    monkeypatch.setattr(module, "HERE", tmp_path)
    monkeypatch.setattr(module, "PLACE", tmp_path / "peer")
    return module


def maven(tmp_path: Path, content: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a Maven on the path that brings a jar with this content."""
    program = tmp_path / "bin" / "mvn"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\n"
        'for word in "$@"; do case "$word" in -DoutputDirectory=*) place=${word#*=};; esac; done\n'
        f'printf {content} > "$place/a-1.jar"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")


def test_a_peer_that_is_not_there_is_named_with_what_fetches_it(peer_jars: ModuleType) -> None:
    with pytest.raises(peer_jars.PeerMissingError, match=r"no peer/kafka/a-1.jar.*bench-setup"):
        peer_jars.jars("kafka")


def test_a_jar_with_the_sum_of_the_lock_is_kept_and_not_fetched_again(
    peer_jars: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maven(tmp_path, "right", monkeypatch)
    peer_jars.main()
    assert peer_jars.jars("kafka") == [str(tmp_path / "peer" / "kafka" / "a-1.jar")]
    (tmp_path / "bin" / "mvn").unlink()
    monkeypatch.setenv("PATH", "")
    peer_jars.main()


def test_only_the_folders_that_are_named_are_fetched(
    peer_jars: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "peer.lock").open("a") as lock:
        lock.write(f"flink g.h:a:1 {hashlib.sha256(b'right').hexdigest()}\n")
    maven(tmp_path, "right", monkeypatch)
    peer_jars.main("kafka")
    assert [jar.parent.name for jar in (tmp_path / "peer").rglob("*.jar")] == ["kafka"]


def test_a_jar_with_another_sum_is_refused(
    peer_jars: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maven(tmp_path, "wrong", monkeypatch)
    with pytest.raises(SystemExit, match="refused"):
        peer_jars.main()
    assert list((tmp_path / "peer").rglob("*.jar")) == []


def test_without_maven_it_is_said(peer_jars: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit, match="needs Maven"):
        peer_jars.main()


def test_the_lock_names_each_jar_once_with_a_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    every = importlib.import_module("peer_jars").locked()
    assert len({(jar.folder, jar.artifact) for jar in every}) == len(every) > 40
    assert all(len(jar.sha256) == 64 for jar in every)


def batch(rows: int, began: float, seconds: float) -> dict[str, Any]:
    """Return a batch of a query as the application reports it."""
    return {"rows": rows, "began": began, "ms": {"triggerExecution": seconds * 1e3}}


def test_rows_are_counted_inside_a_batch_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    queries = importlib.import_module("queries")
    ran = [batch(100, 10.0, 2.0), batch(0, 12.0, 0.1), batch(100, 20.0, 4.0)]
    assert [queries.done(ran, at) for at in (9.0, 11.0, 15.0, 21.0, 30.0)] == [0, 50, 100, 125, 200]
    assert queries.ended(ran, 150) == 22.0
    with pytest.raises(RuntimeError, match="only 200 rows"):
        queries.ended(ran, 201)


def test_flink_reads_the_events_that_we_have(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    runs, peer = importlib.import_module("pattern_runs"), importlib.import_module("flink_peer")
    batch = runs.events(1_000, 0.1, 7)
    peer.write(batch, tmp_path / "events")
    data = (tmp_path / "events").read_bytes()
    assert int.from_bytes(data[:8], "little") == 1_000
    assert np.frombuffer(data, "<i8", 1_000, 8).tolist() == batch.column("key").to_pylist()
    kinds = [runs.KINDS[code] for code in data[8_008:9_008]]
    assert kinds == batch.column("kind").to_pylist()
    assert np.frombuffer(data, "<f8", 1_000, 9_008).tolist() == batch.column("price").to_pylist()
    assert len(data) == 17_008


def test_without_a_compiler_flink_is_not_measured(
    peer_jars: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    peer = importlib.import_module("flink_peer")
    monkeypatch.setattr(peer, "java_home", lambda: tmp_path)
    with pytest.raises(peer_jars.PeerMissingError, match=r"no javac.*install a JDK"):
        peer.compiled(tmp_path / "flink")


@pytest.mark.parametrize("shape", ["relaxed", "strict", "loop", "negation"])
def test_the_engine_that_is_measured_finds_what_matchers_without_masks_find(
    shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    runs, cep = importlib.import_module("pattern_runs"), importlib.import_module("cep")
    work = runs.Workload(shape=shape, share=0.15, keys=10)
    batch = work.events(2_000)
    ran = runs.Engine([work.pattern()], rows=400).run(batch)
    _, matches = cep.one_by_one(work.pattern(), batch)
    assert ran.matches == matches > 0
    assert ran.runs >= ran.held > 0
