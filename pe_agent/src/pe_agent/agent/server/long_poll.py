"""Long polls of other agents: heads of exports, and leases of their readers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pe_agent.agent.agent import Agent
from pe_agent.agent.server.plan_request import MAX_LEASE, BodyInvalidError, read_chains
from streambroker_core.errors import StreambrokerError
from streambroker_core.ledger.routes import NotRoutedError

MAX_EXPORTS = 256
"""Maximum exports per request; an agent that reads more sends several."""
MAX_WAIT_SECONDS = 10.0


class WatchService:
    """Serves the watches of other agents."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def watch(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Respond as soon as a head differs from the caller's, else after ``wait`` seconds.

        A caller without access to any of the exports gets its response at once, so that it
        occupies no thread of the agent.

        Raises:
            BodyInvalidError: too many exports.
        """
        requests, lease = body["exports"], min(MAX_LEASE, float(body["lease"]))
        if len(requests) > MAX_EXPORTS:
            raise BodyInvalidError(
                f"a watch is of {MAX_EXPORTS} exports at most, not {len(requests)}"
            )
        heads_by_export = {e: self._head(e, ask, lease) for e, ask in requests.items()}
        if all("error" in head for head in heads_by_export.values()):
            return {"exports": heads_by_export}
        exports = self._agent.notifier.wait_for(
            frozenset(requests),
            min(MAX_WAIT_SECONDS, float(body["wait"])),
            lambda: {e: self._head(e, ask, lease) for e, ask in requests.items()},
            lambda heads: any(_differs(requests[e], head) for e, head in heads.items()),
        )
        return {"exports": exports}

    def _head(self, export: str, request: Mapping[str, Any], lease: float) -> dict[str, Any]:
        """Renew the readers' leases, with or without a route; return heads for routed imports.

        Returns:
            ``{"heads", "ended"}``, heads None for a caller that only has a plan; or
            ``{"error", "code"}`` for a caller with neither a plan nor a valid capability.
        """
        heads, ended, has_plan = None, False, False
        refused: StreambrokerError = NotRoutedError(
            f"no reader of the caller holds a plan of export {export}, and it shows no capability"
        )
        for import_, of in request["imports"].items():
            try:
                exported, routed = self._agent.get_export(export), False
                try:
                    routed = of["capability"] is not None and self._check_authorized(
                        export, import_, of
                    )
                finally:
                    passes, waits = _parse_readers(of["readers"]), read_chains(of)
                    authenticated = [
                        r
                        for r in passes
                        if routed or self._agent.is_pass_valid(export, import_, r, passes[r])
                    ]
                    for reader in authenticated:
                        has_plan |= exported.plans.renew_reader(reader, import_, lease)
                    exported.backpressure.note_wait_chains(
                        import_, {r: waits.get(r, []) for r in authenticated}
                    )
                if routed:
                    heads, ended = exported.state.heads(), exported.state.ended()
            except StreambrokerError as error:
                refused = error
        if heads is None and not has_plan:
            return {"error": str(refused), "code": refused.code}
        return {"heads": heads, "ended": ended}

    def _check_authorized(self, export: str, import_: str, request: Mapping[str, Any]) -> bool:
        self._agent.authorize_peer(
            {"export": export, "import": import_, "capability": request["capability"]}
        )
        return True

    def leave(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """End a reader's lease at the request of its own agent, which shows the pass."""
        export, import_, reader = str(body["export"]), str(body["import"]), str(body["reader"])
        exported = self._agent.get_export(export)
        if self._agent.is_pass_valid(export, import_, reader, body.get("pass")):
            exported.plans.end_reader_lease(reader, import_)
        return {}


def _parse_readers(value: Any) -> dict[str, Any]:
    """Return the passes by reader; an older agent sends a list of ids without passes."""
    return dict(value) if isinstance(value, Mapping) else dict.fromkeys(value)


def _differs(request: Mapping[str, Any], head: Mapping[str, Any]) -> bool:
    """Return whether a head changed; ``ended`` counts only for callers that send it."""
    if head.get("heads") != request["heads"]:
        return True
    return "ended" in request and head.get("ended", False) != bool(request["ended"])
