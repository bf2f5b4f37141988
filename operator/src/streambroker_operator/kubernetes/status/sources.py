"""Desired statuses of ports and rules, for the status writer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streambroker_core.model import RULE
from streambroker_operator.kubernetes.status.port_reconciler import PortReconciler
from streambroker_operator.kubernetes.status.rule_reconciler import RuleReconciler
from streambroker_operator.kubernetes.status.writer import Name, StatusWrite


class StatusSources:
    """Dispatches to the reconciler of a kind."""

    def __init__(self, ports: PortReconciler, rules: RuleReconciler) -> None:
        self._ports, self._rules = ports, rules

    def build(self, name: Name) -> StatusWrite | None:
        """Return the status to write; None if it is up to date or the resource is gone."""
        return self._rules.build(name[1]) if name[0] == RULE else self._ports.build(name)

    def on_written(self, write: StatusWrite, answer: Mapping[str, Any]) -> None:
        """Handle the resource that the API server returned after a write."""
        (self._rules if write.kind == RULE else self._ports).on_written(write, answer)
