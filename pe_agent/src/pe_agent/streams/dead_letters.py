"""Dead letters of the operators before a sink: they are published, and found, or refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from pe_agent.aligned.data import OutputFrame
from pe_agent.aligned.plan import OperatorNode, StreamPlan
from streambroker_core.control.operators.dead_letters import DEAD_LETTERS
from streambroker_core.errors import AlignedError

if TYPE_CHECKING:
    from pe_agent.job.port_settings import Property

KIND = "dead-letter"
"""Property ``kind`` of the exports of dead letters."""


def check_published(plan: StreamPlan, outputs: Collection[str] | None = None) -> StreamPlan:
    """Return the plan of a query that publishes outputs of its last operator; None for its own.

    Raises:
        AlignedError: dead letters of an operator would be lost.
    """
    last = plan.last_operator()
    if outputs is None:
        outputs = (plan.data.output,) if isinstance(plan.data, OutputFrame) else ()
    for node in plan.nodes.values():
        if node.has_dead_letters and not (node is last and DEAD_LETTERS in outputs):
            raise AlignedError(
                f"operator {node.name} has dead letters, and this query would lose them: publish"
                f" them directly after it, with publish_outputs({{…, {DEAD_LETTERS!r}: port}}), or"
                " leave dead_letters out of its options."
            )
    return plan


def letter_properties(
    node: OperatorNode, ports: Mapping[str, str], given: Mapping[str, Property] | None
) -> dict[str, Property]:
    """Return the properties by which importers find the dead letters of an operator."""
    others = [port for output, port in ports.items() if output != DEAD_LETTERS]
    return {"kind": KIND, "operator": node.name, "of": others or [node.name], **(given or {})}
