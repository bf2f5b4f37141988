"""Where the rules of a job come from: directories, tables, HTTP, and what a program adds to them.

Everything here runs beside a driver, never in tasks. What becomes of the rules is decided in
`streambroker_core.cep`.
"""

from pe_agent.cep.directory import DirectoryDiscoverer
from pe_agent.cep.discovery import (
    Discovery,
    DiscoveryError,
    PatternProcessorDiscoverer,
    PatternProcessorDiscovererFactory,
    PeriodicPatternProcessorDiscoverer,
    ReportedDiscoverer,
    Wanted,
)
from pe_agent.cep.http import HttpDiscoverer
from pe_agent.cep.manager import PatternProcessorManager
from pe_agent.cep.progress import Progress, RuleReport
from pe_agent.cep.table import TableDiscoverer, sqlite_table

__all__ = [
    "DirectoryDiscoverer",
    "Discovery",
    "DiscoveryError",
    "HttpDiscoverer",
    "PatternProcessorDiscoverer",
    "PatternProcessorDiscovererFactory",
    "PatternProcessorManager",
    "PeriodicPatternProcessorDiscoverer",
    "Progress",
    "ReportedDiscoverer",
    "RuleReport",
    "TableDiscoverer",
    "Wanted",
    "sqlite_table",
]
