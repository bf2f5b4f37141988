"""At steps of the protocol both agents take in another certificate, and every row is counted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.cuts.cast import CERTIFICATES, Cast, Play
from support.processes.certificates import AGENT as CERTIFIED
from support.processes.certificates import Authority

# The standard library leaves a socket unclosed that the other side closes before the handshake, as
# an agent does that takes another certificate in.
pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning"),
]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cast]:
    folder = tmp_path_factory.mktemp("secured")
    cast = Cast(folder, Authority(folder / "tls", "agents", CERTIFIED))
    yield cast
    cast.end()


@pytest.mark.parametrize(
    "step",
    [
        "between two blocks of a stage",
        "stage on the disk, not answered",
        "published, not answered",
        "plan saved, not answered",
        "planned again, not answered",
        "between two blocks of a read",
        "between two blocks in the task",
    ],
)
def test_no_query_notices_another_certificate_at(secured: Cast, step: str) -> None:
    play = Play(secured, step, CERTIFICATES, reading={"maxBytesPerBatch": "1"})
    play.run()
    play.check()
    play.check_lives()
