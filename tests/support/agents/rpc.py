"""Calls of handlers as an agent makes them: requests and responses are JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, cast, get_type_hints

from pe_agent.agent.exports.export import AgentExport
from pe_agent.agent.server.caller_checks import perform
from pe_agent.agent.server.peer_access import AuthorizedRead
from pe_agent.agent.server.peer_plans import to_plan_request
from streambroker_core.ledger.plan import PlanRequest
from streambroker_core.wire.agent_rpc.codec import Actions, decode, to_json
from streambroker_core.wire.agent_rpc.peer import PeerPlan, PeerReplan


def ask(handler: Callable[..., Any], body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the response of a handler whose parameter is ``request``."""
    kind = get_type_hints(handler)["request"]
    response: dict[str, Any] = to_json(handler(decode(kind, json.loads(json.dumps(body)))))
    return response or {}


def parse_plan_request(
    body: Mapping[str, Any], action: str, *, policy: str = "", granted: bool = True
) -> PlanRequest:
    """Return what the ledger is asked by a plan request, as the agent's service reads it."""
    found: list[PlanRequest] = []
    authorized = AuthorizedRead(cast(AgentExport, None), policy, granted)
    actions = Actions()

    def handle(request: PeerPlan | PeerReplan) -> None:
        found.append(to_plan_request(request, authorized))

    actions.on(PeerPlan, handle)
    actions.on(PeerReplan, handle)
    perform(actions, action, body)
    return found[0]
