"""What nobody forbids and nobody can mean: subscriptions that match nothing, types that clash."""

from streambroker_core.lint.contradictions import contradiction
from streambroker_core.lint.findings import (
    Finding,
    Scene,
    lint,
    lint_export,
    lint_import,
    offers_of,
    scene,
)
from streambroker_core.lint.offers import Offers
from streambroker_core.lint.telling import tell_findings

__all__ = [
    "Finding",
    "Offers",
    "Scene",
    "contradiction",
    "lint",
    "lint_export",
    "lint_import",
    "offers_of",
    "scene",
    "tell_findings",
]
