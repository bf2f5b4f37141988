"""The agent and the Spark data source of streambroker; jobs import ``streambroker``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec

_DEPRECATED = {
    "Failure": "pe_agent.spark.query_failure",
    "PE": "pe_agent.pe",
    "cause": "pe_agent.spark.query_failure",
    "start": "pe_agent.old_names",
}
__all__ = list(_DEPRECATED)


def __getattr__(name: str) -> Any:
    """Import an old name, with a warning."""
    if name == "functions":
        import importlib

        return importlib.import_module("pe_agent.functions")
    from streambroker_core.deprecation import deprecated_name

    return deprecated_name(__name__, name, _DEPRECATED, "streambroker")


_MOVED = {
    "pe_agent.aligned.control_file": "pe_agent.log.control_file",
    "pe_agent.aligned.operators": "pe_agent.streams.stream",
    "pe_agent.aligned.streams": "pe_agent.streams.stream",
    "pe_agent.broker_client": "pe_agent.transport.broker_client",
    "pe_agent.causes": "pe_agent.spark.query_failure",
    "pe_agent.cep.directory": "pe_agent.cep.discovery.polling",
    "pe_agent.cep.http": "pe_agent.cep.discovery.polling",
    "pe_agent.cep.manager": "pe_agent.cep.discovery.manager",
    "pe_agent.cep.processors": "pe_agent.cep.query_rules",
    "pe_agent.cep.row_patterns": "pe_agent.streams.old_names",
    "pe_agent.cep.streams": "pe_agent.streams.old_names",
    "pe_agent.cep.table": "pe_agent.cep.discovery.polling",
    "pe_agent.client": "pe_agent.transport.agent_client",
    "pe_agent.flight_errors": "pe_agent.transport.flight_errors",
    "pe_agent.local": "pe_agent.spark.local_session",
    "pe_agent.ports": "pe_agent.job.ports",
    "pe_agent.side.inputs": "pe_agent.streams.side_input",
    "pe_agent.side.joins": "pe_agent.streams.side_inputs",
    "pe_agent.side.stateless": "pe_agent.streams.side_inputs",
    "pe_agent.tokens": "pe_agent.transport.tokens",
}


class _OldNames:
    """Finds modules by their old names; imports the loader only when one is used."""

    @staticmethod
    def find_spec(name: str, _path: Sequence[str] | None, _target: Any = None) -> ModuleSpec | None:
        if name not in _MOVED:
            return None
        from streambroker_core.deprecation import moved_spec

        return moved_spec(name, _MOVED[name])


sys.meta_path.append(_OldNames)
