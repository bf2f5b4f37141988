"""A forecast as lines that a person reads."""

from __future__ import annotations

from streambroker_core.model import Route
from streambroker_core.whatif.forecast import Forecast


def tell_forecast(found: Forecast) -> str:
    """Return a line for each route that would be another, and one that counts."""
    lines = [f"- {_route(cut.route)}  {cut.reason}" for cut in found.cut]
    lines += [f"+ {_route(route)}{_how(route)}" for route in found.added]
    lines += [
        f"~ {_route(changed.route)}  {_both(changed.route)}, was {_both(changed.was)}"
        for changed in found.changed
    ]
    for problem in found.problems:
        word = "refused" if problem.refused else "no effect"
        lines.append(f"! change {problem.index} {word}: {problem.code}: {problem.detail}")
    counts = (
        f"{len(found.added)} added, {len(found.cut)} cut, {len(found.changed)} changed, "
        f"{found.kept} kept"
    )
    return "\n".join([*lines, counts])


def _route(route: Route) -> str:
    return f"{route.export} -> {route.import_}"


def _how(route: Route) -> str:
    """Return what is special about a route: its filter, and a policy that is not ``wait``."""
    told = [] if route.filter is None else [f"filter {route.filter}"]
    if route.policy != "wait":
        told.append(route.policy)
    return f"  {', '.join(told)}" if told else ""


def _both(route: Route) -> str:
    filter_ = "no filter" if route.filter is None else f"filter {route.filter}"
    return f"{filter_} and {route.policy}"
