"""Who changed what: one line of JSON for each write, done or refused."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

LOGGER = "streambroker.audit"

_log = logging.getLogger(LOGGER)


def wanted() -> bool:
    """Say whether anybody takes the lines."""
    return _log.isEnabledFor(logging.INFO)


def tell(facts: Mapping[str, Any]) -> None:
    """Write the line of one request, at level INFO."""
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    _log.info("%s", json.dumps({"time": now, **facts}, separators=(",", ":")))


def show() -> None:
    """Write the lines to the standard error, bare, whatever the level of the other logs is."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    _log.propagate = False
