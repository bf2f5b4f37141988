"""How resources are named on the command line: ``exports``, ``export/NAME``, ``JOB/PE/PORT``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from streambroker_core.errors import ManifestError
from streambroker_core.model import PortKey, is_resource_name
from streambroker_operator.cli.io.client import BrokerClient, port_path
from streambroker_operator.cli.io.errors import UsageError, did_you_mean
from streambroker_operator.errors import RequestError

KINDS = ("exports", "imports", "pes", "routes")
PORT_KINDS = ("exports", "imports")
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
"""The kinds in sentences."""
NOT_FOUND_CODES = {"exports": "UnknownPort", "imports": "UnknownPort", "pes": "UnknownPE"}

Item = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a command is about: kinds, and one name in them or all."""

    kinds: tuple[str, ...]
    name: str | None = None


def read_targets(words: Sequence[str]) -> list[Target]:
    """Read ``[KIND[,KIND] [NAME…]]``, ``KIND/NAME…``, ``JOB/PE/PORT…`` or ``KIND JOB PE PORT``.

    Raises:
        UsageError: a kind is none; the message names what was probably meant.
    """
    if not words:
        return [Target(kinds=KINDS)]
    kinds = _parse_kinds(words[0])
    if kinds is None:
        return [_parse_target(word) for word in words]
    names = list(words[1:])
    if len(names) > 1 and names[1].isdigit() and "/" not in names[0]:
        if len(names) != (2 if kinds == ("pes",) else 3):
            raise UsageError("Write one port as `export|import JOB PE PORT`, a PE as `pe JOB PE`.")
        names = ["/".join(names)]
    for name in names:
        if len(names) > 1 and name.lower() in KIND_ALIASES:
            each = "export/NAME import/NAME"
            raise UsageError(f"{name!r} is a kind; to name several kinds write {each}.")
    if not names:
        return [Target(kinds=kinds)]
    return [Target(kinds=kinds, name=_strip_kind(name, kinds)) for name in names]


def _parse_kinds(word: str) -> tuple[str, ...] | None:
    parts = word.lower().split(",")
    if not all(part in KIND_ALIASES for part in parts):
        return None
    found = [kind for part in parts for kind in KIND_ALIASES[part]]
    return tuple(dict.fromkeys(found))


def _strip_kind(name: str, kinds: tuple[str, ...]) -> str:
    """Return a name without the kind before it, where somebody wrote both."""
    first, slash, _ = name.partition("/")
    if name.count("/") == 1 and first.lower() not in KIND_ALIASES and set(kinds) <= set(PORT_KINDS):
        raise UsageError(
            f"{name!r} is neither NAME nor JOB/PE/PORT; a namespace is given as `-n {first}`."
        )
    found = _parse_target(name) if slash else None
    if found is None or found.name is None or found.name == name:
        return name
    if found.kinds != kinds:
        raise UsageError(f"{name!r} is of another kind; write KIND/NAME for each of them.")
    return found.name


def _parse_target(word: str) -> Target:
    first, slash, rest = word.partition("/")
    parts = word.split("/")
    port = len(parts) in (3, 4) and parts[-2].isdigit()
    if first.lower() in KIND_ALIASES and slash and not (port and len(parts) == 3):
        return Target(kinds=KIND_ALIASES[first.lower()], name=rest)
    if port:
        return Target(kinds=PORT_KINDS, name=word)
    if len(parts) == 2 and parts[1].isdigit():
        return Target(kinds=("pes",), name=word)
    if not slash and not did_you_mean(first.lower(), KIND_ALIASES) and is_resource_name(word):
        return Target(kinds=PORT_KINDS, name=word)
    raise UsageError(
        f"There is no kind {first!r}.{did_you_mean(first.lower(), KIND_ALIASES)} Write exports,"
        f" imports, pes, "
        "routes or all, export/NAME, or JOB/PE/PORT."
    )


def read_port(word: str, namespace: str) -> PortKey | None:
    """Return the port of ``JOB/PE/PORT`` or ``NAMESPACE/JOB/PE/PORT``; None for any other name.

    Raises:
        ManifestError: it is written like one but cannot be one.
    """
    slashes = word.count("/")
    if slashes == 2:
        return PortKey.parse(f"{namespace}/{word}")
    return PortKey.parse(word) if slashes == 3 else None


def item_names(kind: str, item: Item) -> list[str]:
    """Return all names by which an item may be asked for, the best first."""
    if kind == "routes":
        ends = [item["export"], item["import"]]
        return [f"{ends[0]}:{ends[1]}", *ends, *(_without_namespace(end) for end in ends)]
    if kind == "pes":
        short = f"{item['job']}/{item['pe']}"
        return [short, f"{item['namespace']}/{short}", item["job"]]
    spec, metadata = item["spec"], item["metadata"]
    short = f"{spec['job']}/{spec['pe']}/{spec['port']}"
    return [metadata["name"], short, f"{metadata['namespace']}/{short}"]


def item_name(kind: str, item: Item, index: int = 0) -> str:
    """Return a name of an item.

    Args:
        kind: of the item.
        item: as the broker answers it.
        index: which of its names, as in `item_names`.
    """
    return item_names(kind, item)[index]


def _without_namespace(key: str) -> str:
    return key.partition("/")[2]


def select_items(kind: str, items: Sequence[Item], name: str | None) -> list[Item]:
    """Return the items that a name means; all of them without one."""
    if name is None:
        return list(items)
    return [item for item in items if name in item_names(kind, item)]


def find_items(
    client: BrokerClient, target: Target, namespace: str
) -> list[tuple[str, list[Item]]]:
    """Return what a target means, by kind.

    Args:
        client: the broker.
        target: what is asked for.
        namespace: where to look, ``*`` for everywhere.

    Raises:
        RequestError: nothing has that name; the message names the nearest that there is.
    """
    where = target_namespace(target, namespace)
    at_port = _find_by_port(client, target, where)
    if at_port:
        return at_port
    lists = {kind: client.items(f"/{kind}", namespace=where) for kind in target.kinds}
    found = [(kind, select_items(kind, items, target.name)) for kind, items in lists.items()]
    if target.name is None or any(items for _, items in found):
        return found if target.name is None else [(k, items) for k, items in found if items]
    known = [
        name for kind, items in lists.items() for item in items for name in item_names(kind, item)
    ]
    raise not_found_error(target, where, known)


def target_namespace(target: Target, namespace: str) -> str:
    """Return the namespace that a name says, or the one that is asked about."""
    name = target.name or ""
    whole = 2 if target.kinds == ("pes",) else 3
    of_route = target.kinds == ("routes",) and ":" in name
    return name.partition("/")[0] if of_route or name.count("/") == whole else namespace


def _find_by_port(
    client: BrokerClient, target: Target, namespace: str
) -> list[tuple[str, list[Item]]]:
    """Return the Exports and Imports of a port without listing all; empty if that is not it."""
    if target.name is None or namespace == "*" or not set(target.kinds) <= set(PORT_KINDS):
        return []
    try:
        key = read_port(target.name, namespace)
    except ManifestError:
        return []
    found = []
    if key is None:
        return []
    for kind in target.kinds:
        try:
            item = client.call("GET", port_path(SINGULAR[kind], key), namespace=key.namespace)
        except RequestError as error:
            if error.status != 404:
                raise
        else:
            found.append((kind, [item]))
    return found


def not_found_error(target: Target, namespace: str, candidates: Sequence[str]) -> RequestError:
    """Return the error for a name that nothing has."""
    words = " or ".join(DISPLAY_NAMES[kind] for kind in target.kinds)
    where = "any namespace" if namespace == "*" else f"namespace {namespace}"
    kinds = ",".join(target.kinds)
    return RequestError(
        404,
        NOT_FOUND_CODES.get(target.kinds[0], "UnknownRoute"),
        f"There is no {words} {target.name!r} in"
        f" {where}.{did_you_mean(target.name or '', candidates)} "
        f"`streambroker get {kinds}` lists what there is.",
    )


def find_port(client: BrokerClient, kind: str, word: str, namespace: str) -> PortKey:
    """Return the port that a word means: by its address, else by the name of its resource.

    Args:
        client: the broker.
        kind: exports or imports.
        word: ``JOB/PE/PORT``, ``NAMESPACE/JOB/PE/PORT``, ``NAME``, or one of these after
            the kind, as ``export/NAME``.
        namespace: where to look.

    Raises:
        RequestError: nothing has that name.
        UsageError: it is written like a port but cannot be one.
    """
    first, _, rest = word.partition("/")
    parts = word.split("/")
    other = KIND_ALIASES.get(first.lower(), ())
    if rest and len(other) == 1 and other != (kind,) and not parts[1].isdigit():
        raise UsageError(f"{word!r} is no {SINGULAR[kind]}, which is wanted here.")
    if KIND_ALIASES.get(first.lower()) == (kind,) and not (len(parts) == 3 and parts[1].isdigit()):
        word = rest
    try:
        key = read_port(word, namespace)
    except ManifestError as error:
        raise UsageError(f"{word!r} is no JOB/PE/PORT: {error.reason}.") from error
    if key is not None:
        return key
    if "/" in word:
        raise UsageError(f"{word!r} is neither NAME nor JOB/PE/PORT.")
    ((_, items),) = _find_by_name(client, kind, word, namespace)
    spec = items[0]["spec"]
    return PortKey.parse(f"{namespace}/{spec['job']}/{spec['pe']}/{spec['port']}")


def _find_by_name(
    client: BrokerClient, kind: str, word: str, namespace: str
) -> list[tuple[str, list[Item]]]:
    """Return the resource of a name; where one of the other kind has it, say so."""
    try:
        return find_items(client, Target(kinds=(kind,), name=word), namespace)
    except RequestError as error:
        if error.status != 404:
            raise
        (other,) = set(PORT_KINDS) - {kind}
        if not select_items(other, client.items(f"/{other}", namespace=namespace), word):
            raise
        raise RequestError(
            404,
            error.code,
            f"There is no {SINGULAR[kind]} {word!r} in namespace {namespace}; it is an "
            f"{SINGULAR[other]}: write {SINGULAR[other]}/{word} where one is wanted.",
        ) from error


def with_suggestion(
    client: BrokerClient, kind: str, key: PortKey, error: RequestError
) -> RequestError:
    """Return the refusal of an unknown port with the nearest port that there is."""
    if error.code not in ("UnknownPort", "UnknownPE"):
        return error
    known = [
        item_names(kind, item)[1] for item in client.items(f"/{kind}", namespace=key.namespace)
    ]
    near = did_you_mean(f"{key.job}/{key.pe}/{key.port}", known)
    return RequestError(error.status, error.code, f"{error}{near}", facts=error.facts)
