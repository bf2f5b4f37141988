"""The actions that an agent's own job may call."""

from __future__ import annotations

import base64
from functools import partial
from typing import Any

import pyarrow as pa

from pe_agent.agent.agent import Agent
from pe_agent.agent.exports.peek import peek
from streambroker_core.control.tuples.epoch_control import parse_indexed
from streambroker_core.wire.agent_rpc import job, publisher, reader
from streambroker_core.wire.agent_rpc.codec import Actions


def job_actions(agent: Agent) -> Actions:
    """Return the actions of one agent; those of other agents may be added."""
    actions = Actions()
    _add_publisher(actions, agent)
    imports, rules = agent.imports, agent.rule_state
    actions.on(reader.ReaderNext, partial(agent.answer_read, imports.next_offset))
    actions.on(reader.ReaderSlices, partial(agent.answer_read, imports.slices.plan_slices))
    actions.on(
        reader.ReaderRenew,
        lambda r: reader.Renewed(renewed=imports.state.readers.renew(r.reader, r.session)),
    )
    actions.on(reader.ReaderLeave, agent.end_reader)
    actions.on(reader.ReaderHeads, imports.available_now.heads)
    actions.on(reader.ReaderSnapshot, imports.snapshots.plan)
    actions.on(reader.ReaderDone, imports.snapshots.finish_slice)
    actions.on(reader.ReaderWhere, imports.slices.locate)
    actions.on(job.QueryBegin, imports.begin_query)
    actions.on(job.QueryEnd, agent.end_query)
    actions.on(job.Declare, agent.declare)
    actions.on(reader.GetSchema, agent.view_queries.find_schema)
    actions.on(job.GetView, agent.view_queries.wait_for_view)
    actions.on(job.GetStatus, lambda _: agent.status())
    actions.on(job.TakeSnapshot, lambda r: agent.take_snapshot(r.name))
    actions.on(job.DriverRenew, lambda _: agent.renew_driver())
    actions.on(job.Stop, lambda _: agent.stopping.set())
    actions.on(job.ControlAppend, lambda r: agent.control_log.append(r.request, r.what))
    actions.on(job.ControlEntry, lambda r: agent.control_log.entry(r.seq))
    actions.on(job.RulesWanted, rules.wait_for_rules)
    actions.on(job.RulesReport, rules.report)
    actions.on(job.RulesLeave, lambda r: rules.leave(r.discoverer))
    actions.on(job.RulesMetrics, agent.rule_metrics.record)
    actions.on(job.WindowsReport, agent.window_reports.record)
    actions.on(job.WindowsReported, agent.window_reports.windows)
    actions.on(job.SidesMetrics, lambda r: agent.side_reports.record(r.buckets))
    actions.on(job.SidesRunning, lambda r: agent.side_reports.retain_running(r.queries))
    return actions


def _add_publisher(actions: Actions, agent: Agent) -> None:
    export = agent.exports.get
    actions.on(
        publisher.PublisherAdmit,
        lambda r: export(r.export).publisher.admit(
            query=r.query,
            run=r.run,
            batch=r.batch,
            ddl=r.ddl,
            renewed=r.renewed,
        ),
    )
    actions.on(
        publisher.PublisherUpload,
        lambda r: export(r.export).publisher.upload(
            query=r.query,
            run=r.run,
            batch=r.batch,
            ddl=r.ddl,
            schema=_decode_schema(r.arrow),
            key=r.key,
        ),
    )
    actions.on(publisher.PublisherPublish, partial(_publish, agent))
    actions.on(
        publisher.PublisherAbort,
        lambda r: export(r.export).publisher.abort(
            query=r.query, run=r.run, batch=r.batch, stages=r.stages
        ),
    )
    actions.on(
        publisher.PublisherRenew, lambda r: export(r.export).publisher.renew_publisher(r.query)
    )
    actions.on(
        publisher.PublisherRenounce,
        lambda r: export(r.export).publisher.end_publisher_lease(r.query),
    )
    actions.on(
        publisher.PublisherFinish,
        lambda r: export(r.export).publisher.finish(query=r.query, run=r.run),
    )
    actions.on(job.ExportEmit, lambda r: export(r.export).control.emit(r.request, r.what))
    actions.on(job.ExportPeek, lambda r: peek(export(r.export), r))
    actions.on(job.ExportEmitted, lambda r: export(r.export).control.emission_status(r.seq))


def _publish(agent: Agent, r: publisher.PublisherPublish) -> dict[str, Any]:
    commit = partial(
        agent.exports.get(r.export).publisher.publish,
        query=r.query,
        run=r.run,
        batch=r.batch,
        stages=r.stages,
        ddl=r.ddl,
        control=parse_indexed(list(r.control)),
        schema=_decode_schema(r.arrow),
    )
    if agent.tracing is None:
        return commit()
    readers = agent.imports.queries.readers_for(r.query, r.export)
    return agent.tracing.publish(r, readers, lambda context: commit(traceparent=context))


def _decode_schema(text: str | None) -> pa.Schema | None:
    return None if text is None else pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
