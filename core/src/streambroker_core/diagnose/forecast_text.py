"""A forecast as lines that a person reads."""

from __future__ import annotations

from streambroker_core.diagnose.forecast import ChangedRoute, Forecast
from streambroker_core.model import Route


def render_forecast(forecast: Forecast) -> str:
    """Return a line for each route that is another, and one that counts.

    Returns:
        Lines with ``+`` added, ``-`` cut, ``~`` changed; with ``!`` what is refused
        and with ``?`` what is accepted and leads to nothing.
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
