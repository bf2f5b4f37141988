"""Our part of the latency, with no other pair beside, so that a p99 is of us and not of others."""

from __future__ import annotations

from latency import Pair, Round, evaluate, rows_of
from measure import Figures, Settings
from processes import Broker

PURPOSE = "latency: our part, one pair alone on the machine, 1,000 and 10,000 rows/s"
RATES = (1000, 10_000)


def run(settings: Settings) -> Figures:
    """Measure; round 0 warms up."""
    figures = Figures()
    found: list[Round] = []
    broker = Broker(settings.place)
    folder = settings.place / "timed"
    folder.mkdir()
    pair = Pair(settings, "tuned", broker=broker.url, notes=str(folder))
    try:
        for round_ in settings.turns:
            figures.yardstick() if round_ else None
            for rate in RATES:
                notes, since = pair.run(rate, round_)
                if round_:
                    found.append(("tuned", rate, round_, rows_of(notes, since), since))
            settings.say(f"round {round_} of {settings.rounds} done")
    finally:
        pair.end()
        broker.end()
    evaluate(settings, figures, {"tuned": pair}, found)
    figures.note("as `latency`, with one pair, its two agents and a broker, and nothing else.")
    return figures
