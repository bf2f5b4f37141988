"""The functions of IBM Streams for running jobs, with their codes."""

from __future__ import annotations

from streambroker._lazy import lazy_names

_MODULES = {
    "pe_agent.functions": [
        "DONE",
        "INVALID",
        "Known",
        "NO_PORT",
        "Outcome",
        "PROGRAMMED",
        "UNKNOWN",
        "get_export_properties",
        "get_import_filter",
        "get_import_streams",
        "get_import_subscription",
        "set_export_properties",
        "set_import_filter",
        "set_import_streams",
        "set_import_subscription",
    ],
}
__getattr__, __dir__, __all__ = lazy_names(__name__, _MODULES)
