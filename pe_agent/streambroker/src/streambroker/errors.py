"""All errors that the program interface raises; each is a ``StreambrokerError``."""

from __future__ import annotations

from streambroker._lazy import lazy_names

_MODULES = {
    "pe_agent.cep.discovery.discoverer": ["DiscoveryError"],
    "pe_agent.datasource.options": ["SchemaUnknownError"],
    "pe_agent.job.agent.agent_process": ["AgentFailedError"],
    "pe_agent.job.applied": ["NotAppliedError"],
    "pe_agent.job.arguments": ["ArgumentError"],
    "pe_agent.job.owner_reference": ["OwnerError"],
    "pe_agent.job.ports": ["PortMissingError", "QueryActiveError"],
    "pe_agent.log.objects.bucket": ["BucketUrlError"],
    "pe_agent.side.errors": ["PinError", "TableError"],
    "pe_agent.spark.local_session": ["JavaMissingError"],
    "pe_agent.spark.session": ["ClassicSessionRequiredError"],
    "pe_agent.transport.agent_tls": ["NotSecuredError"],
    "streambroker_client.errors": [
        "BrokerError",
        "BrokerRefusedError",
        "BrokerUnavailableError",
        "ChangeRefusedError",
        "UnknownPortError",
        "WrongKindError",
    ],
    "pe_agent.transport.broker_trust": ["TrustError"],
    "pe_agent.transport.flight_errors": ["AgentRefusedError", "AgentUnreachableError"],
    "pe_agent.transport.tokens": ["TokenError"],
    "streambroker_core.cep.pattern.errors": [
        "ConditionError",
        "PatternArgumentError",
        "PatternError",
        "RowPatternError",
        "RunError",
    ],
    "streambroker_core.control.operators.operator": ["OperatorError", "StateError"],
    "streambroker_core.control.tuples": ["ControlError", "ControlLimitError", "UndeliverableError"],
    "streambroker_core.errors": [
        "AlignedError",
        "ExpressionError",
        "FilterError",
        "ManifestError",
        "PropertyError",
        "SchemaError",
        "StreambrokerError",
        "SubscriptionError",
    ],
    "streambroker_core.ledger.losses": ["DataLossError"],
    "streambroker_core.side.errors": ["NoValueError", "SideDefinitionError", "SideError"],
}
__getattr__, __dir__, __all__ = lazy_names(__name__, _MODULES)
