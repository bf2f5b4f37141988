"""Which keys rows are copied for: those that are known when a query starts.

Rows are copied before they go to their buckets, in tasks that know nothing of the rules of a
window. So the keys are part of the query; what was copied for before stays copied for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from pe_agent.aligned import AlignedError
from streambroker_core.cep.operator import PatternRules
from streambroker_core.cep.pattern.key_selectors import Selector, key_expression
from streambroker_core.errors import FilterError

Key: TypeAlias = "str | Sequence[str]"


def to_selector(key: Key) -> Selector:
    """Return a key as a user gives it as a selector."""
    return (key,) if isinstance(key, str) else tuple(key)


def key_problem(part: Any, names: Collection[str]) -> str | None:
    """Return what is wrong with a part of a key; None if nothing is."""
    if part in names:
        return None
    try:
        _, asked = key_expression(part)
    except (FilterError, TypeError, ValueError):
        return f"is neither a column nor an expression; the columns are {', '.join(names)}"
    lost = sorted(asked - set(names))
    return f"asks for {lost[0]}, which is no column" if lost else None


def check_selector(selector: Selector, names: Collection[str], what: str) -> Selector:
    """Return a key.

    Raises:
        AlignedError: a part of it is neither a column nor an expression over columns.
    """
    for part in selector:
        problem = key_problem(part, names)
        if problem is not None:
            raise AlignedError(f"{what} has {part!r}, which {problem}.")
    return selector


def select_copied_keys(
    stream: Selector,
    names: Collection[str],
    declared: Iterable[Selector],
    first_rules: Iterable[Any],
    last_sent: PatternRules | None,
    *,
    fixed: bool = False,
) -> list[Selector]:
    """Return the keys for which rows are copied; none if all rows go by the stream's key.

    Args:
        stream: the stream's key.
        names: its columns.
        declared: keys that rules may have.
        first_rules: the first rules; what has a key that cannot be is refused later, by itself.
        last_sent: what was sent last to the query's checkpoint; None for a new one.
        fixed: rules have the stream's key, or a declared one. Otherwise rows of a keyed stream are
            copied from the beginning, so that other keys can be added when the query starts again.

    Raises:
        AlignedError: a declared key cannot be, or the checkpoint is one without copies.
    """
    found = {check_selector(one, names, "selectors") for one in declared}
    if last_sent is not None and not last_sent.selectors:
        if found - {stream}:
            raise AlignedError(
                "selectors are given, and rows were not copied before: the checkpoint is one"
                " without copies. Begin a new one, with a new control file."
            )
        return []
    found |= {stream, *(_rule_key(rule) or stream for rule in first_rules if not fixed)}
    found = {one for one in found if not any(key_problem(part, names) for part in one)}
    if last_sent is not None:
        found |= {tuple(one) for one in last_sent.selectors}
    plain = set(stream) <= set(names) and (fixed or not stream)
    return sorted(found) if len(found) > 1 or not plain else []


def _rule_key(rule: Any) -> Selector:
    """Return the key of a rule; none if it says none, or cannot be read."""
    given = rule.get("key", ()) if isinstance(rule, Mapping) else getattr(rule, "key", ())
    parts = [given] if isinstance(given, str) else given if isinstance(given, list | tuple) else []
    return tuple(parts) if all(isinstance(part, str) for part in parts) else ()
