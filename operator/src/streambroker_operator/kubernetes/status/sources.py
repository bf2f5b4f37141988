"""What has to stand in statuses, of ports and of rules, for the one who writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streambroker_core.model import RULE
from streambroker_operator.kubernetes.status.port_reconciler import PortReconciler
from streambroker_operator.kubernetes.status.rule_reconciler import RuleReconciler
from streambroker_operator.kubernetes.status.writer import Name, StatusWrite


class StatusSources:
    """Asks those who know of a kind.

    Args:
        ports: knows Exports and Imports.
        rules: knows rules of patterns.
    """

    def __init__(self, ports: PortReconciler, rules: RuleReconciler) -> None:
        self._ports, self._rules = ports, rules

    def build(self, name: Name) -> StatusWrite | None:
        """Return what is to be written now; None where it stands there, or the resource is gone."""
        return self._rules.build(name[1]) if name[0] == RULE else self._ports.build(name)

    def on_written(self, write: StatusWrite, answer: Mapping[str, Any]) -> None:
        """Take in the resource as the API server has it after a write."""
        (self._rules if write.kind == RULE else self._ports).on_written(write, answer)
