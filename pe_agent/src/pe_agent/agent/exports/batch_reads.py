"""Batch reads of an export: a plan of all epochs between two times."""

from __future__ import annotations

from pe_agent.agent.exports.export import AgentExport
from pe_agent.agent.exports.reader_plans import RegisteredPlan
from pe_agent.agent.exports.stream.row_filter import first_too_wide
from pe_agent.transport.rows.casts import SchemaWidenedError
from streambroker_core.errors import StreambrokerError
from streambroker_core.ledger.plan import PlanRequest


class SchemaMismatchError(StreambrokerError):
    """Epochs of a batch read lack its columns; nothing was planned."""

    code = "SchemaMismatch"


def plan_batch_read(
    export: AgentExport,
    request: PlanRequest,
    end: str,
    *,
    filter_: str | None,
    columns: list[str] | None,
    schema: str | None,
) -> RegisteredPlan:
    """Register a batch read from the start of ``request`` to ``end``.

    Raises:
        SchemaMismatchError: epochs in between lack columns of ``schema``.
        SchemaWidenedError: epochs in between have wider types.
        PolicyDeniedError: policies leave nothing to the import.
        DataLossError, OvertakenError, ReadersExceededError, RevokedError: see core's ledger.
    """
    with export.state.lock:
        now = export.state.clock()
        ranges = export.state.ledger.planner.find_epochs(request.start, end, now)
        restriction = export.policies.of_import(request.import_)
        mismatches = export.plans.schema_mismatches(filter_, columns, schema, restriction)
        for stream in ranges:
            if stream in mismatches:
                raise SchemaMismatchError(mismatches[stream])
            stop = first_too_wide(export.state.streams[stream], schema)
            if stop is not None and ranges[stream][1] > stop[0]:
                raise SchemaWidenedError(f"stream {stream}: {stop[1]}. Read the wider type.")
        if not ranges:
            return RegisteredPlan(blocks={}, missing={})
        return export.plans.register_plan(request, ranges, filter_=filter_, columns=columns)
