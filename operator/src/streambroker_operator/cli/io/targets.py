"""Resource names on the command line: ``exports``, ``export/NAME``, ``JOB/PE/PORT``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streambroker_client.errors import BrokerError, broker_error, with_members
from streambroker_core.errors import ManifestError
from streambroker_core.model import Kind, PortKey, is_resource_name
from streambroker_operator.cli.io.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from streambroker_client.broker import Broker

KINDS = ("exports", "imports", "pes", "routes")
PORT_KINDS: Mapping[str, Kind] = {"exports": "Export", "imports": "Import"}
KIND_ALIASES: dict[str, tuple[str, ...]] = {
    "export": ("exports",),
    "exports": ("exports",),
    "ex": ("exports",),
    "import": ("imports",),
    "imports": ("imports",),
    "im": ("imports",),
    "pe": ("pes",),
    "pes": ("pes",),
    "route": ("routes",),
    "routes": ("routes",),
    "rt": ("routes",),
    "all": KINDS,
}
SINGULAR = {"exports": "export", "imports": "import", "pes": "pe", "routes": "route"}
DISPLAY_NAMES = {**SINGULAR, "pes": "PE"}
"""Names of the kinds in sentences."""
RULE_WORDS = ("pattern", "patterns", "patternprocessor", "patternprocessors", "rule", "rules")
RULES_REMEDY = (
    "Rules of patterns have a command of their own, `streambroker patterns`: `list JOB`,"
    " `get|delete|enable JOB/ID`, `put JOB -f FILE`."
)
NOT_FOUND_CODES = {"exports": "UnknownPort", "imports": "UnknownPort", "pes": "UnknownPE"}

Item = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Target of a command: kinds, and one name in them or all."""

    kinds: tuple[str, ...]
    name: str | None = None


def read_targets(words: Sequence[str]) -> list[Target]:
    """Parse ``[KIND[,KIND] [NAME…]]``, ``KIND/NAME…``, ``JOB/PE/PORT…`` or ``KIND JOB PE PORT``.

    Raises:
        UsageError: unknown kind or malformed name; the message suggests the nearest kind.
    """
    if not words:
        return [Target(kinds=KINDS)]
    kinds = _parse_kinds(words[0])
    if kinds is None:
        try:
            return [_parse_target(word) for word in words]
        except UsageError as error:
            raise (_rules_error(words[0]) or error) from None
    names = list(words[1:])
    if len(names) > 1 and names[1].isdigit() and "/" not in names[0]:
        if len(names) != (2 if kinds == ("pes",) else 3):
            raise UsageError("Write one port as `export|import JOB PE PORT`, a PE as `pe JOB PE`.")
        names = ["/".join(names)]
    for name in names:
        if len(names) > 1 and name.lower() in KIND_ALIASES:
            example = "export/NAME import/NAME"
            raise UsageError(f"{name!r} is a kind; to name several kinds write {example}.")
    if not names:
        return [Target(kinds=kinds)]
    return [Target(kinds=kinds, name=_strip_kind(name, kinds)) for name in names]


def _rules_error(kind: str) -> UsageError | None:
    if kind.lower() not in RULE_WORDS:
        return None
    return UsageError(f"{kind!r} is no kind of resource here. {RULES_REMEDY}")


def _parse_kinds(word: str) -> tuple[str, ...] | None:
    parts = word.lower().split(",")
    if not all(part in KIND_ALIASES for part in parts):
        return None
    kinds = [kind for part in parts for kind in KIND_ALIASES[part]]
    return tuple(dict.fromkeys(kinds))


def _strip_kind(name: str, kinds: tuple[str, ...]) -> str:
    first, slash, _ = name.partition("/")
    if name.count("/") == 1 and first.lower() not in KIND_ALIASES and set(kinds) <= set(PORT_KINDS):
        raise UsageError(
            f"{name!r} is neither NAME nor JOB/PE/PORT; a namespace is given as `-n {first}`."
        )
    target = _parse_target(name) if slash else None
    if target is None or target.name is None or target.name == name:
        return name
    if target.kinds != kinds:
        raise UsageError(f"{name!r} is of another kind; write KIND/NAME for each of them.")
    return target.name


def _parse_target(word: str) -> Target:
    first, slash, rest = word.partition("/")
    parts = word.split("/")
    port = len(parts) in (3, 4) and parts[-2].isdigit()
    if first.lower() in KIND_ALIASES and slash and not (port and len(parts) == 3):
        return Target(kinds=KIND_ALIASES[first.lower()], name=rest)
    if port:
        return Target(kinds=tuple(PORT_KINDS), name=word)
    if len(parts) == 2 and parts[1].isdigit():
        return Target(kinds=("pes",), name=word)
    if not slash and not did_you_mean(first.lower(), KIND_ALIASES) and is_resource_name(word):
        return Target(kinds=tuple(PORT_KINDS), name=word)
    raise _rules_error(first) or UsageError(
        f"There is no kind {first!r}.{did_you_mean(first.lower(), KIND_ALIASES)} Write exports,"
        f" imports, pes, "
        "routes or all, export/NAME, or JOB/PE/PORT."
    )


def read_port(word: str, namespace: str) -> PortKey | None:
    """Return the port of ``JOB/PE/PORT`` or ``NAMESPACE/JOB/PE/PORT``; None for any other name.

    Raises:
        ManifestError: the parts are no valid port.
    """
    slashes = word.count("/")
    if slashes == 2:
        return PortKey.parse(f"{namespace}/{word}")
    return PortKey.parse(word) if slashes == 3 else None


def item_names(kind: str, item: Item) -> list[str]:
    """Return all names of an item, the preferred one first."""
    if kind == "routes":
        ends = [item["export"], item["import"]]
        return [f"{ends[0]}:{ends[1]}", *ends, *(end.partition("/")[2] for end in ends)]
    if kind == "pes":
        short = f"{item['job']}/{item['pe']}"
        return [short, f"{item['namespace']}/{short}", item["job"]]
    metadata, short = item["metadata"], port_text(item["spec"])
    return [metadata["name"], short, f"{metadata['namespace']}/{short}"]


def port_text(spec: Item) -> str:
    """Return the port of a resource as ``JOB/PE/PORT``."""
    return f"{spec['job']}/{spec['pe']}/{spec['port']}"


def select_items(kind: str, items: Sequence[Item], name: str | None) -> list[Item]:
    """Return the items with a name; all without a name."""
    if name is None:
        return list(items)
    return [item for item in items if name in item_names(kind, item)]


def list_items(broker: Broker, kind: str, namespace: str) -> list[Item]:
    """Return all items of a kind in a namespace (``*``: all); `Broker` has a method for each."""
    items: list[Item] = getattr(broker.in_namespace(namespace), kind)()
    return items


def find_items(broker: Broker, target: Target, namespace: str) -> list[tuple[str, list[Item]]]:
    """Return the items of a target in a namespace (``*``: all), by kind.

    Raises:
        BrokerError: no item has that name; the message suggests the nearest one.
    """
    search_namespace = target_namespace(target, namespace)
    at_port = _find_by_port(broker, target, search_namespace)
    if at_port:
        return at_port
    lists = {kind: list_items(broker, kind, search_namespace) for kind in target.kinds}
    matches = [(kind, select_items(kind, items, target.name)) for kind, items in lists.items()]
    if target.name is None or any(items for _, items in matches):
        return matches if target.name is None else [(k, items) for k, items in matches if items]
    names = [
        name for kind, items in lists.items() for item in items for name in item_names(kind, item)
    ]
    raise not_found_error(target, search_namespace, names)


def target_namespace(target: Target, namespace: str) -> str:
    """Return the namespace in the target's name, or else the selected one."""
    name = target.name or ""
    full_slashes = 2 if target.kinds == ("pes",) else 3
    of_route = target.kinds == ("routes",) and ":" in name
    return name.partition("/")[0] if of_route or name.count("/") == full_slashes else namespace


def _find_by_port(broker: Broker, target: Target, namespace: str) -> list[tuple[str, list[Item]]]:
    """Return the Exports and Imports of a port without listing all; empty if it is no port."""
    if target.name is None or namespace == "*" or not set(target.kinds) <= set(PORT_KINDS):
        return []
    try:
        key = read_port(target.name, namespace)
    except ManifestError:
        return []
    matches: list[tuple[str, list[Item]]] = []
    if key is None:
        return []
    for kind in target.kinds:
        try:
            item = broker.get(PORT_KINDS[kind], key)
        except BrokerError as error:
            if error.status != 404:
                raise
        else:
            matches.append((kind, [item]))
    return matches


def not_found_error(target: Target, namespace: str, candidates: Sequence[str]) -> BrokerError:
    """Return the error for a name without items."""
    words = " or ".join(DISPLAY_NAMES[kind] for kind in target.kinds)
    where = "any namespace" if namespace == "*" else f"namespace {namespace}"
    kinds = ",".join(target.kinds)
    remedy = (
        RULES_REMEDY
        if (target.name or "").lower() in RULE_WORDS
        else f"`streambroker get {kinds}` lists the existing ones."
    )
    return broker_error(
        404,
        NOT_FOUND_CODES.get(target.kinds[0], "UnknownRoute"),
        f"There is no {words} {target.name!r} in"
        f" {where}.{did_you_mean(target.name or '', candidates)} {remedy}",
    )


def find_port(broker: Broker, kind: str, word: str, namespace: str) -> PortKey:
    """Return the port that a word names: by its address, else by the name of its resource.

    The word is ``JOB/PE/PORT``, ``NAMESPACE/JOB/PE/PORT``, ``NAME``, or one of these after the
    kind, as ``export/NAME``.

    Raises:
        BrokerError: no resource has that name.
        UsageError: the word has the form of a port, but is no valid port.
    """
    first, _, rest = word.partition("/")
    parts = word.split("/")
    prefix_kinds = KIND_ALIASES.get(first.lower(), ())
    if rest and len(prefix_kinds) == 1 and prefix_kinds != (kind,) and not parts[1].isdigit():
        raise UsageError(f"{word!r} is not of kind {SINGULAR[kind]}, which is required here.")
    if KIND_ALIASES.get(first.lower()) == (kind,) and not (len(parts) == 3 and parts[1].isdigit()):
        word = rest
    try:
        key = read_port(word, namespace)
    except ManifestError as error:
        raise UsageError(f"{word!r} is not JOB/PE/PORT: {error.reason}.") from error
    if key is not None:
        return key
    if "/" in word:
        raise UsageError(f"{word!r} is neither NAME nor JOB/PE/PORT.")
    ((_, items),) = _find_by_name(broker, kind, word, namespace)
    return PortKey.parse(f"{namespace}/{port_text(items[0]['spec'])}")


def _find_by_name(
    broker: Broker, kind: str, word: str, namespace: str
) -> list[tuple[str, list[Item]]]:
    """Return the resource with a name; the error hints at one of the other kind."""
    try:
        return find_items(broker, Target(kinds=(kind,), name=word), namespace)
    except BrokerError as error:
        if error.status != 404:
            raise
        (other,) = set(PORT_KINDS) - {kind}
        if not select_items(other, list_items(broker, other, namespace), word):
            raise
        raise broker_error(
            404,
            error.code,
            f"There is no {SINGULAR[kind]} {word!r} in namespace {namespace}; it is an"
            f" {SINGULAR[other]}: write {SINGULAR[other]}/{word} where an {SINGULAR[other]} is"
            " accepted.",
        ) from error


def with_suggestion(broker: Broker, kind: str, key: PortKey, error: BrokerError) -> BrokerError:
    """Return the error for an unknown port, with the nearest known port."""
    if error.code not in ("UnknownPort", "UnknownPE"):
        return error
    ports = [item_names(kind, item)[1] for item in list_items(broker, kind, key.namespace)]
    near = did_you_mean(f"{key.job}/{key.pe}/{key.port}", ports)
    return with_members(error, detail=f"{error}{near}")
