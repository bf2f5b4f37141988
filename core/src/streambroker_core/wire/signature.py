"""Requests that an agent signs with its key, so that nobody else has to be asked who it is.

The header ``Authorization`` carries ``Streambroker-Agent v=1, agent="namespace/job/pe",
instance="…", time="…", mac="…"``. The MAC is HMAC-SHA256 over the canonical form of
``["request", 1, agent, instance, time, method, path, SHA-256 of the body]``; the path is the one of
the request line, query included. Time is in microseconds since 1970, and an agent never
uses one twice. A signature holds for `WINDOW_S` seconds to either side of it, once.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections import deque
from dataclasses import dataclass

from streambroker_core.errors import ManifestError, SignatureError
from streambroker_core.model import PeKey
from streambroker_core.wire.canonical import canonical

SCHEME = "Streambroker-Agent"
SIGNATURE_VERSION = 1
WINDOW_S = 60.0
MAX_HEADER = 512
"""Characters; a longer header is refused before it is looked at."""
MAX_REMEMBERED = 100_000
"""How many signatures are remembered; beyond that, requests are refused until some run out."""

_FORM = re.compile(
    rf'{SCHEME} v=(?P<v>[0-9]{{1,4}}), agent="(?P<agent>[a-z0-9/-]{{5,140}})", '
    r'instance="(?P<instance>[0-9a-f]{8,64})", time="(?P<time>[0-9]{1,19})", '
    r'mac="(?P<mac>[0-9a-f]{64})"'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What a header claims; nothing of it is true before `verify`.

    Attributes:
        time_us: when the request was made, microseconds since 1970.
    """

    agent: PeKey
    instance: str
    time_us: int
    mac: bytes


def is_signed(header: str) -> bool:
    """Say whether a header ``Authorization`` is of this scheme."""
    return header[: len(SCHEME) + 1].lower() == f"{SCHEME.lower()} "


def sign(
    key: bytes, *, agent: PeKey, instance: str, method: str, path: str, body: bytes, time_us: int
) -> str:
    """Return the header of a request.

    Args:
        key: of the agent, from its registration.
        agent: who sends it.
        instance: of the agent's registration.
        method: of the request, in upper case.
        path: as in the request line, with its query.
        body: of the request; empty for none.
        time_us: microseconds since 1970, another one for each request.
    """
    mac = _mac(key, agent, instance, time_us, method, path, body).hex()
    return (
        f'{SCHEME} v={SIGNATURE_VERSION}, agent="{agent}", instance="{instance}", '
        f'time="{time_us}", mac="{mac}"'
    )


def read(header: str) -> Signature:
    """Read a header.

    Raises:
        SignatureError: it has another form.
    """
    found = _FORM.fullmatch(header) if len(header) <= MAX_HEADER else None
    if found is None:
        raise SignatureError("malformed", f"the header is not of the form of {SCHEME}")
    if int(found["v"]) != SIGNATURE_VERSION:
        raise SignatureError(
            "malformed", f"it has form {found['v']}, this broker reads form {SIGNATURE_VERSION}"
        )
    try:
        agent = PeKey.parse(found["agent"])
    except ManifestError as error:
        raise SignatureError("malformed", error.reason) from error
    return Signature(
        agent=agent,
        instance=found["instance"],
        time_us=int(found["time"]),
        mac=bytes.fromhex(found["mac"]),
    )


def verify(
    key: bytes, signature: Signature, *, method: str, path: str, body: bytes, now: float
) -> None:
    """Check that a request is what the agent with this key has signed, just now.

    Args:
        key: of the agent that is registered.
        signature: as `read` returned it.
        method: of the request.
        path: as in the request line, with its query.
        body: of the request.
        now: seconds since 1970.

    Raises:
        SignatureError: it is forged, or out of time.
    """
    mac = _mac(key, signature.agent, signature.instance, signature.time_us, method, path, body)
    if not hmac.compare_digest(mac, signature.mac):
        raise SignatureError("forged", f"it is not that of the agent of {signature.agent}")
    off = now - signature.time_us / 1e6
    if abs(off) > WINDOW_S:
        raise SignatureError(
            "out of time",
            f"it was made {abs(off):.0f} s {'ago' if off > 0 else 'ahead'} by the broker's clock",
        )


class Replays:
    """Remembers which signatures have been used, as long as they hold."""

    def __init__(self) -> None:
        self._used: set[bytes] = set()
        self._order: deque[tuple[float, bytes]] = deque()

    def admit(self, signature: Signature, now: float) -> None:
        """Take note of a verified signature.

        Args:
            signature: of a request that changes something.
            now: seconds since 1970; may go back.

        Raises:
            SignatureError: it was used before, or too many are remembered.
        """
        while self._order and self._order[0][0] < now:
            self._used.discard(self._order.popleft()[1])
        if signature.mac in self._used:
            raise SignatureError("repeated", "this very request was sent before")
        if len(self._used) >= MAX_REMEMBERED:
            raise SignatureError("repeated", "too many requests are remembered; sign again later")
        self._used.add(signature.mac)
        # It was verified within the window, so it holds for at most twice that from now on.
        self._order.append((now + 2 * WINDOW_S, signature.mac))


def _mac(
    key: bytes, agent: PeKey, instance: str, time_us: int, method: str, path: str, body: bytes
) -> bytes:
    told = [
        "request",
        SIGNATURE_VERSION,
        str(agent),
        instance,
        time_us,
        method,
        path,
        hashlib.sha256(body).hexdigest(),
    ]
    return hmac.new(key, b"request\0" + canonical(told), hashlib.sha256).digest()
