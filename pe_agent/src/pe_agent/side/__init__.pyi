"""Types of the names that the package imports on first use."""

from pe_agent.side.errors import PinError as PinError
from pe_agent.side.errors import TableError as TableError
from pe_agent.side.tables.store import Table as Table
from pe_agent.side.tables.store import TableState as TableState
from pe_agent.side.tables.store import TableStore as TableStore
from pe_agent.streams.old_names import FIGURES_SCHEMA as FIGURES_SCHEMA
from pe_agent.streams.side_input import Given as Given
from pe_agent.streams.side_input import side_list as side_list
from pe_agent.streams.side_input import side_map as side_map
from pe_agent.streams.side_input import side_multimap as side_multimap
from pe_agent.streams.side_input import side_singleton as side_singleton
from pe_agent.streams.side_inputs import SideInputs as _SideInputs
from pe_agent.streams.side_inputs import StatelessInputs as _StatelessInputs
from pe_agent.streams.stream import OperatorStream, Stream
from streambroker_core.side import NO_DEFAULT as NO_DEFAULT
from streambroker_core.side import ListView as ListView
from streambroker_core.side import MapView as MapView
from streambroker_core.side import MultimapView as MultimapView
from streambroker_core.side import SideComplete as SideComplete
from streambroker_core.side import SideRefresh as SideRefresh
from streambroker_core.side import SideVersion as SideVersion
from streambroker_core.side import SingletonView as SingletonView
from streambroker_core.side import Views as Views
from streambroker_core.side import fixed as fixed
from streambroker_core.side import sliding as sliding

SideInputs = _SideInputs[Stream, OperatorStream]
StatelessInputs = _StatelessInputs[Stream, OperatorStream]
