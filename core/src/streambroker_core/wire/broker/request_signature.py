"""Signature of an agent's request with its key, verified without any other service.

The header ``Authorization`` carries ``Streambroker-Agent v=1, agent="namespace/job/pe",
instance="…", time="…", mac="…"``. The MAC is HMAC-SHA256 over the canonical form of
``["request", 1, agent, instance, time, method, path, SHA-256 of the body]``; the path includes the
query.

- Time is in microseconds since 1970. An agent never uses one twice.
- A signature is valid for `WINDOW_S` seconds before and after its time.
- A broker process accepts a signature of a change once. It does not know those that another
  process accepted, or that it accepted before a restart.
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
"""Characters; a longer header is rejected unread."""
MAX_REMEMBERED = 64
"""Signatures remembered per agent; an agent has fewer requests in flight."""

_FORM = re.compile(
    rf'{SCHEME} v=(?P<v>[0-9]{{1,4}}), agent="(?P<agent>[a-z0-9/-]{{5,140}})", '
    r'instance="(?P<instance>[0-9a-f]{8,64})", time="(?P<time>[0-9]{1,19})", '
    r'mac="(?P<mac>[0-9a-f]{64})"'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """Content of a header, untrusted before `verify`; ``time_us`` is microseconds since 1970."""

    agent: PeKey
    instance: str
    time_us: int
    mac: bytes


def is_signed(header: str) -> bool:
    """Return whether a header ``Authorization`` has this scheme."""
    return header[: len(SCHEME) + 1].lower() == f"{SCHEME.lower()} "


def sign(
    key: bytes, *, agent: PeKey, instance: str, method: str, path: str, body: bytes, time_us: int
) -> str:
    """Return the header of a request.

    Key and instance are those of the agent's registration, the method is in upper case, and the
    path includes the query. ``time_us`` is unique for each request.
    """
    mac = _mac(key, agent, instance, time_us, method, path, body).hex()
    return (
        f'{SCHEME} v={SIGNATURE_VERSION}, agent="{agent}", instance="{instance}", '
        f'time="{time_us}", mac="{mac}"'
    )


def read(header: str) -> Signature:
    """Read a header.

    Raises:
        SignatureError: it is malformed.
    """
    match = _FORM.fullmatch(header) if len(header) <= MAX_HEADER else None
    if match is None:
        raise SignatureError("malformed", f"the header is not of the form of {SCHEME}")
    if int(match["v"]) != SIGNATURE_VERSION:
        raise SignatureError(
            "malformed", f"it has form {match['v']}, this broker reads form {SIGNATURE_VERSION}"
        )
    try:
        agent = PeKey.parse(match["agent"])
    except ManifestError as error:
        raise SignatureError("malformed", error.reason) from error
    return Signature(
        agent=agent,
        instance=match["instance"],
        time_us=int(match["time"]),
        mac=bytes.fromhex(match["mac"]),
    )


def verify(
    key: bytes, signature: Signature, *, method: str, path: str, body: bytes, now: float
) -> None:
    """Check that the agent with this key has signed a request within `WINDOW_S` of ``now``.

    The path includes the query; ``now`` is in seconds since 1970.

    Raises:
        SignatureError: the signature is forged, or its time is outside the window.
    """
    mac = _mac(key, signature.agent, signature.instance, signature.time_us, method, path, body)
    if not hmac.compare_digest(mac, signature.mac):
        raise SignatureError("forged", f"it does not belong to the agent of {signature.agent}")
    age = now - signature.time_us / 1e6
    if abs(age) > WINDOW_S:
        raise SignatureError(
            "out of time",
            f"it was made {abs(age):.0f} s {'ago' if age > 0 else 'ahead'} by the broker's clock",
        )


@dataclass(slots=True)
class _UsedTimes:
    """Latest times of an agent, ascending, at most `MAX_REMEMBERED`.

    Times up to ``floor`` are rejected. All have expired after ``until``, in seconds since 1970.
    """

    times: list[int] = field(default_factory=list)
    floor: int = -1
    until: float = 0.0


class ReplayGuard:
    """Rejects repeated signatures while they are valid, for each agent separately.

    An agent uses each time once, and has at most `MAX_REMEMBERED` requests in flight. So a time
    older than all remembered ones is a repetition. Request rates are unlimited, and agents do not
    affect each other.
    """

    def __init__(self) -> None:
        self._agents: OrderedDict[tuple[PeKey, str], _UsedTimes] = OrderedDict()

    def admit(self, signature: Signature, now: float) -> None:
        """Record the verified signature of a request that changes something.

        ``now`` is in seconds since 1970 and may go back.

        Raises:
            SignatureError: the signature was used before.
        """
        while self._agents and next(iter(self._agents.values())).until < now:
            self._agents.popitem(last=False)
        key = signature.agent, signature.instance
        used = self._agents.setdefault(key, _UsedTimes())
        index = bisect_left(used.times, signature.time_us)
        if signature.time_us <= used.floor or signature.time_us in used.times[index : index + 1]:
            raise SignatureError("repeated", "this exact request was sent before")
        used.times.insert(index, signature.time_us)
        if len(used.times) > MAX_REMEMBERED:
            used.floor = used.times.pop(0)
        # It was verified within the window, so it expires after at most twice that.
        used.until = max(used.until, now + 2 * WINDOW_S)
        self._agents.move_to_end(key)


def _mac(
    key: bytes, agent: PeKey, instance: str, time_us: int, method: str, path: str, body: bytes
) -> bytes:
    message = [
        "request",
        SIGNATURE_VERSION,
        str(agent),
        instance,
        time_us,
        method,
        path,
        hashlib.sha256(body).hexdigest(),
    ]
    return hmac.new(key, b"request\0" + canonical(message), hashlib.sha256).digest()
