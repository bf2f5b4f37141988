"""Reporting of side input metrics from Spark's workers to the agent of the job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pe_agent.spark.worker import QUERY_ID, task_property
from pe_agent.transport.report_sender import AgentOptions, Reports, sender_for
from streambroker_core.wire.agent_rpc.job import SidesMetrics
from streambroker_core.wire.reports.side_status import SideStatus, write_side

if TYPE_CHECKING:
    from pe_agent.job.context import JobContext


@dataclass(frozen=True, kw_only=True)
class SideMetricsReporter:
    """Reports the metrics of an operator; ``options`` let a worker find and trust the agent."""

    operator: str
    options: AgentOptions

    @classmethod
    def for_job(cls, job: JobContext, operator: str) -> SideMetricsReporter:
        """Return the reporter to the agent of a job."""
        return cls(operator=operator, options=tuple(sorted(job.agent_options().items())))

    def __call__(self, bucket: int, window: int, sides: Sequence[SideStatus]) -> None:
        """Enqueue the metrics of a bucket after a window."""
        query = task_property(QUERY_ID)
        if query is not None and (sender := sender_for(self.options, build_request)) is not None:
            sender.enqueue((query, self.operator, bucket), (window, sides))


def build_request(reports: Reports) -> SidesMetrics:
    """Return the request for windows and side inputs by query, operator and bucket."""
    buckets = [
        {
            "query": query,
            "operator": operator,
            "bucket": bucket,
            "window": window,
            "sides": [write_side(side) for side in sides],
        }
        for (query, operator, bucket), (window, sides) in reports.items()
    ]
    return SidesMetrics(buckets=buckets)
