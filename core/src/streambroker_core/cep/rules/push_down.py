"""Push-down: the filter for exporters that passes every row that a set of rules can need.

A filter is possible only if no rule changes state on an event that matches none of its conditions.
A single other rule makes every row relevant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from streambroker_core.cep.nfa.compiled import compile_rule
from streambroker_core.cep.nfa.nfa import Nfa
from streambroker_core.cep.pattern.conditions import local_part
from streambroker_core.cep.rules.rule_set import RuleSet
from streambroker_core.errors import ExpressionError, FilterError
from streambroker_core.expression import Expression, check_filter, parse, tree
from streambroker_core.expression.parser import MAX_BYTES
from streambroker_core.model.schema import Schema

TOO_LONG = f"the filter would have more than {MAX_BYTES:,} bytes, or be nested too deeply"


@dataclass(frozen=True, slots=True, kw_only=True)
class Relevance:
    """The filter that passes the rows that rules need, as canonical text; None for all rows.

    `why` is the reason why all rows must pass; empty if there is a filter.
    """

    filter: str | None = None
    why: str = ""


def compute_relevance(rules: RuleSet, schema: Schema) -> Relevance:
    """Return the rows that a set of rules needs, including scheduled and disabled rules.

    The filter must be valid for the columns of `schema`.
    """
    automata = []
    for name in sorted(rules.rules):
        for rule in rules.rules[name]:
            automaton = compile_rule(rule).automaton
            why = _find_problem(automaton, schema)
            if why:
                return Relevance(why=f"rule {rule.id}, version {rule.version}, {why}")
            automata.append(automaton)
    joint = joint_predicate(automata)
    return Relevance(why=TOO_LONG) if joint is None else Relevance(filter=str(joint))


def _find_problem(automaton: Nfa, schema: Schema) -> str:
    """Return why a rule needs every row; empty if it does not."""
    if automaton.event_need != "matching":
        return "matches any row, or depends on what is between its rows (`next`, `consecutive`, …)"
    for each in automaton.conditions:
        part = local_part(each)
        if part is None or part.tree is None:
            return "has a condition that cannot be decided by one row, such as a function"
        try:
            check_filter(parse(str(part), "filter"), schema)
        except (FilterError, ExpressionError) as error:
            return f"uses `{part}`, which is not a filter on these columns: {error}".rstrip(".")
    return ""


def joint_predicate(automata: Iterable[Nfa]) -> Expression | None:
    """Return the filter that passes all rows that any automaton needs; no row without automata.

    Returns None if all rows must pass: a rule depends on rows between its events, takes every
    event, or calls a function, or the filter is too long. A filter that is too long is first
    widened to one part of each condition.
    """
    parts: dict[str, tree.Predicate] = {}
    for automaton in automata:
        if automaton.event_need != "matching":
            return None
        for each in automaton.conditions:
            part = local_part(each)
            if part is None or part.tree is None:
                return None
            for node in part.tree.items if isinstance(part.tree, tree.Or) else (part.tree,):
                parts[str(Expression(kind="filter", tree=node))] = node
    if not parts:
        return parse("false", "filter")
    joint = _disjunction(parts)
    if not _is_readable(joint):
        wider = [_widen(node) for node in parts.values()]
        joint = _disjunction({str(Expression(kind="filter", tree=node)): node for node in wider})
    return joint if _is_readable(joint) else None


@lru_cache(maxsize=256)
def _disjuncts(text: str) -> frozenset[str]:
    """Return the alternatives of a filter; a row must pass one."""
    node = parse(text, "filter").tree
    items = node.items if isinstance(node, tree.Or) else [] if node is None else [node]
    return frozenset(str(Expression(kind="filter", tree=item)) for item in items)


def filter_covers(sent: str | None, automaton: Nfa) -> bool:
    """Return whether a filter certainly passed all rows that a rule needs.

    `sent` is a `Relevance.filter`; None for all rows.
    """
    if sent is None:
        return True
    needed = joint_predicate([automaton])
    return needed is not None and _disjuncts(str(needed)) <= _disjuncts(sent)


def _disjunction(parts: Mapping[str, tree.Predicate]) -> Expression:
    nodes = tuple(parts[text] for text in sorted(parts))
    return Expression(kind="filter", tree=nodes[0] if len(nodes) == 1 else tree.Or(nodes))


def _widen(node: tree.Predicate) -> tree.Predicate:
    """Return one part of a conjunction, which passes at least the same rows."""
    if not isinstance(node, tree.And):
        return node
    equalities = [one for one in node.items if isinstance(one, tree.Comparison) and one.op == "=="]
    return (equalities or node.items)[0]


def intersect_filters(left: Expression | None, right: Expression | None) -> Expression | None:
    """Return the conjunction of two filters; None passes all rows."""
    both = [each.tree for each in (left, right) if each is not None and each.tree is not None]
    if not both:
        return None
    items: list[tree.Predicate] = []
    for node in both:
        items += node.items if isinstance(node, tree.And) else (node,)
    return Expression(kind="filter", tree=items[0] if len(items) == 1 else tree.And(tuple(items)))


@lru_cache(maxsize=64)
def narrow_filter(relevant: str, import_filter: str | None) -> str | None:
    """Return the conjunction of the filter that rules need and an import's filter.

    Returns None if it would be too long. `import_filter` is None if the import has no filter.
    """
    import_expression = None if import_filter is None else parse(import_filter, "filter")
    both = intersect_filters(parse(relevant, "filter"), import_expression)
    return str(both) if both is not None and _is_readable(both) else None


def _is_readable(expression: Expression) -> bool:
    """Return whether the receiver can parse the text within the limits of the language."""
    try:
        parse(str(expression), "filter")
    except ExpressionError:
        return False
    return True
