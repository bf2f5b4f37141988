"""A forecast as lines that a person reads."""

from __future__ import annotations

from streambroker_core.diagnose.forecast import Changed, Forecast
from streambroker_core.model import Route


def tell_forecast(found: Forecast) -> str:
    """Return a line for each route that is another, and one that counts.

    Returns:
        Lines with ``+`` added, ``-`` cut, ``~`` changed; with ``!`` what is refused
        and with ``?`` what is accepted and leads to nothing.
    """
    lines = [f"  + {_route(route)}" for route in found.added]
    lines += [f"  - {_route(cut.route)}: {cut.reason}" for cut in found.cut]
    lines += [f"  ~ {_route(changed.route)}: {_became(changed)}" for changed in found.changed]
    for problem in found.problems:
        sign = "!" if problem.refused else "?"
        lines.append(f"  {sign} {problem.change}: {problem.code}: {problem.detail}")
    counts = (
        f"{len(found.added)} added, {len(found.cut)} cut, {found.kept} kept, "
        f"{len(found.changed)} changed"
    )
    return "\n".join([*lines, counts])


def _route(route: Route) -> str:
    return f"{route.export} -> {route.import_}"


def _became(changed: Changed) -> str:
    now, was = changed.route, changed.was
    parts = [("filter", was.filter, now.filter), ("policy", was.policy, now.policy)]
    return ", ".join(f"{name} {old} => {new}" for name, old, new in parts if old != new)
