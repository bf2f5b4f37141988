"""Side inputs inside Spark queries: rows joined with another stream, or a table.

Policies and windows are those of ``streambroker_core.side``. Public names are those of
``streambroker.side``; the names here are deprecated.
"""

from __future__ import annotations

from typing import Any

_MODULES = {
    "FIGURES_SCHEMA": "pe_agent.streams.old_names",
    "Given": "pe_agent.streams.side_input",
    "ListView": "streambroker_core.side",
    "MapView": "streambroker_core.side",
    "MultimapView": "streambroker_core.side",
    "NO_DEFAULT": "streambroker_core.side",
    "PinError": "pe_agent.side.errors",
    "SideComplete": "streambroker_core.side",
    "SideInputs": "pe_agent.streams.side_inputs",
    "SideRefresh": "streambroker_core.side",
    "SideVersion": "streambroker_core.side",
    "SingletonView": "streambroker_core.side",
    "StatelessInputs": "pe_agent.streams.side_inputs",
    "Table": "pe_agent.side.tables.store",
    "TableError": "pe_agent.side.errors",
    "TableState": "pe_agent.side.tables.store",
    "TableStore": "pe_agent.side.tables.store",
    "Views": "streambroker_core.side",
    "fixed": "streambroker_core.side",
    "side_list": "pe_agent.streams.side_input",
    "side_map": "pe_agent.streams.side_input",
    "side_multimap": "pe_agent.streams.side_input",
    "side_singleton": "pe_agent.streams.side_input",
    "sliding": "streambroker_core.side",
}

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    """Import an old name, with a warning."""
    from streambroker_core.deprecation import deprecated_name

    return deprecated_name(__name__, name, _MODULES, "streambroker.side")
