"""Expressions, matching, board and wire format: decisions without I/O."""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from typing import Any

_MOVED = {
    "streambroker_core.cep.compiler": "streambroker_core.cep.nfa.compiler",
    "streambroker_core.cep.document": "streambroker_core.cep.rules.document",
    "streambroker_core.cep.processor": "streambroker_core.cep.pattern.rule",
    "streambroker_core.cep.refusals": "streambroker_core.cep.pattern.errors",
    "streambroker_core.claims": "streambroker_core.ledger.retention",
    "streambroker_core.control.aligned": "streambroker_core.control.runtime.runner",
    "streambroker_core.control.buckets": "streambroker_core.control.runtime.buckets",
    "streambroker_core.control.emitting": "streambroker_core.control.runtime.emitter",
    "streambroker_core.control.envelope": "streambroker_core.control.tuples.envelope",
    "streambroker_core.control.keyed": "streambroker_core.control.operators.keyed_state",
    "streambroker_core.control.operator": "streambroker_core.control.operators.operator",
    "streambroker_core.control.packing": "streambroker_core.control.runtime.packing",
    "streambroker_core.control.payloads": "streambroker_core.control.tuples.payloads",
    "streambroker_core.control.typed": "streambroker_core.control.operators.typed_operator",
    "streambroker_core.durations": "streambroker_core.model.durations",
    "streambroker_core.epochs": "streambroker_core.ledger.epochs",
    "streambroker_core.explain": "streambroker_core.diagnose",
    "streambroker_core.lint": "streambroker_core.diagnose",
    "streambroker_core.offset": "streambroker_core.ledger.offset",
    "streambroker_core.planning": "streambroker_core.ledger.planner",
    "streambroker_core.properties": "streambroker_core.model.properties",
    "streambroker_core.publishing": "streambroker_core.ledger.publisher",
    "streambroker_core.schema": "streambroker_core.model.schema",
    "streambroker_core.side.said": "streambroker_core.side.control_messages",
    "streambroker_core.side.views": "streambroker_core.side.join.views",
    "streambroker_core.taking": "streambroker_core.ledger.plan_budget",
    "streambroker_core.topics": "streambroker_core.model.topics",
    "streambroker_core.whatif": "streambroker_core.diagnose",
    "streambroker_core.wire.manifest": "streambroker_core.wire.manifests.ports",
}


class _OldNames:
    """Import hook for old module names; loads `moved` only when one is used."""

    @staticmethod
    def find_spec(name: str, _path: Sequence[str] | None, _target: Any = None) -> ModuleSpec | None:
        """Return a spec that loads the module under its new name."""
        if name not in _MOVED:
            return None
        from streambroker_core.deprecation import moved_spec

        return moved_spec(name, _MOVED[name])


sys.meta_path.append(_OldNames)
