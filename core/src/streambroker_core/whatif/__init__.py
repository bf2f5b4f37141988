"""What a set of changes would do to the routes, found without doing it."""

from streambroker_core.whatif.forecast import (
    Changed,
    Cut,
    Forecast,
    Problem,
    Proposal,
    forecast,
)
from streambroker_core.whatif.mirror import Mirror
from streambroker_core.whatif.telling import tell_forecast

__all__ = [
    "Changed",
    "Cut",
    "Forecast",
    "Mirror",
    "Problem",
    "Proposal",
    "forecast",
    "tell_forecast",
]
