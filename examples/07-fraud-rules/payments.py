"""Write made-up payments, a file a second. Ctrl-C ends it.

Most are small and from one country. Every 20 seconds a card is stolen: two small payments try it,
and then a large one follows, in another country.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

CARDS = [f"card-{number:02}" for number in range(20)]
COUNTRIES = ["DE", "FR", "IT", "US"]
EVERY = 20
START = datetime(2026, 1, 1, 12, tzinfo=UTC)

Payment = dict[str, Any]


def payments(second: int) -> Iterator[Payment]:
    """Yield the payments of a second of event time, always the same for the same second."""
    draw = random.Random(second)
    for place in range(5):
        number = draw.randrange(len(CARDS))
        yield payment(second, place, number, draw.randrange(5, 80), COUNTRIES[number % 4])
    number, step = second // EVERY % len(CARDS), second % EVERY - EVERY // 2
    if step in (0, 2):
        yield payment(second, 5, number, 1, "US")
    if step == 4:
        yield payment(second, 5, number, 900 + number, "BR")


def payment(second: int, place: int, card: int, amount: int, country: str) -> Payment:
    """Return one payment; `amount` is in euros."""
    at = START + timedelta(seconds=second, milliseconds=100 * place)
    fields = {"card": CARDS[card], "amount": float(amount), "country": country}
    return {"at": at.isoformat(), **fields}


def write(folder: Path, second: int) -> None:
    """Write the file of a second under a hidden name, then rename it."""
    hidden = folder / f".{second:06}.json"
    hidden.write_text("".join(json.dumps(one) + "\n" for one in payments(second)))
    hidden.rename(folder / f"{second:06}.json")


def main() -> None:
    """Write files until Ctrl-C, after those that are there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("payments"))
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between two files")
    options = parser.parse_args()
    options.folder.mkdir(exist_ok=True)
    second = len(list(options.folder.glob("*.json")))
    try:
        while True:
            write(options.folder, second)
            second += 1
            time.sleep(options.pause)
    except KeyboardInterrupt:
        print(f"wrote {second} seconds of payments")


if __name__ == "__main__":
    main()
