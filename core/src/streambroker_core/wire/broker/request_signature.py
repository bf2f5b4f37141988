"""Requests that an agent signs with its key, so that nobody else has to be asked who it is.

The header ``Authorization`` carries ``Streambroker-Agent v=1, agent="namespace/job/pe",
instance="…", time="…", mac="…"``. The MAC is HMAC-SHA256 over the canonical form of
``["request", 1, agent, instance, time, method, path, SHA-256 of the body]``; the path is the one of
the request line, query included. Time is in microseconds since 1970, and an agent never
uses one twice. A signature holds for `WINDOW_S` seconds to either side of it; where it stands for a
change, each process takes it once. What another process took, or this one before it was started
again, it does not know.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from bisect import bisect_left
from collections import OrderedDict
from dataclasses import dataclass, field

from streambroker_core.errors import ManifestError, SignatureError
from streambroker_core.model import PeKey
from streambroker_core.wire.encoding.canonical import canonical

SCHEME = "Streambroker-Agent"
SIGNATURE_VERSION = 1
WINDOW_S = 60.0
MAX_HEADER = 512
"""Characters; a longer header is refused before it is looked at."""
MAX_REMEMBERED = 64
"""How many signatures of one agent are remembered: more than it has requests under way."""

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


@dataclass(slots=True)
class _UsedTimes:
    """The last times an agent has used, in order.

    Attributes:
        times: at most `MAX_REMEMBERED`.
        floor: no time up to this one is taken any more.
        until: as long as one of them holds, in seconds since 1970.
    """

    times: list[int] = field(default_factory=list)
    floor: int = -1
    until: float = 0.0


class ReplayGuard:
    """Remembers which signatures have been used, as long as they hold, for each agent apart.

    An agent never uses a time twice, and signs no more requests at once than are remembered: what
    is older than all of these has come before. So it may change as often as it likes, and takes
    nothing from other agents.
    """

    def __init__(self) -> None:
        self._agents: OrderedDict[tuple[PeKey, str], _UsedTimes] = OrderedDict()

    def admit(self, signature: Signature, now: float) -> None:
        """Take note of a verified signature.

        Args:
            signature: of a request that changes something.
            now: seconds since 1970; may go back.

        Raises:
            SignatureError: it was used before.
        """
        while self._agents and next(iter(self._agents.values())).until < now:
            self._agents.popitem(last=False)
        who = signature.agent, signature.instance
        used = self._agents.setdefault(who, _UsedTimes())
        place = bisect_left(used.times, signature.time_us)
        if signature.time_us <= used.floor or signature.time_us in used.times[place : place + 1]:
            raise SignatureError("repeated", "this very request was sent before")
        used.times.insert(place, signature.time_us)
        if len(used.times) > MAX_REMEMBERED:
            used.floor = used.times.pop(0)
        # It was verified within the window, so it holds for at most twice that from now on.
        used.until = max(used.until, now + 2 * WINDOW_S)
        self._agents.move_to_end(who)


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
