"""Side inputs: what main rows see of other streams and of tables, and what they wait for.

Read ``definition`` first, then ``joining``: a pair of a row and its window is held back, or meets
its views. ``content`` says how rows become content under the policies, ``leaves`` how it is kept.
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
