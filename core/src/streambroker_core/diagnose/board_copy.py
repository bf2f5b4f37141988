"""A copy of a board for long-running queries."""

from __future__ import annotations

from collections.abc import Sequence

from streambroker_core.board import Board, BoardReader, Synced
from streambroker_core.diagnose.explain_port import BoardSnapshot
from streambroker_core.model import Kind, Resource


class BoardCopy:
    """A second board with the resources of the first, for queries too long for the first.

    It shares the resource objects. The first load costs as much as filling a board; later loads
    match only what changed.
    """

    def __init__(self) -> None:
        self._board = Board(decides_generations=False)
        self._version = 0

    def load(self, snapshot: BoardSnapshot) -> BoardReader:
        """Return a board that contains exactly the resources of a snapshot.

        It is the same board each time: a load invalidates earlier results.
        """
        self._version += 1
        kinds: tuple[tuple[Kind, Sequence[Resource]], ...] = (
            ("Export", snapshot.exports),
            ("Import", snapshot.imports),
        )
        for kind, resources in kinds:
            listed = tuple((resource, self._version) for resource in resources)
            self._board.handle(Synced(kind=kind, listed=listed, version=self._version))
        self._board.reader.quotas = snapshot.quotas
        return self._board.reader
