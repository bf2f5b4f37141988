"""A Spark session on this machine, for experiments, examples and tests."""

from __future__ import annotations

from streambroker._lazy import lazy_names

_MODULES = {
    "pe_agent.spark.local_session": ["CONF", "SMALL", "JavaMissingError", "session"],
}
__getattr__, __dir__, __all__ = lazy_names(__name__, _MODULES)
