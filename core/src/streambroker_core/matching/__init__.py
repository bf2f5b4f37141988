"""Decide which Export feeds which Import, and say why where it does not.

`match` is the definition. A `Matcher` keeps both sides and answers for one
resource at a time; `ScanMatcher` does it by trying every pair and is the oracle
for every faster one.
"""

from streambroker_core.matching.decide import (
    NEAR,
    Match,
    Outcome,
    Reason,
    Refusal,
    admits,
    canonical_filter,
    expression_problem,
    filter_problem,
    import_filter_problem,
    is_near,
    match,
    parsed,
    policy_of,
    revokes,
)
from streambroker_core.matching.index import IndexMatcher
from streambroker_core.matching.scan import Figures, Matcher, ScanMatcher

__all__ = [
    "NEAR",
    "Figures",
    "IndexMatcher",
    "Match",
    "Matcher",
    "Outcome",
    "Reason",
    "Refusal",
    "ScanMatcher",
    "admits",
    "canonical_filter",
    "expression_problem",
    "filter_problem",
    "import_filter_problem",
    "is_near",
    "match",
    "parsed",
    "policy_of",
    "revokes",
]
