"""Why ports connect or not, what a change would do, and what can never match."""

from streambroker_core.board.admission import Cut, refusal, why_cut
from streambroker_core.board.overlay import Overlay
from streambroker_core.diagnose.board_copy import Mirror
from streambroker_core.diagnose.contradictions import contradiction
from streambroker_core.diagnose.explain_pair import Obstacle, Pair, explain_pair
from streambroker_core.diagnose.explain_port import (
    Ranking,
    Survey,
    explain_export,
    explain_import,
    survey,
)
from streambroker_core.diagnose.explain_text import tell_export, tell_import, tell_pair
from streambroker_core.diagnose.forecast import (
    Changed,
    Forecast,
    Problem,
    Proposal,
    Removal,
    forecast,
)
from streambroker_core.diagnose.forecast_text import tell_forecast
from streambroker_core.diagnose.lint import (
    Finding,
    Scene,
    lint,
    lint_export,
    lint_import,
    offers_of,
    scene,
)
from streambroker_core.diagnose.lint_text import tell_findings
from streambroker_core.diagnose.offered_properties import Offers

__all__ = [
    "Changed",
    "Cut",
    "Finding",
    "Forecast",
    "Mirror",
    "Obstacle",
    "Offers",
    "Overlay",
    "Pair",
    "Problem",
    "Proposal",
    "Ranking",
    "Removal",
    "Scene",
    "Survey",
    "contradiction",
    "explain_export",
    "explain_import",
    "explain_pair",
    "forecast",
    "lint",
    "lint_export",
    "lint_import",
    "offers_of",
    "refusal",
    "scene",
    "survey",
    "tell_export",
    "tell_findings",
    "tell_forecast",
    "tell_import",
    "tell_pair",
    "why_cut",
]
