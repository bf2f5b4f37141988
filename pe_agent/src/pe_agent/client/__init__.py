"""Reading and publishing without Spark: an agent of the program's own, and Arrow batches."""

from typing import Any

_OLD_MODULE = "pe_agent.transport.agent_client"


def __getattr__(name: str) -> Any:
    """Return a name of the module that had this name before, with a warning."""
    from streambroker_core.deprecation import deprecated_name

    return deprecated_name(__name__, name, {"AgentClient": _OLD_MODULE}, _OLD_MODULE)
