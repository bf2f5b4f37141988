"""Which rows a set of rules can be interested in at all, as a filter for who sends them.

Only rules that an event which matches nothing leaves as they are allow it; one rule that does not
makes every row relevant.
"""

from __future__ import annotations

from collections.abc import Iterable

from streambroker_core.cep.automaton import Automaton
from streambroker_core.cep.conditions import local_part
from streambroker_core.expression import Expression, parse, tree
from streambroker_core.expression.parser import MAX_BYTES


def joint_predicate(automata: Iterable[Automaton]) -> Expression | None:
    """Return the filter that lets all rows pass that some rule has to see.

    Args:
        automata: those of all rules.

    Returns:
        None if all rows have to pass: a rule looks at what stands between, takes every event, or
        asks a function, or the filter would be too long. Without rules a filter that no row passes.
    """
    parts: dict[str, tree.Predicate] = {}
    for automaton in automata:
        if automaton.appetite != "matching":
            return None
        for each in automaton.conditions:
            part = local_part(each)
            if part is None or part.tree is None:
                return None
            for node in part.tree.items if isinstance(part.tree, tree.Or) else (part.tree,):
                parts[str(Expression(kind="filter", tree=node))] = node
    if not parts:
        return parse("false", "filter")
    nodes = tuple(parts[text] for text in sorted(parts))
    joint = Expression(kind="filter", tree=nodes[0] if len(nodes) == 1 else tree.Or(nodes))
    return joint if len(str(joint).encode()) <= MAX_BYTES else None


def with_filter(joint: Expression | None, given: Expression | None) -> Expression | None:
    """Return a filter that lets pass what both let pass; None lets everything pass."""
    both = [each.tree for each in (joint, given) if each is not None and each.tree is not None]
    if not both:
        return None
    items: list[tree.Predicate] = []
    for node in both:
        items += node.items if isinstance(node, tree.And) else (node,)
    return Expression(kind="filter", tree=items[0] if len(items) == 1 else tree.And(tuple(items)))
