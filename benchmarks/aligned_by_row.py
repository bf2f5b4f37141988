"""A stateful operator against Spark's own ways to keep state in Python, which take rows."""

from __future__ import annotations

import aligned
from measure import Figures, Settings

PURPOSE = "an operator with state against transformWithState and applyInPandasWithState"
WAYS = ("operator", "transformWithState", "applyInPandasWithState")


def run(settings: Settings) -> Figures:
    """Measure; one application, the queries take turns."""
    return aligned.measured(settings, WAYS, 2 if settings.quick else 3)
