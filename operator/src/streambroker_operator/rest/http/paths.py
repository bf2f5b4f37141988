"""Paths of the REST interface, as route templates."""

from __future__ import annotations

from collections.abc import Mapping

from streambroker_core.model import Kind
from streambroker_core.wire.broker import paths

API = paths.API
OPENAPI = "/api/openapi.json"
ASYNCAPI = "/api/asyncapi.json"

PE = f"{API}/job/{{job}}/pe/{{pe}}"
"""A PE, and the prefix of its resources."""
REPORT = f"{PE}/report"
PORTS: Mapping[Kind, str] = {"Export": f"{PE}/export/{{port}}", "Import": f"{PE}/import/{{port}}"}
"""Ports of a PE by kind, and prefixes of their resources."""

EMIT = f"{PORTS['Export']}/control"
"""Control tuples for the importers of an export; `SEND`: for a PE's own operators."""
SEND = f"{PE}/control"
TUPLE = "/{log}/{seq}"
"""Suffix of one tuple."""
SNAPSHOT = f"{PE}/snapshots/{{name}}"
COMMANDS = f"{PE}/errands"
JOBS = paths.JOBS
PATTERNS = f"{JOBS}/{{job}}/patterns"
"""Pattern rules of a job."""
PATTERN = f"{PATTERNS}/{{id}}"
ENABLE = f"{PATTERN}/enable"

APPLY = f"{API}/apply"
EXPLAIN = f"{API}/explain"
WHATIF = f"{API}/whatif"

QUOTA = f"{API}/quota"
GRAPH = f"{API}/graph"
HISTORY = f"{API}/history"
CHECK = f"{API}/check"
NAMES = f"{API}/names"
UI = f"{API}/ui"
"""What the page has to know before anything else."""
ROWS = f"{PORTS['Export']}/rows"
PAGE = "/ui"
PAGE_PATHS = (PAGE, f"{PAGE}/{{file}}")
"""Files of the page; the same for all callers."""
