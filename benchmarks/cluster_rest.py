"""Two replicas on a real API server: what they write at rest, and while there is no API server."""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import Any

from change_to_route import Links
from kube_resources import Cluster, api_server, but_leases
from measure import Figures, Settings

from cluster import AGENTS, declare, jobs, settled, takers
from streambroker_core.wire.broker.registration import POLL_S

PURPOSE = "two replicas: writes in ten minutes of rest, answers in ten minutes without API server"
REST_S = 600.0
AWAY_S = 600.0
VIEW = "/job/feed/pe/0?namespace=default"


def run(settings: Settings) -> Figures:
    """Run two replicas, half of the agents asking each; rest, then take the API server away."""
    figures = Figures()
    with api_server(settings, figures, "rest") as api:
        if api is None:
            return figures
        from support.clusters.replicas import SignedAgent, make_key, operator

        make_key(api, "default")
        os.environ["STREAMBROKER_TOKEN"] = SignedAgent(api, "default", "jobs").token
        bench = Cluster(api)
        declare(bench)
        one = operator(api, settings.place, "default")
        other = operator(api, settings.place, "default")
        with one as first, other as second:
            links = []
            for number, broker in enumerate((first, second)):
                place = settings.place / f"agents-{number}"
                place.mkdir()
                links.append(Links(place, broker.url, jobs()[number::2]))
            try:
                figures.yardstick()
                rest(settings, figures, api, bench, (first, second))
                away(settings, figures, api, (first, second))
            finally:
                for agents in links:
                    agents.end()
    figures.note(
        f"{len(jobs())} agents, half of them with each replica; {AGENTS} Imports with a route to"
        " one Export are changed twice before the rest begins. One round, whatever is asked for."
    )
    return figures


def rest(
    settings: Settings, figures: Figures, api: Any, bench: Cluster, replicas: tuple[Any, Any]
) -> None:
    """Count what is written while nothing changes, once the statuses of the changes are."""
    settled(bench)
    bench.changed(takers(), 10, 10.0)
    # All agents have asked once more, and what waited longest is written.
    time.sleep(1.2 * POLL_S)
    settled(bench)
    leading = sum(broker.leads for broker in replicas)
    if leading != 1:
        raise RuntimeError(f"{leading} replicas lead")
    before, seconds = len(but_leases(api)), 10.0 if settings.quick else REST_S
    time.sleep(seconds)
    new = but_leases(api)[before:]
    for entry in new:
        settings.say(f"{entry['verb']} {entry.get('objectRef')}")
    figures.add(f"two replicas at rest for {seconds:.0f} s: writes", len(new), "writes")


def away(settings: Settings, figures: Figures, api: Any, replicas: tuple[Any, Any]) -> None:
    """Count what REST answers, and the routes, while there is no API server."""
    from support.clusters.calls import grant, make_account, token_of
    from support.processes.waiting import until

    make_account(api, "default", "ann")
    grant(api, "ann", "system:serviceaccount:default:ann", ("streambroker.io", "exports", "list"))
    asked = {
        "a job's": (os.environ["STREAMBROKER_TOKEN"], VIEW),
        "a person's": (token_of(api, "default", "ann"), "/exports?namespace=default"),
    }

    def routes(broker: Any) -> int | None:
        status, body, _ = broker.call(asked["a job's"][0], "GET", VIEW)
        return len(body["exports"]["out"]["routes"]) if status == 200 else None

    for broker in replicas:
        for token, path in asked.values():
            answered = lambda b=broker, t=token, p=path: b.call(t, "GET", p)[0] == 200  # noqa: E731
            until(answered, 20.0, "all may read")
    before = [routes(broker) or 0 for broker in replicas]
    fewest = list(before)
    api.stop()
    answers = {who: Counter[int]() for who in asked}
    began = time.perf_counter()
    first_refusal: dict[str, float] = {}
    seconds = 10.0 if settings.quick else AWAY_S
    while time.perf_counter() - began < seconds:
        for number, broker in enumerate(replicas):
            for who, (token, path) in asked.items():
                status = broker.call(token, "GET", path)[0]
                answers[who][status] += 1
                if status != 200:
                    first_refusal.setdefault(who, time.perf_counter() - began)
            seen = routes(broker)
            fewest[number] = fewest[number] if seen is None else min(fewest[number], seen)
        time.sleep(1.0)
    for who, found in answers.items():
        name = f"API server away for {seconds:.0f} s: {who} reads answered"
        figures.add(name, 100 * found[200] / found.total(), "%")
        if who in first_refusal:
            figures.add(f"{name}, first refusal after", first_refusal[who], "s")
            settings.say(f"{who}: {dict(found)}")
    lost = sum(a - b for a, b in zip(before, fewest, strict=True))
    figures.add("API server away: routes lost", lost, "routes")
