"""Render a forecast as text."""

from __future__ import annotations

from streambroker_core.diagnose.forecast import ChangedRoute, Forecast
from streambroker_core.model import Route


def render_forecast(forecast: Forecast) -> str:
    """Return one line for each changed route or problem, and a line with counts.

    Lines start with ``+`` if added, ``-`` if cut, ``~`` if changed, ``!`` if a change is refused,
    and ``?`` if a change is accepted but has a problem.
    """
    lines = [f"  + {_format_route(route)}" for route in forecast.added]
    lines += [f"  - {_format_route(cut.route)}: {cut.reason}" for cut in forecast.cut]
    lines += [
        f"  ~ {_format_route(changed.route)}: {_describe_change(changed)}"
        for changed in forecast.changed
    ]
    for problem in forecast.problems:
        sign = "!" if problem.refused else "?"
        lines.append(f"  {sign} {problem.change}: {problem.code}: {problem.detail}")
    counts = (
        f"{len(forecast.added)} added, {len(forecast.cut)} cut, {forecast.unchanged} kept, "
        f"{len(forecast.changed)} changed"
    )
    return "\n".join([*lines, counts])


def _format_route(route: Route) -> str:
    return f"{route.export} -> {route.import_}"


def _describe_change(changed: ChangedRoute) -> str:
    now, was = changed.route, changed.old_route
    parts = [("filter", was.filter, now.filter), ("policy", was.policy, now.policy)]
    return ", ".join(f"{name} {old} => {new}" for name, old, new in parts if old != new)
