"""How long a new Export or a new Import takes until it is known whom it meets.

Each answer of the index is compared with a scan that tries every pair: with functions made
once, as the index has them, so the scan is as fast as one can be.
"""

from __future__ import annotations

import gc
import os
import random
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import population
from cold_start import write
from measure import Figures, Settings, quantile

from streambroker_core.expression import parse
from streambroker_core.expression.evaluate import Test
from streambroker_core.matching import IndexMatcher, MatchResult, is_near
from streambroker_core.matching.decide import connect, is_reachable
from streambroker_core.matching.import_index import IndexedImport
from streambroker_core.model import Import, Kind, PeKey, PortKey, Resource
from streambroker_core.wire.manifests.ports import read_spec
from streambroker_operator.agents.hint_sender import HintSender
from streambroker_operator.runtime.runtime import Runtime
from streambroker_operator.storage.sqlite_store import Store

PURPOSE = "new Export against many Imports, and the reverse: index against a scan"
IMPORTS = (10_000, 100_000, 1_000_000)
EXPORTS = (10_000, 100_000)
KEPT = 1_000
"""How many there are of the other kind, for the index to know what is rare."""
ASKED = 1_000
SCANNED = 2_000_000
"""Pairs that the scan may try per round."""
IN_MEMORY = 100_000
SMALL = 10_000
OFTENER = 5
PAUSE_S = 1.0
"""Rounds of small ones are short: more of them, apart, or one slow moment meets them all."""
LAST = 300
"""Of these, so many are measured: with nearly all of the others there."""
FANNED = 4_000
"""Importers of one Export."""

Asked: TypeAlias = "tuple[float, float, Resource, Mapping[str, MatchResult]]"
"""Seconds until all was known, those of the look-up alone, what was asked, the answer."""


class Scan:
    """Tries every pair.

    Args:
        index: which has all resources, and a function for each subscription.
    """

    def __init__(self, index: IndexMatcher) -> None:
        self._exports = list(index._export_index.exports.values())
        self._imports = [(want.import_, _test_of(want)) for want in index._imports.values()]

    def outcomes_for(self, asked: Resource) -> Mapping[str, MatchResult]:
        """Return matches and near refusals by uid."""
        if isinstance(asked, Import):
            test = parse(asked.subscription or "").test
            return {
                one.uid: outcome
                for one in self._exports
                if test(one.properties or {}) is True
                and is_reachable(one, asked)
                and is_near(outcome := connect(one, asked))
            }
        properties = asked.properties or {}
        return {
            one.uid: outcome
            for one, test in self._imports
            if test(properties) is True
            and is_reachable(asked, one)
            and is_near(outcome := connect(asked, one))
        }


def _test_of(want: IndexedImport) -> Test:
    code, literals = want.code, want.literals
    return lambda row: None if code is None else code(row, literals)


class Bench:
    """An index that has so many Exports and Imports, and the scan beside it."""

    def __init__(self, exports: int, imports: int) -> None:
        self.rng = random.Random(1)
        self.index = IndexMatcher()
        for number in range(exports):
            self.index.put(population.export(self.rng, number))
        for number in range(imports):
            self.index.put(population.import_(self.rng, number))
        self.scan = Scan(self.index)
        self.exports, self.imports = exports, imports
        self.filing: list[float] = []

    def new_export(self) -> Asked:
        """Return the seconds until a new Export's outcomes are there; it goes again."""
        export = population.export(self.rng, self.exports)
        began = time.perf_counter()
        self.index.put(export)
        filed = time.perf_counter()
        found = self.index.matches_of("Export", export.uid)
        ended = time.perf_counter()
        self.index._export_index._flush_pending()
        self.filing.append(time.perf_counter() - ended)
        self.index.remove("Export", export.uid)
        return ended - began, ended - filed, export, found

    def new_import(self) -> Asked:
        """Return the seconds until a new Import's outcomes are there; it goes again."""
        import_ = population.import_(self.rng, self.imports)
        began = time.perf_counter()
        self.index.put(import_)
        filed = time.perf_counter()
        found = self.index.matches_of("Import", import_.uid)
        ended = time.perf_counter()
        self.index.remove("Import", import_.uid)
        return ended - began, ended - filed, import_, found

    def round(
        self,
        figures: Figures,
        name: str,
        ask: Callable[[], Asked],
        size: int,
    ) -> None:
        """Ask for new ones, and let the scan answer some of them, too."""
        answers = [ask() for _ in range(ASKED)]
        indexed = [seconds for seconds, *_ in answers]
        alone = [seconds for _, seconds, *_ in answers]
        hits = sum(len(found) for *_, found in answers)
        compared = answers[: max(1, SCANNED // size)]
        scanned = [self._scan(asked, found) for *_, asked, found in compared]
        for share in (0.5, 0.99):
            figures.add(f"{name}, p{share * 100:.0f}", quantile(indexed, share) * 1e3, "ms")
        figures.add(f"{name}, look-up alone, p50", quantile(alone, 0.5) * 1e3, "ms")
        figures.add(f"{name}, scan, p50", quantile(scanned, 0.5) * 1e3, "ms")
        figures.ratio(f"{name}, scan / index", f"{name}, scan, p50", f"{name}, p50")
        figures.add(f"{name}, outcomes", hits / ASKED, "each")
        if self.filing:
            took = quantile(self.filing, 0.5) * 1e3
            figures.add(f"{name}, filed for who asks next, p50", took, "ms")
            self.filing.clear()

    def _scan(self, asked: Resource, found: Mapping[str, MatchResult]) -> float:
        began = time.perf_counter()
        expected = self.scan.outcomes_for(asked)
        seconds = time.perf_counter() - began
        if expected != found:
            raise AssertionError(f"index and scan differ for {asked}")
        return seconds


def run(settings: Settings) -> Figures:
    """Measure; what is asked for is new in each round, what is kept is the same."""
    figures = Figures()
    sizes = [("export", 0, size) for size in IMPORTS[: 1 if settings.quick else None]]
    sizes += [("import", size, 0) for size in EXPORTS[: 1 if settings.quick else None]]
    gc.disable()
    try:
        for kind, exports, imports in sizes:
            began = time.perf_counter()
            bench = Bench(exports or KEPT, imports or KEPT)
            size = exports or imports
            settings.say(f"{kind} against {size:,}, built in {time.perf_counter() - began:.1f} s")
            ask = bench.new_export if kind == "export" else bench.new_import
            name = f"new {kind} against {size:,}"
            samples = Figures()
            for number in range(settings.rounds * (OFTENER if size <= SMALL else 1)):
                if number:
                    time.sleep(PAUSE_S)
                figures.yardstick()
                bench.round(samples, name, ask, size)
            _take_over(figures, samples)
            del bench
            gc.collect()
    finally:
        gc.enable()
    for _ in range(settings.rounds):
        fan_out(figures, FANNED // (10 if settings.quick else 1))
    for part, count in memory(IN_MEMORY // (10 if settings.quick else 1)).items():
        figures.add(f"memory per subscription, {part}", count, "bytes")
    figures.note("`all in` is what a whole broker holds that read them from its file.")
    figures.note("A new Import is read, filed and asked for.")
    figures.note("A new Export is asked for, and filed when an Import asks next: beside the rest.")
    figures.note(f"Every answer that the scan gave, too, was the same; {ASKED} asked per round.")
    return figures


def _take_over(figures: Figures, samples: Figures) -> None:
    for name, values in samples.samples.items():
        for value in values:
            figures.add(name, value, samples.units[name])


def _at_once(work: Coroutine[Any, Any, object]) -> None:
    """Run what never waits for anybody, without a loop."""
    with suppress(StopIteration):
        work.send(None)


def fan_out(figures: Figures, importers: int) -> None:
    """Add how long the broker's loop is held by one change of one of many importers."""
    with TemporaryDirectory() as folder:
        store = Store(Path(folder) / "broker.sqlite")
        store.file.db.execute("PRAGMA synchronous = OFF")
        runtime = Runtime(store, HintSender())
        runtime.feed.start()
        _at_once(runtime.put(_named("Export", "feed", {"properties": {"kind": "hot"}})))
        took: list[float] = []
        for number in range(importers):
            one = _named("Import", f"a{number}", {"subscription": 'kind == "hot"'})
            began = time.perf_counter()
            _at_once(runtime.put(one))
            took.append(time.perf_counter() - began)
        began = time.perf_counter()
        view = runtime.view(PeKey(namespace="default", job="feed", pe=0))
        drawn = time.perf_counter() - began
        if view is None or len(view.exports["p"].routes) != importers:
            raise AssertionError("routes are missing")
        store.close()
    name = f"one importer more of {importers:,}"
    figures.add(f"{name}, p50", quantile(took[-LAST:], 0.5) * 1e3, "ms")
    figures.add(f"{name}, the exporter's view drawn", drawn * 1e3, "ms")


def _named(kind: Kind, job: str, spec: dict[str, object]) -> Resource:
    return read_spec(kind, spec, key=PortKey(namespace="default", job=job, pe=0, port="p"))


def memory(count: int) -> dict[str, float]:
    """Return bytes of resident memory per subscription, each part in a process of its own."""
    found: dict[str, float] = {}
    for measured in (_grown, _whole):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            found |= pool.submit(measured, count).result()
    return found


def _grown(count: int) -> dict[str, float]:
    rng, index = random.Random(1), IndexMatcher()
    for number in range(KEPT):
        index.put(population.export(rng, number))
    parse("a == 1")
    gc.collect()
    before = _resident()
    kept = [population.import_(rng, number) for number in range(count)]
    gc.collect()
    between = _resident()
    for import_ in kept:
        index.put(import_)
    gc.collect()
    after = _resident()
    return {
        "resource": (between - before) / count,
        "index": (after - between) / count,
    }


def _whole(count: int) -> dict[str, float]:
    """Fill a broker from its file, as it starts; each subscription is of a PE of its own."""
    with TemporaryDirectory() as folder:
        few, many = Path(folder) / "few.sqlite", Path(folder) / "many.sqlite"
        rng = random.Random(1)
        exports: list[Resource] = [population.export(rng, number) for number in range(KEPT)]
        write(few, exports)
        write(many, [*exports, *(population.import_(rng, number) for number in range(count))])
        del exports
        first = started(few)
        gc.collect()
        before = _resident()
        second = started(many)
        gc.collect()
        after = _resident()
        if len(second.board.versions()) != len(first.board.versions()) + count:
            raise AssertionError("not all were read")
    return {"all in": (after - before) / count}


def started(path: Path) -> Runtime:
    """Return what a broker holds of a file."""
    runtime = Runtime(Store(path), HintSender())
    runtime.feed.start()
    return runtime


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
