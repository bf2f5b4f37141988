"""Side inputs: rows joined with another stream, or a table.

>>> from streambroker.side import side_map  # doctest: +SKIP
>>> sides = trades.join_side(rates=side_map(rates, key="currency"))  # doctest: +SKIP
>>> sides.enrich("rates", on="currency").to_stream()  # doctest: +SKIP
"""

from __future__ import annotations

from streambroker._lazy import lazy_names

_MODULES = {
    "pe_agent.side.errors": ["PinError", "TableError"],
    "pe_agent.side.operator": ["METRICS_SCHEMA"],
    "pe_agent.side.tables.store": ["Table", "TableState", "TableStore"],
    "pe_agent.streams.side_input": [
        "Given",
        "side_list",
        "side_map",
        "side_multimap",
        "side_singleton",
    ],
    "pe_agent.streams.side_inputs": ["SideInputs", "StatelessInputs"],
    "streambroker_core.side": [
        "ListView",
        "MapView",
        "MultimapView",
        "NO_DEFAULT",
        "SideComplete",
        "SideRefresh",
        "SideVersion",
        "SingletonView",
        "Views",
        "fixed",
        "sliding",
    ],
}
__getattr__, __dir__, __all__ = lazy_names(__name__, _MODULES)
