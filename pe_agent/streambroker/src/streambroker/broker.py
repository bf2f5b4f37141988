"""What the client of the broker returns; `streambroker.connect` makes the client."""

from __future__ import annotations

from streambroker._lazy import lazy_names

_MODULES = {
    "streambroker_client.answers": [
        "BrokerRoute",
        "ChangeProblem",
        "ChangeResult",
        "ExplainedPair",
        "Finding",
        "Forecast",
        "Graph",
        "GraphEdge",
        "GraphNode",
        "Lint",
        "PeInfo",
        "PortChange",
        "PortResource",
        "RouteMetrics",
        "RuleResource",
        "Top",
    ],
    "streambroker_client.broker": ["JobPatterns"],
    "streambroker_client.events": ["Event"],
}
__getattr__, __dir__, __all__ = lazy_names(__name__, _MODULES)
