"""The agent and the Spark data source of streambroker: what a PySpark job imports.

>>> pe = pe_agent.start(spark, job="alerts", broker="http://…")  # doctest: +SKIP
>>> trades = pe.subscribe("trades", 'kind == "trade"', filter="price > 10.0")  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pe_agent.causes import Failure, cause
    from pe_agent.pe import PE, start

__all__ = ["PE", "Failure", "cause", "start"]


def __getattr__(name: str) -> Any:
    """Import the API when it is used: agents and Spark's workers import only what they need."""
    if name == "functions":
        import importlib

        return importlib.import_module("pe_agent.functions")
    if name in ("Failure", "cause"):
        from pe_agent import causes

        return getattr(causes, name)
    if name in __all__:
        from pe_agent import pe

        return getattr(pe, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
