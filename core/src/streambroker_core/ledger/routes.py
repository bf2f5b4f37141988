"""Routes of an export: the policy of each connected import, and the imports cut or revoked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from streambroker_core.errors import StreambrokerError

MAX_CUT = 10_000
"""Maximum imports remembered as cut."""


class NotRoutedError(StreambrokerError):
    """The import has no route to the export."""

    code = "NotRouted"


class RevokedError(StreambrokerError):
    """The export has revoked the import, which may not read even what was planned."""

    code = "Revoked"


class Routes:
    """The exporter's route table: policy (``wait`` or ``drop``) by import.

    Attributes:
        policies: without revoked imports.
        cut: imports that lost their route, most recent last.
    """

    def __init__(self) -> None:
        self.policies: dict[str, str] = {}
        self.cut: dict[str, None] = {}
        self._revoked: frozenset[str] = frozenset()

    def replace(self, policies: Mapping[str, str], revoked: Iterable[str]) -> dict[str, str]:
        """Apply a new table; return the policies before."""
        before, self._revoked = self.policies, frozenset(revoked)
        self.policies = {i: p for i, p in policies.items() if self.revoked_by(i) is None}
        self.restore_cut(before)
        self.cut = {import_: None for import_ in self.cut if import_ not in self.policies}
        return before

    def restore_cut(self, imports: Iterable[str]) -> None:
        """Mark imports as cut until a route table has them; beyond `MAX_CUT` drop the oldest."""
        for import_ in imports:
            self.cut[import_] = None
        while len(self.cut) > MAX_CUT:
            del self.cut[next(iter(self.cut))]

    def revoked_by(self, import_: str) -> str | None:
        """Return the revoked name that includes an import: its own, its job or its namespace."""
        if not self._revoked:
            return None
        parts = import_.split("/")
        names = ("/".join(parts[:n]) for n in range(1, len(parts) + 1))
        return next((name for name in names if name in self._revoked), None)

    def check_revoked(self, import_: str) -> None:
        """Raise `RevokedError` if the import, its job or its namespace is revoked."""
        named = self.revoked_by(import_)
        if named is not None:
            raise RevokedError(
                f"the export has revoked {named}: {import_} reads nothing more from it, and its"
                " planned epochs are not retained. Its owner can undo that (field revoked)."
            )
