"""Why two ports are connected or not, and what would have to change."""

from streambroker_core.explain.pairs import Obstacle, Pair, explain_pair
from streambroker_core.explain.ranking import (
    Ranking,
    Survey,
    explain_export,
    explain_import,
    survey,
)
from streambroker_core.explain.telling import tell_export, tell_import, tell_pair

__all__ = [
    "Obstacle",
    "Pair",
    "Ranking",
    "Survey",
    "explain_export",
    "explain_import",
    "explain_pair",
    "survey",
    "tell_export",
    "tell_import",
    "tell_pair",
]
