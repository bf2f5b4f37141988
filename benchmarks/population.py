"""Exports and Imports made up after one fixed pattern: what index and scan are measured with.

Exports have eight properties. Subscriptions are of four forms, in shares of 60, 20, 10 and
10 %, and each is true of about one Export in ten thousand.
"""

from __future__ import annotations

import random

from streambroker_core.model import Export, Import, PortKey
from streambroker_core.model.properties import Value

KINDS = 50
REGIONS = 10
SYMBOLS = 1_000
LISTED = 10
PRICES = 1_000


def export(rng: random.Random, number: int) -> Export:
    """Return an Export by properties."""
    properties: dict[str, Value] = {
        "kind": f"kind-{rng.randrange(KINDS)}",
        "region": f"region-{rng.randrange(REGIONS)}",
        "symbols": [f"S{symbol}" for symbol in rng.sample(range(SYMBOLS), LISTED)],
        "id": number,
        "price": round(rng.uniform(0, PRICES), 2),
        "version": rng.randrange(5),
        "live": rng.random() < 0.5,
        "name": f"export-{number}",
    }
    key = PortKey(namespace="default", job=f"feed-{number}", pe=0, port="out")
    return Export(key=key, uid=_uid("e", number), created=float(number), properties=properties)


def import_(rng: random.Random, number: int) -> Import:
    """Return an Import with a subscription."""
    key = PortKey(namespace="default", job=f"alerts-{number}", pe=0, port="in")
    return Import(
        key=key,
        uid=_uid("i", number),
        created=float(number),
        subscription=subscription(rng),
    )


def subscription(rng: random.Random) -> str:
    """Return a text of one of the four forms."""
    kind, other = rng.randrange(KINDS), rng.randrange(KINDS)
    symbol, price = rng.randrange(SYMBOLS), round(rng.uniform(0, PRICES), 2)
    form = rng.random()
    if form < 0.6:
        return f'kind == "kind-{kind}" && price >= {price} && "S{symbol}" in symbols'
    if form < 0.8:
        rest = rng.randrange(10)
        return (
            f'kind == "kind-{kind}" && price >= {price} && price < {price + 50:.2f} '
            f"&& id % 10 == {rest}"
        )
    if form < 0.9:
        return (
            f'(kind == "kind-{kind}" || kind == "kind-{other}") && live '
            f'&& "S{symbol}" in symbols && price < {price}'
        )
    region = rng.randrange(REGIONS)
    return f'price >= {price} && price < {price + 1:.2f} && region == "region-{region}"'


def _uid(letter: str, number: int) -> str:
    return f"{letter}0000000-0000-4000-8000-{number:012d}"
