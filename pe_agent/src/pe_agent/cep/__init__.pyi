"""Types of the names that the package imports on first use."""

from pe_agent.cep.column_conditions import Pattern as Pattern
from pe_agent.cep.discovery.broker import BrokerDiscoverer as BrokerDiscoverer
from pe_agent.cep.discovery.discoverer import Discovery as Discovery
from pe_agent.cep.discovery.discoverer import DiscoveryError as DiscoveryError
from pe_agent.cep.discovery.discoverer import (
    PatternProcessorDiscoverer as PatternProcessorDiscoverer,
)
from pe_agent.cep.discovery.discoverer import (
    PatternProcessorDiscovererFactory as PatternProcessorDiscovererFactory,
)
from pe_agent.cep.discovery.discoverer import (
    PeriodicPatternProcessorDiscoverer as PeriodicPatternProcessorDiscoverer,
)
from pe_agent.cep.discovery.discoverer import QueryDiscoverer as QueryDiscoverer
from pe_agent.cep.discovery.discoverer import ReportedDiscoverer as ReportedDiscoverer
from pe_agent.cep.discovery.discoverer import Wanted as Wanted
from pe_agent.cep.discovery.manager import PatternProcessorManager as PatternProcessorManager
from pe_agent.cep.discovery.polling import DirectoryDiscoverer as DirectoryDiscoverer
from pe_agent.cep.discovery.polling import HttpDiscoverer as HttpDiscoverer
from pe_agent.cep.discovery.polling import TableDiscoverer as TableDiscoverer
from pe_agent.cep.discovery.polling import sqlite_table as sqlite_table
from pe_agent.cep.dry_runs import dry_run as dry_run
from pe_agent.cep.functions import MatchFunction as MatchFunction
from pe_agent.cep.rule_progress import Progress as Progress
from pe_agent.cep.rule_progress import RuleReport as RuleReport
from pe_agent.cep.run_state import explain as explain
from pe_agent.streams.old_names import Processors as Processors
from pe_agent.streams.old_names import pattern as pattern
from pe_agent.streams.old_names import pattern_processors as pattern_processors
from pe_agent.streams.old_names import sql as sql
from pe_agent.streams.stream import PatternStream as PatternStream
from streambroker_core.cep.pattern.pattern import Skip as Skip
from streambroker_core.cep.pattern.rule import PatternProcessor as PatternProcessor
