"""What other agents ask all the time: heads of exports by long poll, leases of their readers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pe_agent.agent.agent import Agent
from pe_agent.agent.server.plan_request import MAX_LEASE, BodyInvalidError, read_chains
from streambroker_core.errors import StreambrokerError
from streambroker_core.ledger.ledger import NotRoutedError

MAX_EXPORTS = 256
"""Exports in one request; an agent that reads more asks several times."""
MAX_WAIT_SECONDS = 10.0


class WatchService:
    """Answers the watches of other agents."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def watch(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Answer as soon as a head differs from what the caller has, else after ``wait``.

        A caller that may know nothing of any of the exports has its answer at once: it holds no
        thread of the agent.

        Raises:
            BodyInvalidError: it asks about too many exports.
        """
        asked, lease = body["exports"], min(MAX_LEASE, float(body["lease"]))
        if len(asked) > MAX_EXPORTS:
            raise BodyInvalidError(f"a watch is of {MAX_EXPORTS} exports at most, not {len(asked)}")
        found = {e: self._head(e, ask, lease) for e, ask in asked.items()}
        if all("error" in head for head in found.values()):
            return {"exports": found}
        exports = self._agent.notifier.wait_for(
            frozenset(asked),
            min(MAX_WAIT_SECONDS, float(body["wait"])),
            lambda: {e: self._head(e, ask, lease) for e, ask in asked.items()},
            lambda heads: any(_differs(asked[e], head) for e, head in heads.items()),
        )
        return {"exports": exports}

    def _head(self, export: str, request: Mapping[str, Any], lease: float) -> dict[str, Any]:
        """Renew the readers, whether their route is there or not; heads are for routed imports.

        Returns:
            ``{"heads", "ended"}``; heads None for a caller that only holds a plan;
            ``{"error", "code"}`` for one that holds neither a plan nor a capability that counts.
        """
        heads, ended, holds = None, False, False
        refused: StreambrokerError = NotRoutedError(
            f"no reader of the caller holds a plan of export {export}, and it shows no capability"
        )
        for import_, of in request["imports"].items():
            try:
                hosted, routed = self._agent.get_export(export), False
                try:
                    routed = of["capability"] is not None and self._check_authorized(
                        export, import_, of
                    )
                finally:
                    told, waits = _parse_readers(of["readers"]), read_chains(of)
                    own = [
                        r
                        for r in told
                        if routed or self._agent.is_pass_valid(export, import_, r, told[r])
                    ]
                    for reader in own:
                        holds |= hosted.renew_reader(reader, import_, lease)
                    hosted.note_wait_chains(import_, {r: waits.get(r, []) for r in own})
                if routed:
                    heads, ended = hosted.heads(), hosted.ended()
            except StreambrokerError as error:
                refused = error
        if heads is None and not holds:
            return {"error": str(refused), "code": refused.code}
        return {"heads": heads, "ended": ended}

    def _check_authorized(self, export: str, import_: str, request: Mapping[str, Any]) -> bool:
        self._agent.authorize_peer(
            {"export": export, "import": import_, "capability": request["capability"]}
        )
        return True

    def leave(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Take note that a reader's process ended in order, if its own agent says so."""
        export, import_, reader = str(body["export"]), str(body["import"]), str(body["reader"])
        hosted = self._agent.get_export(export)
        if self._agent.is_pass_valid(export, import_, reader, body.get("pass")):
            hosted.end_reader_lease(reader, import_)
        return {}


def _parse_readers(value: Any) -> dict[str, Any]:
    """Return the pass of each reader; an older agent has a list of ids, and no passes."""
    return dict(value) if isinstance(value, Mapping) else dict.fromkeys(value)


def _differs(request: Mapping[str, Any], head: Mapping[str, Any]) -> bool:
    """Whether there is news for a caller; one that does not say ``ended`` does not want to know."""
    if head.get("heads") != request["heads"]:
        return True
    return "ended" in request and head.get("ended", False) != bool(request["ended"])
