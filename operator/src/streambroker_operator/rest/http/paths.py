"""Where everything of the REST interface is; in braces, what a request names."""

from __future__ import annotations

from collections.abc import Mapping

from streambroker_core.model import Kind

API = "/api/subscriptions"
"""What every path but those of probes and of the description begins with."""
OPENAPI = "/api/openapi.json"

PE = f"{API}/job/{{job}}/pe/{{pe}}"
"""A PE; what belongs to it is below."""
REPORT = f"{PE}/report"
PORTS: Mapping[Kind, str] = {"Export": f"{PE}/export/{{port}}", "Import": f"{PE}/import/{{port}}"}
"""The ports of a PE by kind; what belongs to one is below."""

EMIT = f"{PORTS['Export']}/control"
"""Control tuples for the importers of an export; likewise `SEND`, for a PE's own operators."""
SEND = f"{PE}/control"
TUPLE = "/{log}/{seq}"
"""One of them is this below."""
COMMANDS = f"{PE}/errands"
JOBS = "/api/jobs"
PATTERNS = f"{JOBS}/{{job}}/patterns"
"""The rules of patterns of a job."""
PATTERN = f"{PATTERNS}/{{id}}"
ENABLE = f"{PATTERN}/enable"

APPLY = f"{API}/apply"
EXPLAIN = f"{API}/explain"
WHATIF = f"{API}/whatif"
