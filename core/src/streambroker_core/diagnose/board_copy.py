"""A second board, brought to what the first one holds."""

from __future__ import annotations

from collections.abc import Sequence

from streambroker_core.board import Board, Synced
from streambroker_core.diagnose.explain_port import BoardSnapshot
from streambroker_core.model import Kind, Resource


class BoardCopy:
    """A board for questions that take longer than the first one may stand still.

    The resources are those of the first board, not copies. The first time costs as much
    as filling a board; after that only what is another is matched.
    """

    def __init__(self) -> None:
        self._board = Board(decides_generations=False)
        self._version = 0

    def load(self, snapshot: BoardSnapshot) -> Board:
        """Return a board that holds a whole survey and nothing else.

        It is the same board each time: the answers of the last one end here.
        """
        self._version += 1
        kinds: tuple[tuple[Kind, Sequence[Resource]], ...] = (
            ("Export", snapshot.exports),
            ("Import", snapshot.imports),
        )
        for kind, resources in kinds:
            listed = tuple((resource, self._version) for resource in resources)
            self._board.handle(Synced(kind=kind, listed=listed, version=self._version))
        return self._board
