"""What a set of changes would do to the routes, found without doing it, and what is refused."""

from streambroker_core.whatif.forecast import (
    Changed,
    Forecast,
    Problem,
    Proposal,
    Removal,
    forecast,
)
from streambroker_core.whatif.mirror import Mirror
from streambroker_core.whatif.overlay import Overlay
from streambroker_core.whatif.rules import Cut, refusal, why_cut
from streambroker_core.whatif.telling import tell_forecast

__all__ = [
    "Changed",
    "Cut",
    "Forecast",
    "Mirror",
    "Overlay",
    "Problem",
    "Proposal",
    "Removal",
    "forecast",
    "refusal",
    "tell_forecast",
    "why_cut",
]
