"""Side inputs inside Spark queries: rows joined with another stream, or a table.

>>> from pe_agent.side import side_map  # doctest: +SKIP
>>> sides = trades.with_side_inputs(rates=side_map(rates, key="currency"))  # doctest: +SKIP
>>> sides.enrich("rates", on="currency").to_stream()  # doctest: +SKIP

Policies and windows are those of ``streambroker_core.side``.
"""

from __future__ import annotations

import importlib
from typing import Any

_MODULES = {
    "FIGURES_SCHEMA": "pe_agent.side.operator",
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
    """Import on first use: Spark starts a process for each micro-batch that waits for imports."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
