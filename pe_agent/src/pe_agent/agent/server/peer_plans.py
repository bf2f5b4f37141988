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
from pe_agent.transport.flight_errors import to_facts
from streambroker_core.control.tuples import MAX_BYTES, MAX_TUPLES
from streambroker_core.ledger.offset import column_names
from streambroker_core.ledger.plan import Plan, PlanRequest
from streambroker_core.model import job_of
from streambroker_core.wire.agent_rpc.peer import (
    PeerCredentials,
    PeerPlan,
    PeerPlans,
    PeerReplan,
    PeerSnapshot,
    PlanGroup,
    Planned,
    PlanReader,
    PlanResult,
    PlansMade,
    RegisteredPlan,
    credentials,
)

_Outcome = tuple[Planned | Exception, str | None]
"""Response, which equal readers share, or error; and the reader's pass."""
_NOT_PLANNED = Planned(planned=(), bytes=0, last=None, routed=True)


class PlanService:
    """Serves the plan requests of other agents."""

    def __init__(self, agent: Agent, access: PeerAccess) -> None:
        self._agent = agent
        self._access = access

    def plan(self, request: PeerPlan) -> Planned:
        """Acknowledge a reader's positions and plan its next epochs."""
        ((outcome, pass_),) = self._plan_group(PlanGroup(plan=request))
        if isinstance(outcome, Exception):
            raise outcome
        return replace(outcome, pass_=pass_)

    def plan_all(self, request: PeerPlans) -> PlansMade:
        """Handle the requests of several readers; the error of one leaves the others alone."""
        plans: list[Planned] = []
        results: list[PlanResult] = []
        for group in request.groups:
            for outcome, pass_ in self._plan_group(group):
                if isinstance(outcome, Exception):
                    code, text = to_facts(outcome)
                    results.append(PlanResult(code=code, error=text))
                    continue
                if not plans or (plans[-1] is not outcome and plans[-1] != outcome):
                    plans.append(outcome)
                results.append(PlanResult(plan=len(plans) - 1, pass_=pass_))
        return PlansMade(plans=plans, results=results)

    def _plan_group(self, group: PlanGroup) -> list[_Outcome]:
        """Return the responses or errors of equal requests with the readers' passes, in order."""
        request, outcomes = group.plan, list[_Outcome]()
        authorized: dict[int, tuple[PlanReader, AuthorizedRead]] = {}
        for n, reader in enumerate(group.readers):
            shown = PeerCredentials(
                export=request.export,
                import_=reader.import_,
                capability=reader.capability,
                reader=reader.reader,
                pass_=reader.pass_,
                filter=request.filter,
            )
            try:
                authorized[n] = reader, self._access.authorize(shown)
                outcomes.append((_NOT_PLANNED, None))
            except Exception as error:
                outcomes.append((error, None))
        if authorized:
            planned = self._plan_authorized(group, list(authorized.values()))
            for n, outcome in zip(authorized, planned, strict=True):
                outcomes[n] = outcome
        return outcomes

    def _plan_authorized(
        self, group: PlanGroup, authorized: Sequence[tuple[PlanReader, AuthorizedRead]]
    ) -> list[_Outcome]:
        request, export = group.plan, authorized[0][1].export
        plans = export.plans
        jobs = {job_of(r.import_) for r, _ in authorized} if export.policies.current else ()
        if len(jobs) > 1:  # an agent asks for its own job, and policies are for a job
            one_by_one = (self._plan_authorized(group, [one]) for one in authorized)
            return [outcome for outcomes in one_by_one for outcome in outcomes]
        try:
            self._access.check_filter(export, request.filter)
            restriction = export.policies.of_import(authorized[0][0].import_)
            mismatches = plans.schema_mismatches(
                request.filter, request.columns, request.schema, restriction
            )
            wide = plans.find_too_wide(request.schema)
            common = to_plan_request(request, AuthorizedRead(export, ""))
            planned = plans.plan_all(
                [
                    common._replace(
                        reader=reader.reader,
                        import_=reader.import_,
                        call=reader.call,
                        policy=of.policy,
                        positions=common.positions if of.granted else {},
                        granted=of.granted,
                    )
                    for reader, of in authorized
                ],
                filter_=request.filter,
                columns=request.columns,
                schema=request.schema,
                excluded=mismatches,
            )
        except Exception as error:
            return [(error, None)] * len(authorized)
        responses: dict[tuple[int, tuple[str, ...]], Planned] = {}
        outcomes: list[_Outcome] = []
        for (reader, _), plan in zip(authorized, planned, strict=True):
            if isinstance(plan, Exception):
                outcomes.append((plan, None))
                continue
            misfits = tuple(plans.list_misfits(reader.reader, mismatches, wide))
            shared = responses.get((id(plan), misfits))
            if shared is None:
                shared = responses[id(plan), misfits] = to_response(plan, misfits)
            pass_ = self._access.pass_for(export.key, reader.import_, reader.reader)
            outcomes.append((shared, pass_))
        return outcomes

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
            traces=registered.traces,
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
        return common._replace(start=request.start, once=True)
    return common._replace(
        start=request.start,
        has_opened=request.known,
        last=request.last,
        limit=request.limit,
        budget=request.budget,
        at_least_one=request.one,
        tuples=MAX_TUPLES if request.tuples is None else request.tuples,
        payload=MAX_BYTES if request.payload is None else request.payload,
    )


def to_response(plan: Plan, misfits: Sequence[str] = ()) -> Planned:
    """Return a ledger's plan as the response, without a pass."""
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
    )
