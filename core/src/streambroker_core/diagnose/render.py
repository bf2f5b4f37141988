"""Render explanations, forecasts and lint findings as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from streambroker_core.diagnose.explain_pair import Pair
from streambroker_core.diagnose.explain_port import Ranking
from streambroker_core.diagnose.forecast import ChangedRoute, Forecast
from streambroker_core.diagnose.lint import LintFinding
from streambroker_core.diagnose.predicate_text import count_text
from streambroker_core.model import Import, Resource, Route, kind_of
from streambroker_core.wire.encoding.canonical import canonical

MAX_VALUE = 60
"""Maximum length of a value in the line of a resource."""
_SHOWN_BY_ROUTES = ("filter", "congestionPolicy", "onCongestion")
_VALUES = {True: "true", False: "false", None: "unknown"}


def render_ranking(resource: Resource, ranking: Ranking) -> str:
    """Return the pairs of a resource's ranking, one per line."""
    if isinstance(resource, Import):
        kind, others = "export", [str(pair.export) for pair in ranking.pairs]
    else:
        kind, others = "import", [str(pair.import_) for pair in ranking.pairs]
    verb = "matches" if ranking.matched == 1 else "match"
    width = max(map(len, others), default=0)
    lines = [f"{resource.key}: {ranking.matched} of {count_text(ranking.total, kind)} {verb}"]
    for other, pair in zip(others, ranking.pairs, strict=True):
        message = "" if pair.matched else f"  {pair.message}"
        lines.append(f"  {_render_distance(pair):10}  {other:{width}}{message}".rstrip())
    omitted = ranking.total - len(ranking.pairs)
    if omitted:
        lines.append(f"  and {omitted} more")
    return "\n".join(lines)


def _render_distance(pair: Pair) -> str:
    return "matches" if pair.matched else count_text(pair.distance, "change")


def render_pair(pair: Pair) -> str:
    """Return the complete explanation of one pair."""
    verb = "feeds" if pair.matched else "does not feed"
    away = "" if pair.matched else f" ({_render_distance(pair)} away)"
    lines = [f"{pair.export} {verb} {pair.import_}{away}"]
    lines += [f"  {obstacle.reason}: {obstacle.message}" for obstacle in pair.obstacles]
    lines += [f"  {pair.policies}"] * (pair.policies is not None)
    lines += [
        f"  {_VALUES[finding.value]:9}{finding.text}: {finding.why}" for finding in pair.predicates
    ]
    lines += [f"  to match: {miss}" for miss in pair.nearest]
    return "\n".join(lines)


def render_forecast(forecast: Forecast) -> str:
    """Return one line for each changed route or resource or problem, and a line with counts.

    Lines start with ``+`` if added, ``-`` if cut, ``~`` if changed, ``!`` if a change is refused,
    and ``?`` if a change is accepted but has a problem. The line of a resource omits its filter
    and its policy if the line of a route has them.
    """
    lines = [f"  + {_format_route(route)}" for route in forecast.added]
    lines += [f"  - {_format_route(cut.route)}: {cut.reason}" for cut in forecast.cut]
    lines += [
        f"  ~ {_format_route(changed.route)}: {_describe_change(changed)}"
        for changed in forecast.changed
    ]
    lines += _describe_edits(forecast)
    for problem in forecast.problems:
        sign = "!" if problem.refused else "?"
        lines.append(f"  {sign} {problem.change}: {problem.code}: {problem.detail}")
    counts = (
        f"routes: {len(forecast.added)} added, {len(forecast.cut)} cut, {forecast.unchanged} kept, "
        f"{len(forecast.changed)} changed"
    )
    return "\n".join([*lines, counts])


def _format_route(route: Route) -> str:
    return f"{route.export} -> {route.import_}"


def _describe_change(changed: ChangedRoute) -> str:
    now, was = changed.route, changed.old_route
    parts = [("filter", was.filter, now.filter), ("policy", was.policy, now.policy)]
    return ", ".join(f"{name} {old} => {new}" for name, old, new in parts if old != new)


def _describe_edits(forecast: Forecast) -> Iterator[str]:
    routed = {
        uid for one in forecast.changed for uid in (one.route.export_uid, one.route.import_uid)
    }
    for edited in forecast.edited:
        omitted = _SHOWN_BY_ROUTES if edited.resource.uid in routed else ()
        edits = ", ".join(
            f"{name} {_format_value(old)} => {_format_value(new)}"
            for name, (old, new) in edited.edits().items()
            if name not in omitted
        )
        if edits:
            yield f"  ~ {kind_of(edited.resource).lower()} {edited.resource.key}: {edits}"


def _format_value(value: object) -> str:
    if value is None:
        return "None"
    text = " ".join(value.split()) if isinstance(value, str) else canonical(value).decode()
    return text if len(text) <= MAX_VALUE else f"{text[: MAX_VALUE - 1]}…"


def render_findings(findings: Sequence[LintFinding], total: int) -> str:
    """Return one line for each finding, and a line with the count.

    `total` also counts findings that are not rendered.
    """
    lines = [
        f"{finding.code}: {finding.resource or 'everywhere'}: {finding.message}"
        for finding in findings
    ]
    if not total:
        return "nothing found"
    more = f", {len(findings)} of them shown" if len(findings) < total else ""
    return "\n".join([*lines, f"{count_text(total, 'finding')}{more}"])
