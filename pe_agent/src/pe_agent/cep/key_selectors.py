"""The keys for which rows are copied: those known when a query starts.

Rows are copied before they go to their buckets, in tasks that do not know the rules of a window. So
the keys are part of the query, and keys of earlier runs stay.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from streambroker_core.cep.operator import PatternRules
from streambroker_core.cep.pattern.key_selectors import Selector, key_expression
from streambroker_core.errors import AlignedError, FilterError

Key: TypeAlias = "str | Sequence[str]"


def to_selector(key: Key) -> Selector:
    """Return a user's key as a selector."""
    return (key,) if isinstance(key, str) else tuple(key)


def key_problem(part: Any, names: Collection[str]) -> str | None:
    """Return what is wrong with a part of a key; None if nothing is."""
    if part in names:
        return None
    try:
        _, fields = key_expression(part)
    except (FilterError, TypeError, ValueError):
        return f"is neither a column nor an expression; the columns are {', '.join(names)}"
    missing = sorted(fields - set(names))
    return f"refers to {missing[0]}, which is not a column" if missing else None


def check_selector(selector: Selector, names: Collection[str], what: str) -> Selector:
    """Return a key; raise AlignedError if a part is neither a column nor an expression."""
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
    """Return the keys for which rows are copied; none if all rows use the stream's key.

    Args:
        stream: the stream's key.
        names: columns of the stream.
        declared: keys that rules may have.
        first_rules: the first rules; a rule with an invalid key is refused later, alone.
        last_sent: the set last sent to the query's checkpoint; None for a new checkpoint.
        fixed: rules have the stream's key, or a declared one. Otherwise rows of a keyed stream are
            copied from the beginning, so that a restart of the query can add other keys.

    Raises:
        AlignedError: a declared key is invalid, or the checkpoint is one without copies.
    """
    selectors = {check_selector(one, names, "selectors") for one in declared}
    if last_sent is not None and not last_sent.selectors:
        if selectors - {stream}:
            raise AlignedError(
                "selectors are given, but rows were not copied before: the checkpoint is one"
                " without copies. Start a new one, with a new control file."
            )
        return []
    selectors |= {stream, *(_rule_key(rule) or stream for rule in first_rules if not fixed)}
    selectors = {one for one in selectors if not any(key_problem(part, names) for part in one)}
    if last_sent is not None:
        selectors |= {tuple(one) for one in last_sent.selectors}
    plain = set(stream) <= set(names) and (fixed or not stream)
    return sorted(selectors) if len(selectors) > 1 or not plain else []


def _rule_key(rule: Any) -> Selector:
    """Return the key of a rule; an empty one if there is none, or it cannot be read."""
    key = rule.get("key", ()) if isinstance(rule, Mapping) else getattr(rule, "key", ())
    parts = [key] if isinstance(key, str) else key if isinstance(key, list | tuple) else []
    return tuple(parts) if all(isinstance(part, str) for part in parts) else ()
