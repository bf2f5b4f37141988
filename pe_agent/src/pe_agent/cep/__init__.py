"""Patterns on streams, with rules that change while a query runs.

Where rules come from, and what they are handed on to, runs beside a driver, never in tasks. What
becomes of rules and of rows is decided in `streambroker_core.cep`.
"""

from pe_agent.cep.broker import BrokerDiscoverer
from pe_agent.cep.directory import DirectoryDiscoverer
from pe_agent.cep.discovery import (
    Discovery,
    DiscoveryError,
    PatternProcessorDiscoverer,
    PatternProcessorDiscovererFactory,
    PeriodicPatternProcessorDiscoverer,
    QueryDiscoverer,
    ReportedDiscoverer,
    Wanted,
)
from pe_agent.cep.dry_runs import dry_run
from pe_agent.cep.functions import MatchFunction
from pe_agent.cep.http import HttpDiscoverer
from pe_agent.cep.manager import PatternProcessorManager
from pe_agent.cep.processors import Processors
from pe_agent.cep.progress import Progress, RuleReport
from pe_agent.cep.row_patterns import sql
from pe_agent.cep.standing import explain
from pe_agent.cep.streams import PatternStream, pattern, pattern_processors
from pe_agent.cep.table import TableDiscoverer, sqlite_table
from streambroker_core.cep.pattern import Pattern, Skip
from streambroker_core.cep.processor import PatternProcessor

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
