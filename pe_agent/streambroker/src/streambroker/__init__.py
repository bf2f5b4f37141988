"""Export, import and join streams of Spark jobs.

>>> import streambroker as sb  # doctest: +SKIP
>>> with sb.start(spark, job="alerts", broker="http://…") as pe:  # doctest: +SKIP
...     trades = pe.subscribe("trades", 'kind == "trade"', filter="price > 10.0")
"""

from __future__ import annotations

from streambroker._lazy import lazy_names

_MODULES = {
    "pe_agent.aligned.options": ["OperatorOptions"],
    "pe_agent.cep.column_conditions": ["Pattern"],
    "pe_agent.client.connect": ["connect"],
    "pe_agent.client.reader": ["Reader", "read"],
    "pe_agent.client.writer": ["Writer", "writer"],
    "pe_agent.job.applied": ["NotAppliedError"],
    "pe_agent.job.arguments": ["ArgumentError", "Congestion", "Missing", "OnCongestion", "StartAt"],
    "pe_agent.job.ports": [
        "Change",
        "ExportPort",
        "ImportPort",
        "PortMissingError",
        "QueryActiveError",
    ],
    "pe_agent.job.port_settings": ["ExportSettings"],
    "pe_agent.job.publish": ["ExportWriter"],
    "pe_agent.job.send_control": ["SentControl"],
    "pe_agent.job.settings": ["AgentOptions", "AgentTls", "BrokerAuth"],
    "pe_agent.job.statuses": [
        "ControlStatus",
        "ExportStatus",
        "ImportStatus",
        "PeStatus",
        "ReaderStatus",
        "Route",
    ],
    "pe_agent.pe": ["PE", "start"],
    "pe_agent.spark.query_failure": ["Failure", "cause"],
    "pe_agent.streams.subscribe": ["ImportSettings"],
    "pe_agent.streams.stream": [
        "OperatorStream",
        "PatternStream",
        "Stream",
        "apply",
        "control_stream",
        "stream",
    ],
    "streambroker_client.answers": ["Explanation"],
    "streambroker_client.broker": ["Broker"],
    "streambroker_client.errors": [
        "BrokerError",
        "BrokerRefusedError",
        "BrokerUnavailableError",
        "ChangeRefusedError",
        "UnknownPortError",
        "WrongKindError",
    ],
    "pe_agent.transport.flight_errors": ["AgentUnreachableError"],
    "streambroker_core.cep.sql.spark_conditions": ["sql"],
    "streambroker_core.control.operators.operator": ["Input", "Operator"],
    "streambroker_core.control.operators.typed_operator": ["TypedOperator", "handles"],
    "streambroker_core.control.tuples": ["ControlTuple", "Delivery", "Limits", "Target"],
    "streambroker_core.control.tuples.payloads": ["Codec"],
    "streambroker_core.errors": ["AlignedError", "StreambrokerError"],
}
_SUBMODULES = ("broker", "errors", "functions", "operators", "patterns", "side", "testing")
__getattr__, __dir__, __all__ = lazy_names(__name__, _MODULES, _SUBMODULES)
