"""Patterns on streams, with rules that change while a query runs."""

from __future__ import annotations

from streambroker._lazy import lazy_names

_MODULES = {
    "pe_agent.cep.column_conditions": ["Pattern"],
    "pe_agent.cep.discovery.broker": ["BrokerDiscoverer"],
    "pe_agent.cep.discovery.discoverer": [
        "Discovery",
        "DiscoveryError",
        "PatternProcessorDiscoverer",
        "PatternProcessorDiscovererFactory",
        "PeriodicPatternProcessorDiscoverer",
        "QueryDiscoverer",
        "ReportedDiscoverer",
        "Wanted",
    ],
    "pe_agent.cep.discovery.manager": ["PatternProcessorManager"],
    "pe_agent.cep.discovery.polling": [
        "DirectoryDiscoverer",
        "HttpDiscoverer",
        "TableDiscoverer",
        "sqlite_table",
    ],
    "pe_agent.cep.dry_runs": ["dry_run"],
    "pe_agent.cep.functions": ["MatchFunction"],
    "pe_agent.cep.pattern_plan": ["MatchSettings"],
    "pe_agent.cep.query_rules": ["QueryRules"],
    "pe_agent.cep.rule_progress": ["Progress", "RuleReport"],
    "pe_agent.cep.run_state": ["explain"],
    "pe_agent.streams.sql_patterns": ["sql"],
    "pe_agent.streams.stream": ["PatternStream", "Stream"],
    "streambroker_core.cep.pattern.pattern": ["Skip"],
    "streambroker_core.cep.pattern.rule": ["PatternProcessor"],
}
__getattr__, __dir__, __all__ = lazy_names(__name__, _MODULES)
