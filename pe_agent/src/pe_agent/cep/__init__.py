"""Patterns on streams, with rules that change while a query runs.

Where rules come from, and what they are handed on to, runs beside a driver, never in tasks. What
becomes of rules and of rows is decided in `streambroker_core.cep`.
"""

from pe_agent.cep.discovery.broker import BrokerDiscoverer
from pe_agent.cep.discovery.directory import DirectoryDiscoverer
from pe_agent.cep.discovery.discoverer import (
    Discovery,
    DiscoveryError,
    PatternProcessorDiscoverer,
    PatternProcessorDiscovererFactory,
    PeriodicPatternProcessorDiscoverer,
    QueryDiscoverer,
    ReportedDiscoverer,
    Wanted,
)
from pe_agent.cep.discovery.http import HttpDiscoverer
from pe_agent.cep.discovery.manager import PatternProcessorManager
from pe_agent.cep.discovery.table import TableDiscoverer, sqlite_table
from pe_agent.cep.dry_run import dry_run
from pe_agent.cep.functions import MatchFunction
from pe_agent.cep.query_rules import Processors
from pe_agent.cep.rule_progress import Progress, RuleReport
from pe_agent.cep.run_state import explain
from pe_agent.streams.pattern_stream import PatternStream, pattern, pattern_processors
from pe_agent.streams.sql_patterns import sql
from streambroker_core.cep.pattern.pattern import Pattern, Skip
from streambroker_core.cep.pattern.rule import PatternProcessor

__all__ = [
    "BrokerDiscoverer",
    "DirectoryDiscoverer",
    "Discovery",
    "DiscoveryError",
    "HttpDiscoverer",
    "MatchFunction",
    "Pattern",
    "PatternProcessor",
    "PatternProcessorDiscoverer",
    "PatternProcessorDiscovererFactory",
    "PatternProcessorManager",
    "PatternStream",
    "PeriodicPatternProcessorDiscoverer",
    "Processors",
    "Progress",
    "QueryDiscoverer",
    "ReportedDiscoverer",
    "RuleReport",
    "Skip",
    "TableDiscoverer",
    "Wanted",
    "dry_run",
    "explain",
    "pattern",
    "pattern_processors",
    "sql",
    "sqlite_table",
]
