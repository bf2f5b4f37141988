"""Chains of waiting from agent to agent: which wait leads back to the export that waits."""

from __future__ import annotations

from streambroker_core.ledger.retention import BlockingReader
from streambroker_core.ledger.wait_chains import FRESH_SECONDS, RING_SECONDS, WaitChains

E, F = "default/a/0/out", "default/b/0/out"


def holder(reader: str = "r", size: int = 10, moved: float = 0.0) -> BlockingReader:
    return BlockingReader(
        reader=reader,
        import_="default/b/0/in",
        bytes=size,
        away=0.0,
        query="q",
        last_progress=moved,
    )


def ring(chains: WaitChains, *holders: BlockingReader, now: float) -> list[tuple[str, ...] | None]:
    return [h.ring for h in chains.mark_rings(holders, now)]


def reported(chains: WaitChains, until: float, *chain: str, reader: str = "r") -> None:
    """Report a chain every other second from 100 on."""
    now = 100.0
    while now <= until:
        chains.record(reader, chain, now)
        now += 2


def test_a_chain_that_leads_back_counts_once_it_has_lasted() -> None:
    chains = WaitChains(E)
    reported(chains, 108, F, E)
    assert ring(chains, holder(), now=100 + RING_SECONDS - 0.1) == [None]
    assert ring(chains, holder(), now=100 + RING_SECONDS) == [(F,)]


def test_a_chain_that_leads_elsewhere_is_no_ring() -> None:
    chains = WaitChains(E)
    reported(chains, 200, F)
    assert ring(chains, holder(), now=200) == [None]


def test_a_reader_that_moves_is_in_no_ring_until_it_has_stood_still() -> None:
    chains = WaitChains(E)
    reported(chains, 140, F, E)
    assert ring(chains, holder(moved=135), now=140) == [None]
    assert ring(chains, holder(moved=125), now=140) == [(F,)]


def test_a_report_that_is_not_repeated_says_nothing() -> None:
    chains = WaitChains(E)
    reported(chains, 140, F, E)
    assert ring(chains, holder(), now=141 + FRESH_SECONDS) == [None]
    chains.record("r", (F, E), 160)
    assert ring(chains, holder(), now=165) == [None], "it has to last once more"


def test_a_wait_that_ends_ends_the_ring() -> None:
    chains = WaitChains(E)
    reported(chains, 140, F, E)
    chains.record("r", (), 141)
    chains.record("r", (F, E), 142)
    assert ring(chains, holder(), now=145) == [None]


def test_only_the_slowest_readers_count() -> None:
    chains = WaitChains(E)
    reported(chains, 140, F, E)
    assert ring(chains, holder("other", 20), holder("r", 10), now=140) == [None, None]
    assert ring(chains, holder("other", 10), holder("r", 10), now=140) == [None, (F,)]


def test_what_waits_behind_an_export_is_itself_and_what_its_slowest_readers_wait_for() -> None:
    chains = WaitChains(E)
    assert chains.blocking_exports([], 100) == []
    assert chains.blocking_exports([holder()], 100) == [E]
    chains.record("r", (F, "default/c/0/out"), 100)
    assert chains.blocking_exports([holder()], 101) == [E, F, "default/c/0/out"]
    assert chains.blocking_exports([holder("other", 20), holder()], 101) == [E]
