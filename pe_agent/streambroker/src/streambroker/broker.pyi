"""Types of the names that the module imports on first use."""

from streambroker_client.answers import BrokerRoute as BrokerRoute
from streambroker_client.answers import ChangeProblem as ChangeProblem
from streambroker_client.answers import ChangeResult as ChangeResult
from streambroker_client.answers import ExplainedPair as ExplainedPair
from streambroker_client.answers import Finding as Finding
from streambroker_client.answers import Forecast as Forecast
from streambroker_client.answers import Graph as Graph
from streambroker_client.answers import GraphEdge as GraphEdge
from streambroker_client.answers import GraphNode as GraphNode
from streambroker_client.answers import Lint as Lint
from streambroker_client.answers import PeInfo as PeInfo
from streambroker_client.answers import PortChange as PortChange
from streambroker_client.answers import PortResource as PortResource
from streambroker_client.answers import RouteMetrics as RouteMetrics
from streambroker_client.answers import RuleResource as RuleResource
from streambroker_client.answers import Top as Top
from streambroker_client.broker import JobPatterns as JobPatterns
from streambroker_client.events import Event as Event
