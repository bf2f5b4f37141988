"""Side inputs: data of other streams and of tables that main rows see and wait for.

Read ``definition`` first, then ``join.joiner``, which holds back (row, window) pairs or joins them
with their views. ``state.input_state`` applies rows to content under the policies, and
``state.pages`` stores it.
"""

from __future__ import annotations

from streambroker_core.side.control_messages import SideComplete, SideRefresh, SideVersion
from streambroker_core.side.definition import NO_DEFAULT, Enrich, SideInput, SideJoin
from streambroker_core.side.join.static_table import TableCache
from streambroker_core.side.join.views import ListView, MapView, MultimapView, SingletonView, Views
from streambroker_core.side.operator import SideOperator
from streambroker_core.side.windows import fixed, sessions, sliding

__all__ = [
    "NO_DEFAULT",
    "Enrich",
    "ListView",
    "MapView",
    "MultimapView",
    "SideComplete",
    "SideInput",
    "SideJoin",
    "SideOperator",
    "SideRefresh",
    "SideVersion",
    "SingletonView",
    "TableCache",
    "Views",
    "fixed",
    "sessions",
    "sliding",
]
