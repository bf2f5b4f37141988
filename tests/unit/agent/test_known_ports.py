"""What a user sees of ports that are not there, and of a change."""

from __future__ import annotations

from typing import Any, cast

import pytest

from pe_agent.job.ports import Change, PortMissingError, PortsByName


def test_a_port_that_is_not_there_is_refused_with_the_one_that_was_meant() -> None:
    ports: PortsByName[int] = PortsByName("import", "subscribe")
    with pytest.raises(PortMissingError, match=r"no import 'trades'\. Known: none yet\."):
        ports["trades"]
    ports.update(trades=1, news=2)
    with pytest.raises(KeyError) as caught:
        ports["tradse"]
    assert str(caught.value) == (
        "this PE has no import 'tradse'. Did you mean 'trades'? Known: news, trades."
        " subscribe() creates one."
    )
    assert (ports["trades"], ports.get("nope"), "nope" in ports, len(ports)) == (1, None, False, 2)


def test_a_change_shows_its_generation_and_routes_alone() -> None:
    change = Change(3, {"kept": 1}, cast(Any, None))
    assert repr(change) == "Change(generation=3, routes={'kept': 1})"
