"""Decide which Export feeds which Import, and give the reason where it does not.

`match` is the definition. A `Matcher` stores both sides and returns the outcomes of one resource.
`ScanMatcher` tries every pair and is the test oracle for faster ones.
"""

from streambroker_core.matching.decide import (
    NEAR,
    Match,
    MatchResult,
    NoMatch,
    Reason,
    canonical_filter,
    choose_policy,
    expression_problem,
    filter_problem,
    find_restriction,
    find_revocation,
    import_filter_problem,
    is_namespace_allowed,
    is_near,
    match,
    parse_cached,
    visible_schema,
    withheld_hint,
)
from streambroker_core.matching.index import IndexMatcher
from streambroker_core.matching.scan import IndexStats, Matcher, ScanMatcher

__all__ = [
    "NEAR",
    "IndexMatcher",
    "IndexStats",
    "Match",
    "MatchResult",
    "Matcher",
    "NoMatch",
    "Reason",
    "ScanMatcher",
    "canonical_filter",
    "choose_policy",
    "expression_problem",
    "filter_problem",
    "find_restriction",
    "find_revocation",
    "import_filter_problem",
    "is_namespace_allowed",
    "is_near",
    "match",
    "parse_cached",
    "visible_schema",
    "withheld_hint",
]
