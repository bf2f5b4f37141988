"""Quotas of namespaces: what is refused, what is warned of, and what is counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from streambroker_core.board import Board, ExportApplied, ImportApplied
from streambroker_core.diagnose import BoardCopy, BoardOverlay, find_put_problem, take_snapshot
from streambroker_core.diagnose.forecast import Proposal, forecast
from streambroker_core.errors import ManifestError
from streambroker_core.model import Buffer, Export, Import, Resource
from streambroker_core.wire.manifests.quotas import Quotas, Usage, read_quotas
from support.core.resources import export_of, import_of

MIB = 1 << 20


def export(where: str = "feed/trades", mib: int = 1, **more: Any) -> Export:
    return export_of(where, buffer={"maxBytes": mib * MIB}, **more)


def new(resource: Resource) -> Resource:
    """Return a resource as a change brings it."""
    return replace(resource, uid="")


def board_of(quotas: Any, *resources: Resource) -> Board:
    board = Board()
    board.reader.quotas = read_quotas(quotas)
    for version, one in enumerate(resources, 1):
        event = (
            ExportApplied(export=one, version=version)
            if isinstance(one, Export)
            else ImportApplied(import_=one, version=version)
        )
        board.handle(event)
    return board


def code(board: Board, resource: Resource) -> str:
    problem = find_put_problem(BoardOverlay(board.reader), new(resource))
    return "" if problem is None else problem.code


def test_a_port_above_the_quota_is_refused_and_one_that_exists_is_changed() -> None:
    board = board_of({"default": {"ports": 2}}, export(uid="a"), import_of(uid="b"))
    assert code(board, export("feed/more")) == "QuotaExceeded"
    assert code(board, import_of("more/in")) == "QuotaExceeded"
    assert code(board, export(allowFilter=False)) == ""


def test_bytes_are_those_that_logs_may_have_and_a_smaller_buffer_always_fits() -> None:
    archived = export("feed/a", 2, uid="a", archive={"maxBytes": "3Mi"})
    board = board_of({"*": {"bytes": "6Mi"}}, archived)
    assert board.reader.usage("default") == Usage(1, 5 * MIB)
    assert code(board, export("feed/b", 1)) == ""
    assert code(board, export("feed/b", 2)) == "QuotaExceeded"
    assert code(board, replace(archived, buffer=Buffer(max_bytes=4 * MIB))) == "QuotaExceeded"
    board.reader.quotas = read_quotas({"*": {"bytes": "1Mi"}})
    assert code(board, replace(archived, buffer=Buffer(max_bytes=MIB))) == ""
    assert code(board, import_of()) == ""


def test_an_archive_without_bytes_has_no_place_in_a_quota_of_bytes() -> None:
    aged = export(archive={"maxAge": "60s"})
    board = board_of({"*": {"bytes": "1Gi"}})
    problem = find_put_problem(BoardOverlay(board.reader), new(aged))
    assert "Set archive.maxBytes" in str(problem)
    assert code(board_of({"*": {"ports": 1}}), aged) == ""


def test_changes_that_are_made_together_are_counted_together() -> None:
    quotas = {"*": {"ports": 2}}
    puts = [new(export(f"feed/p{number}")) for number in range(3)]
    board = board_of(quotas)
    for reader in (board.reader, BoardCopy().load(take_snapshot(board.reader))):
        result = forecast(reader, Proposal(puts=tuple(puts)))
        assert [(one.index, one.code) for one in result.problems] == [(2, "QuotaExceeded")]


def test_an_overlay_counts_what_is_put_replaced_and_removed() -> None:
    board = board_of({}, export(uid="a", mib=4), import_of(uid="b"))
    overlay = BoardOverlay(board.reader)
    overlay.remove("Import", "b")
    assert overlay.usage("default") == Usage(1, 4 * MIB)
    overlay.put(export(uid="a", mib=6))
    overlay.put(export("feed/b", uid="c"))
    assert overlay.usage("default") == Usage(2, 7 * MIB)
    overlay.remove("Export", "a")
    assert overlay.usage("default") == Usage(1, MIB)


def test_a_warning_comes_before_the_quota_is_used_up() -> None:
    quota = read_quotas({"*": {"ports": 10, "bytes": 100}}).find("jobs")
    assert quota.warnings("jobs", Usage(7, 79)) == ()
    assert quota.warnings("jobs", Usage(8, 79)) == (
        "The namespace 'jobs' uses 8 of the 10 ports of its quota; the broker refuses what needs"
        " more.",
    )
    assert len(quota.warnings("jobs", Usage(8, 80))) == 2


def test_a_namespace_has_its_own_quota_or_that_of_all_others() -> None:
    quotas = read_quotas({"*": {"ports": 5}, "jobs": {"readerBytesPerSecond": "1Ki"}})
    assert quotas.find("lab").ports == 5
    assert (quotas.find("jobs").ports, quotas.find("jobs").reader_rate) == (None, 1024)
    assert Quotas().find("jobs").ports is None


@pytest.mark.parametrize(
    ("document", "place"),
    [
        ({"Jobs": {}}, "Jobs"),
        ({"jobs": {"port": 1}}, r"jobs\.port"),
        ({"jobs": {"ports": -1}}, r"jobs\.ports"),
        ({"jobs": {"bytes": "many"}}, r"jobs\.bytes"),
        ({"jobs": 5}, "jobs"),
    ],
)
def test_a_wrong_quota_is_refused_by_its_place(document: Any, place: str) -> None:
    with pytest.raises(ManifestError, match=place):
        read_quotas(document)


def test_without_a_quota_nothing_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    board = board_of({"*": {"readerBytesPerSecond": 5}}, export(uid="a"))
    monkeypatch.setattr(BoardOverlay, "usage", None)
    found: Import | Export = import_of("more/in")
    assert code(board, found) == ""
