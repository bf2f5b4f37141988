"""Policies of one export, and what they leave to its readers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Protocol

from pe_agent.agent.exports.stream.export_stream import VisibleStream
from pe_agent.agent.exports.stream.restricted_stream import restricted
from pe_agent.agent.state.store import Store
from streambroker_core.model.policies import (
    NO_POLICIES,
    Policies,
    Restriction,
    combine,
    restrict,
    restrict_unknown,
)
from streambroker_core.wire.encoding.fields import Fields
from streambroker_core.wire.encoding.policies import read_policies, write_policies


class _KnownReader(Protocol):
    import_: str


class ExportPolicies:
    """The present policies; they are replaced as a whole, so readers need no lock.

    Attributes:
        current: from the last view, or as declared before the first one.
    """

    def __init__(
        self,
        store: Store,
        key: str,
        readers: Mapping[str, _KnownReader],
        pinned: Mapping[str, Restriction],
    ) -> None:
        """Read the stored policies; ``pinned`` has what was left to a reader by its plan."""
        self._store, self._key = store, f"policies/{key}"
        self._readers, self._pinned = readers, pinned
        self.current: Policies = store.value(self._key, _decode, NO_POLICIES)

    def apply(self, policies: Policies) -> None:
        """Apply a view's policies, also to what is planned; they hold after a restart."""
        if policies != self.current:
            self.current = policies
            self._store.set(self._key, json.dumps(write_policies(policies)))

    def of_import(self, import_: str) -> Restriction | None:
        """Return what the policies leave to an import now; None for everything.

        Raises:
            PolicyDeniedError: they leave nothing.
        """
        if not self.current:
            return None
        namespace, job = import_.split("/")[:2]
        return restrict(self.current, namespace, job)

    def of_reader(self, reader: str) -> Restriction | None:
        """Return what is left to a reader: by the policies now, and by those of its plan.

        A reader that is not known gets the least; it has no plan to read either.

        Raises:
            PolicyDeniedError: nothing is left.
        """
        pinned = self._pinned.get(reader)
        if not self.current:
            return pinned
        known = self._readers.get(reader)
        if known is None:
            return restrict_unknown(self.current)
        return combine(pinned, self.of_import(known.import_))

    def show(self, stream: VisibleStream, reader: str) -> VisibleStream:
        """Return a stream as a reader may see it.

        Raises:
            PolicyDeniedError: see `of_reader`.
        """
        return restricted(stream, self.of_reader(reader))


def _decode(text: str) -> Policies:
    return read_policies(Fields(json.loads(text)), None)
