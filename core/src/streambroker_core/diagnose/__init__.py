"""Diagnosis: explain matches, forecast changes, and lint resources."""

from streambroker_core.board.admission import CutRoute, cut_reason, find_put_problem
from streambroker_core.board.overlay import BoardOverlay
from streambroker_core.diagnose.board_copy import BoardCopy
from streambroker_core.diagnose.contradictions import contradiction
from streambroker_core.diagnose.explain_pair import Pair, explain_pair
from streambroker_core.diagnose.explain_port import (
    BoardSnapshot,
    Ranking,
    explain_port,
    take_snapshot,
)
from streambroker_core.diagnose.forecast import (
    EditedResource,
    Forecast,
    Proposal,
    ProposalProblem,
    forecast,
)
from streambroker_core.diagnose.lint import (
    LintFinding,
    collect_lint_input,
    collect_offered,
    lint,
    lint_export,
    lint_import,
)
from streambroker_core.diagnose.offered_properties import OfferedProperties
from streambroker_core.diagnose.render import (
    render_findings,
    render_forecast,
    render_pair,
    render_ranking,
)

__all__ = [
    "BoardCopy",
    "BoardOverlay",
    "BoardSnapshot",
    "CutRoute",
    "EditedResource",
    "Forecast",
    "LintFinding",
    "OfferedProperties",
    "Pair",
    "Proposal",
    "ProposalProblem",
    "Ranking",
    "collect_lint_input",
    "collect_offered",
    "contradiction",
    "cut_reason",
    "explain_pair",
    "explain_port",
    "find_put_problem",
    "forecast",
    "lint",
    "lint_export",
    "lint_import",
    "render_findings",
    "render_forecast",
    "render_pair",
    "render_ranking",
    "take_snapshot",
]
