"""Plan requests of importers' agents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pe_agent.agent.agent import Agent
from pe_agent.agent.exports import read_grant as grants
from pe_agent.agent.exports import reader_plans
from pe_agent.agent.exports.batch_reads import plan_batch_read
from pe_agent.agent.exports.export import AgentExport
from pe_agent.agent.exports.read_grant import Grant
from pe_agent.agent.server.caller_checks import MAX_LEASE
from pe_agent.agent.server.peer_access import AuthorizedRead, PeerAccess
from streambroker_core.control.tuples import MAX_BYTES, MAX_TUPLES
from streambroker_core.ledger.offset import column_names
from streambroker_core.ledger.plan import Plan, PlanRequest
from streambroker_core.wire.agent_rpc.peer import (
    PeerPlan,
    PeerReplan,
    PeerSnapshot,
    Planned,
    RegisteredPlan,
    credentials,
)


class PeerPlans:
    """Serves the plan requests of other agents."""

    def __init__(self, agent: Agent, access: PeerAccess) -> None:
        self._agent = agent
        self._access = access

    def plan(self, request: PeerPlan) -> Planned:
        """Acknowledge a reader's positions and plan its next epochs."""
        authorized = self._access.authorize(credentials(request))
        export, plans = authorized.export, authorized.export.plans
        self._access.check_filter(export, request.filter)
        mismatches = plans.schema_mismatches(request.filter, request.columns, request.schema)
        plan = plans.plan(
            to_plan_request(request, authorized),
            filter_=request.filter,
            columns=request.columns,
            excluded=mismatches,
        )
        misfits = [
            why for stream, why in mismatches.items() if plans.blocks_reader(request.reader, stream)
        ]
        pass_ = self._access.pass_for(export.key, request.import_, request.reader)
        return to_response(plan, misfits, pass_)

    def register(self, request: PeerReplan) -> RegisteredPlan:
        """Register a plan again and return its blocks, with grants to read them."""
        authorized = self._access.authorize(credentials(request), planned=True)
        export, plans = authorized.export, authorized.export.plans
        if not plans.is_planned_with(request.reader, request.filter):
            self._access.check_filter(export, request.filter)
        registered = plans.register_plan(
            to_plan_request(request, authorized),
            request.ranges,
            filter_=request.filter,
            columns=request.columns,
        )
        return self._grant(export, request, registered)

    def snapshot(self, request: PeerSnapshot) -> RegisteredPlan:
        """Plan a batch read and return its blocks, with a grant to read them."""
        authorized = self._access.authorize(credentials(request))
        export = authorized.export
        self._access.check_filter(export, request.filter)
        registered = plan_batch_read(
            export,
            to_plan_request(request, authorized),
            request.end,
            filter_=request.filter,
            columns=request.columns,
            schema=request.schema,
        )
        return self._grant(export, request, registered)

    def _grant(
        self,
        export: AgentExport,
        request: PeerReplan | PeerSnapshot,
        registered: reader_plans.RegisteredPlan,
    ) -> RegisteredPlan:
        grant = Grant(
            export=export.key,
            reader=request.reader,
            ranges=registered.ranges,
            filter=request.filter,
            columns=column_names(request.columns),
        )
        return RegisteredPlan(
            grant=grants.sign(self._agent.token, grant),
            pass_=self._access.pass_for(export.key, request.import_, request.reader),
            blocks=registered.blocks,
            gone=registered.missing,
            order=registered.order,
            control=registered.control,
            direct=registered.direct,
        )


def to_plan_request(
    request: PeerPlan | PeerReplan | PeerSnapshot, authorized: AuthorizedRead
) -> PlanRequest:
    """Return the ledger's request; without a grant it acknowledges nothing."""
    control = None if request.control is None else frozenset(request.control)
    common = PlanRequest(
        reader=request.reader,
        import_=request.import_,
        policy=authorized.policy,
        start="latest",
        has_opened=True,
        positions=request.positions if authorized.granted else {},
        own_streams=frozenset(request.own),
        budget=0,
        lease=min(MAX_LEASE, request.lease),
        skip_lost=request.lossy,
        granted=authorized.granted,
        call=request.call,
        control=control,
    )
    if isinstance(request, PeerReplan):
        return common
    if isinstance(request, PeerSnapshot):
        return replace(common, start=request.start, once=True)
    return replace(
        common,
        start=request.start,
        has_opened=request.known,
        last=request.last,
        limit=request.limit,
        budget=request.budget,
        at_least_one=request.one,
        tuples=MAX_TUPLES if request.tuples is None else request.tuples,
        payload=MAX_BYTES if request.payload is None else request.payload,
    )


def to_response(plan: Plan, misfits: Sequence[str] = (), pass_: str | None = None) -> Planned:
    """Return a ledger's plan as the response."""
    return Planned(
        planned=plan.planned,
        bytes=plan.bytes,
        last=plan.last,
        routed=plan.routed,
        gone=plan.unknown_streams,
        quiet=dict(plan.rowless_streams),
        tuples=plan.tuples,
        payload=plan.payload,
        misfits=misfits,
        pass_=pass_,
    )
