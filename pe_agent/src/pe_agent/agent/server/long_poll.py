"""Long polls of other agents: heads of exports, and leases of their readers."""

from __future__ import annotations

from collections.abc import Mapping

from pe_agent.agent.agent import Agent
from pe_agent.agent.exports.export_state import ExportState
from pe_agent.agent.server.caller_checks import MAX_LEASE, BodyInvalidError
from pe_agent.agent.server.peer_access import PeerAccess
from streambroker_core.errors import StreambrokerError
from streambroker_core.ledger.routes import NotRoutedError
from streambroker_core.wire.agent_rpc.peer import (
    ExportHead,
    Heads,
    PeerCredentials,
    PeerLeave,
    PeerWatch,
    RefusedHead,
    WatchedExport,
    WatchedImport,
)

_Head = ExportHead | RefusedHead

MAX_EXPORTS = 256
"""Maximum exports per request; an agent that reads more sends several."""
MAX_WAIT_SECONDS = 10.0


class WatchService:
    """Serves the watches of other agents."""

    def __init__(self, agent: Agent, access: PeerAccess) -> None:
        self._agent = agent
        self._access = access

    def watch(self, request: PeerWatch) -> Heads:
        """Respond as soon as a head differs from the caller's, else after ``wait`` seconds.

        A caller without access to any of the exports gets its response at once, so that it
        occupies no thread of the agent.

        Raises:
            BodyInvalidError: too many exports.
        """
        requests, lease = request.exports, min(MAX_LEASE, request.lease)
        if len(requests) > MAX_EXPORTS:
            raise BodyInvalidError(
                f"a watch is of {MAX_EXPORTS} exports at most, not {len(requests)}"
            )
        heads = self._heads(requests, lease)
        if all(isinstance(head, RefusedHead) for head in heads.values()):
            return Heads(exports=heads)
        heads = self._agent.notifier.wait_for(
            frozenset(requests),
            min(MAX_WAIT_SECONDS, request.wait),
            lambda: {e: self._newest(e, requests[e], head, lease) for e, head in heads.items()},
            lambda heads: any(_differs(requests[e], head) for e, head in heads.items()),
        )
        return Heads(exports=heads)

    def _newest(self, export: str, of: WatchedExport, head: _Head, lease: float) -> _Head:
        """Return an export's head now: one routed import is checked, and leases are renewed once.

        All imports are checked where that import has lost its route.
        """
        if isinstance(head, RefusedHead) or head.heads is None:
            return self._head(export, of.imports, lease)
        for import_, watched in of.imports.items():
            try:
                if watched.capability is not None:
                    return self._head_for(export, import_, watched.capability)
            except StreambrokerError:
                continue
        return self._head(export, of.imports, lease)

    def _head_for(self, export: str, import_: str, capability: str) -> ExportHead:
        shown = PeerCredentials(export=export, import_=import_, capability=capability)
        return _head_of(self._access.authorize(shown).export.state)

    def _heads(self, requests: Mapping[str, WatchedExport], lease: float) -> dict[str, _Head]:
        return {export: self._head(export, of.imports, lease) for export, of in requests.items()}

    def _head(self, export: str, imports: Mapping[str, WatchedImport], lease: float) -> _Head:
        """Renew the readers' leases, with or without a route; return heads for routed imports."""
        state, has_plan = None, False
        refused: StreambrokerError = NotRoutedError(
            f"no reader of the caller holds a plan of export {export}, and it shows no capability"
        )
        for import_, of in imports.items():
            try:
                exported, routed = self._agent.exports.get(export), False
                try:
                    if of.capability is not None:
                        shown = PeerCredentials(
                            export=export, import_=import_, capability=of.capability
                        )
                        self._access.authorize(shown)
                        routed = True
                finally:
                    authenticated = [
                        reader
                        for reader, pass_ in of.passes.items()
                        if routed or self._access.is_pass_valid(export, import_, reader, pass_)
                    ]
                    for reader in authenticated:
                        has_plan |= exported.plans.renew_reader(reader, import_, lease)
                    exported.backpressure.note_wait_chains(
                        import_, {r: of.waits.get(r, ()) for r in authenticated}
                    )
                state = exported.state if routed else state
            except StreambrokerError as error:
                refused = error
        if state is not None:
            return _head_of(state)
        if not has_plan:
            return RefusedHead(error=str(refused), code=refused.code)
        return ExportHead(heads=None)

    def leave(self, request: PeerLeave) -> None:
        """End a reader's lease at the request of its own agent, which shows the pass."""
        export, import_, reader = request.export, request.import_, request.reader
        exported = self._agent.exports.get(export)
        if self._access.is_pass_valid(export, import_, reader, request.pass_):
            exported.plans.end_reader_lease(reader, import_)


def _head_of(state: ExportState) -> ExportHead:
    with state.lock:
        rows = {stream.id: stream.rows for stream in state.ledger.streams.values()}
        return ExportHead(heads=state.heads(), ended=state.ended(), rows=rows)


def _differs(request: WatchedExport, head: _Head) -> bool:
    """Return whether a head changed; ``ended`` counts only for callers that send it."""
    heads, ended = (head.heads, head.ended) if isinstance(head, ExportHead) else (None, False)
    return heads != request.heads or (request.ended is not None and ended != request.ended)
