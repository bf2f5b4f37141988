"""Patterns on streams, with rules that change while a query runs.

Discovery and reporting of rules run in the driver, never in tasks. `streambroker_core.cep` decides
how rules change and which rows match. Public names are those of ``streambroker.patterns``; the
names here are deprecated.
"""

from __future__ import annotations

from typing import Any

_MODULES = {
    "BrokerDiscoverer": "pe_agent.cep.discovery.broker",
    "DirectoryDiscoverer": "pe_agent.cep.discovery.polling",
    "Discovery": "pe_agent.cep.discovery.discoverer",
    "DiscoveryError": "pe_agent.cep.discovery.discoverer",
    "HttpDiscoverer": "pe_agent.cep.discovery.polling",
    "MatchFunction": "pe_agent.cep.functions",
    "Pattern": "pe_agent.cep.column_conditions",
    "PatternProcessor": "streambroker_core.cep.pattern.rule",
    "PatternProcessorDiscoverer": "pe_agent.cep.discovery.discoverer",
    "PatternProcessorDiscovererFactory": "pe_agent.cep.discovery.discoverer",
    "PatternProcessorManager": "pe_agent.cep.discovery.manager",
    "PatternStream": "pe_agent.streams.stream",
    "PeriodicPatternProcessorDiscoverer": "pe_agent.cep.discovery.discoverer",
    "Processors": "pe_agent.streams.old_names",
    "Progress": "pe_agent.cep.rule_progress",
    "QueryDiscoverer": "pe_agent.cep.discovery.discoverer",
    "ReportedDiscoverer": "pe_agent.cep.discovery.discoverer",
    "RuleReport": "pe_agent.cep.rule_progress",
    "Skip": "streambroker_core.cep.pattern.pattern",
    "TableDiscoverer": "pe_agent.cep.discovery.polling",
    "Wanted": "pe_agent.cep.discovery.discoverer",
    "dry_run": "pe_agent.cep.dry_runs",
    "explain": "pe_agent.cep.run_state",
    "pattern": "pe_agent.streams.old_names",
    "pattern_processors": "pe_agent.streams.old_names",
    "sql": "pe_agent.streams.old_names",
    "sqlite_table": "pe_agent.cep.discovery.polling",
}

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    """Import an old name, with a warning."""
    from streambroker_core.deprecation import deprecated_name

    return deprecated_name(__name__, name, _MODULES, "streambroker.patterns")
