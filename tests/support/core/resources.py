"""Builders of Exports, Imports and registrations for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from streambroker_core.board import Board, BoardReader, Synced
from streambroker_core.model import Export, Import, PeKey, PortKey, Resource, kind_of
from streambroker_core.wire.broker.registration import Registration
from streambroker_core.wire.manifests.ports import read_spec


def port(text: str) -> PortKey:
    """Return the key of ``job/port``, ``job/pe/port`` or ``namespace/job/pe/port``."""
    parts = text.split("/")
    if len(parts) == 2:
        parts = ["default", parts[0], "0", parts[1]]
    elif len(parts) == 3:
        parts = ["default", *parts]
    return PortKey.parse("/".join(parts))


def pe(text: str) -> PeKey:
    """Return the key of ``job`` or ``namespace/job/pe``."""
    return PeKey.parse(text if "/" in text else f"default/{text}/0")


def export_of(
    where: str = "feed/trades", *, uid: str = "", created: float = 0.0, **spec: Any
) -> Export:
    """Return an Export with properties ``kind: trade`` unless the spec says otherwise."""
    if "streamId" not in spec:
        spec.setdefault("properties", {"kind": "trade"})
    found = read_spec("Export", spec, key=port(where))
    return cast(Export, replace(found, uid=uid or f"x-{where}", created=created))


def import_of(
    where: str = "alerts/trades", *, uid: str = "", created: float = 0.0, **spec: Any
) -> Import:
    """Return an Import that wants ``kind == "trade"`` unless the spec says otherwise."""
    if "streams" not in spec:
        spec.setdefault("subscription", 'kind == "trade"')
    found = read_spec("Import", spec, key=port(where))
    return cast(Import, replace(found, uid=uid or f"i-{where}", created=created))


def registration(
    location: str = "grpc+tcp://127.0.0.1:4711", hint: str | None = "127.0.0.1:9"
) -> Registration:
    return Registration(instance="0123456789abcdef", location=location, hint=hint)


def board_of(*resources: Resource, version: int = 10) -> Board:
    board = Board()
    exports = tuple((r, version) for r in resources if isinstance(r, Export))
    imports = tuple((r, version) for r in resources if isinstance(r, Import))
    board.handle(Synced(kind="Export", listed=exports, version=version))
    board.handle(Synced(kind="Import", listed=imports, version=version))
    return board


def picture(board: BoardReader) -> Any:
    """Return all that can be asked of a board."""
    everything: list[Resource] = [*board.exports(), *board.imports()]
    return (
        everything,
        board.routes(),
        board.point,
        [board.view(pe) for pe in sorted(board.versions())],
        [board.status(kind_of(r), r.uid) for r in everything],
        [dict(board.outcomes_for(r)) for r in everything],
    )
