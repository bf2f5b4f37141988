"""When an agent asks the broker for new capabilities."""

from __future__ import annotations

import random
from time import time as wall_clock

from streambroker_core.wire.broker import capability
from streambroker_core.wire.broker.view import View


class CapabilityRenewal:
    """Renewal of a view's capabilities before they expire.

    The margin is random, so that not all agents ask at once.
    """

    def __init__(self) -> None:
        self._view: View | None = None
        self._first_expiry: int | None = None
        self._margin = capability.DAY_S * random.uniform(0.2, 0.9)  # noqa: S311 - jitter

    def is_due(self, view: View) -> bool:
        """Return whether a capability of the view expires so soon that a new one is needed."""
        if view is not self._view:
            self._view, self._first_expiry = view, first_expiry(view)
        return self._first_expiry is not None and wall_clock() > self._first_expiry - self._margin


def first_expiry(view: View) -> int | None:
    """Return the earliest expiry of a view's capabilities, None if none expires."""
    tokens = (r.capability for port in view.imports.values() for r in port.routes)
    ends = (capability.claimed_expiry(token) for token in tokens if token is not None)
    return min((end for end in ends if end is not None), default=None)
