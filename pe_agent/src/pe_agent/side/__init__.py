"""Side inputs inside Spark queries: rows that meet another stream, or a table.

>>> from pe_agent.side import side_map  # doctest: +SKIP
>>> sides = trades.with_side_inputs(rates=side_map(rates, key="currency"))  # doctest: +SKIP
>>> sides.enrich("rates", on="currency").to_stream()  # doctest: +SKIP

Policies and windows are those of ``streambroker_core.side``.
"""

from __future__ import annotations

from pe_agent.side.errors import PinError, TableError
from pe_agent.side.operator import FIGURES_SCHEMA
from pe_agent.side.tables.store import Table, TableState, TableStore
from pe_agent.streams.side_input import Given, side_list, side_map, side_multimap, side_singleton
from pe_agent.streams.side_inputs import SideInputs
from pe_agent.streams.stateless_side_inputs import StatelessInputs
from streambroker_core.side import (
    NO_DEFAULT,
    ListView,
    MapView,
    MultimapView,
    SideComplete,
    SideRefresh,
    SideVersion,
    SingletonView,
    Views,
    fixed,
    sliding,
)

__all__ = [
    "FIGURES_SCHEMA",
    "NO_DEFAULT",
    "Given",
    "ListView",
    "MapView",
    "MultimapView",
    "PinError",
    "SideComplete",
    "SideInputs",
    "SideRefresh",
    "SideVersion",
    "SingletonView",
    "StatelessInputs",
    "Table",
    "TableError",
    "TableState",
    "TableStore",
    "Views",
    "fixed",
    "side_list",
    "side_map",
    "side_multimap",
    "side_singleton",
    "sliding",
]
