"""Render explanations as text."""

from __future__ import annotations

from streambroker_core.diagnose.explain_pair import Pair
from streambroker_core.diagnose.explain_port import Ranking
from streambroker_core.model import PortKey

_VALUES = {True: "true", False: "false", None: "unknown"}


def render_import(key: PortKey, ranking: Ranking) -> str:
    """Return the Exports of an Import's ranking, one per line."""
    return _render_ranking(key, ranking, [str(pair.export) for pair in ranking.pairs], "export")


def render_export(key: PortKey, ranking: Ranking) -> str:
    """Return the Imports of an Export's ranking, one per line."""
    return _render_ranking(key, ranking, [str(pair.import_) for pair in ranking.pairs], "import")


def _render_ranking(key: PortKey, ranking: Ranking, others: list[str], kind: str) -> str:
    total = f"{ranking.total} {kind}{'' if ranking.total == 1 else 's'}"
    verb = "matches" if ranking.matched == 1 else "match"
    width = max(map(len, others), default=0)
    lines = [f"{key}: {ranking.matched} of {total} {verb}"]
    for other, pair in zip(others, ranking.pairs, strict=True):
        message = "" if pair.matched else f"  {pair.message}"
        lines.append(f"  {_render_distance(pair):10}  {other:{width}}{message}".rstrip())
    omitted = ranking.total - len(ranking.pairs)
    if omitted:
        lines.append(f"  and {omitted} more")
    return "\n".join(lines)


def _render_distance(pair: Pair) -> str:
    if pair.matched:
        return "matches"
    return f"{pair.distance} change{'' if pair.distance == 1 else 's'}"


def render_pair(pair: Pair) -> str:
    """Return the complete explanation of one pair."""
    verb = "feeds" if pair.matched else "does not feed"
    away = "" if pair.matched else f" ({_render_distance(pair)} away)"
    lines = [f"{pair.export} {verb} {pair.import_}{away}"]
    lines += [f"  {obstacle.reason}: {obstacle.message}" for obstacle in pair.obstacles]
    lines += [
        f"  {_VALUES[finding.value]:9}{finding.text}: {finding.why}" for finding in pair.predicates
    ]
    lines += [f"  to match: {miss}" for miss in pair.nearest]
    return "\n".join(lines)
