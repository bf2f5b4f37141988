"""Hints: signed datagrams that announce a new view, a command or a challenge to an agent.

A hint carries no routes: it can only make an agent call the broker. So a lost, duplicate, late,
replayed or forged hint costs at most one poll.

Form, version 1, big-endian: ``SBH`` and the version byte; the first 8 bytes of the SHA-256 of the
agent's name; the board's point as two unsigned 64-bit integers; one byte with the length of the
view's version, then that version in ASCII; HMAC-SHA256 of all that, with the agent's key.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass

from streambroker_core.errors import HintError

HINT_VERSION = 1
MAX_DATAGRAM = 200
"""Bytes; a longer datagram is rejected unread."""
STALE_S = 90.0
"""Seconds after which an older point is accepted, because the board was restored."""
POLL_SPACING_S = 0.02
"""Minimum seconds between two polls that hints cause."""

COMMANDS = "errands"
"""Replaces the view's version if a command waits. An agent without commands takes it for a new
version, and polls."""

PROOF = "proof-"
"""Prefix of a challenge, which replaces the view's version; the proof follows. An agent registers
again with the proof, which shows that it listens at the address."""

_HEAD = struct.Struct(">3sB8sQQB")
_MAC = hashlib.sha256().digest_size
_LONGEST_VERSION = 64
_LARGEST = (1 << 64) - 1

Point = tuple[int, int]
"""Processed versions of (exports, imports); ordered component by component."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """Content of a hint: the agent's view has this version at this point."""

    agent: str
    version: str
    point: Point


def encode(key: bytes, agent: str, view_version: str, point: Point) -> bytes:
    """Return a signed datagram of at most `MAX_DATAGRAM` bytes.

    ``agent`` is ``namespace/job/pe``, ``key`` that of its registration. ``view_version`` is the
    ETag of its view, at most 64 ASCII characters; ``point`` is the board's.

    Raises:
        HintError: the version or the point does not fit into a hint.
    """
    version = view_version.encode("ascii", "replace")
    if len(version) > _LONGEST_VERSION or not view_version.isascii():
        raise HintError(f"the view version {view_version[:80]!r} does not fit into a hint")
    if not all(0 <= part <= _LARGEST for part in point):
        raise HintError(f"the point {point} does not fit into a hint")
    head = _HEAD.pack(b"SBH", HINT_VERSION, _digest(agent), point[0], point[1], len(version))
    body = head + version
    return body + _mac(key, body)


def decode(key: bytes, datagram: bytes, agent: str) -> Hint:
    """Return the content of a datagram that this agent's broker signed.

    Raises:
        HintError: it is oversized, malformed, of another version, for another agent, or forged.
    """
    if len(datagram) > MAX_DATAGRAM:
        raise HintError(f"a hint has at most {MAX_DATAGRAM} bytes, this one has {len(datagram)}")
    if len(datagram) < _HEAD.size + _MAC:
        raise HintError(f"a hint of {len(datagram)} bytes is cut off")
    magic, version, target, exports, imports, length = _HEAD.unpack_from(datagram)
    if magic != b"SBH":
        raise HintError("the datagram is not a hint")
    if version != HINT_VERSION:
        raise HintError(f"the hint has form {version}, this agent reads form {HINT_VERSION}")
    if length > _LONGEST_VERSION or len(datagram) != _HEAD.size + length + _MAC:
        raise HintError("the hint's length does not fit its content")
    body, mac = datagram[:-_MAC], datagram[-_MAC:]
    if target != _digest(agent):
        raise HintError(f"the hint is not for {agent}")
    if not hmac.compare_digest(mac, _mac(key, body)):
        raise HintError("the hint's signature is wrong")
    return Hint(agent=agent, version=_ascii(body[_HEAD.size :]), point=(exports, imports))


def _ascii(version: bytes) -> str:
    try:
        return version.decode("ascii")
    except UnicodeDecodeError as error:
        raise HintError("the hint's view version is not ASCII") from error


def _digest(agent: str) -> bytes:
    return hashlib.sha256(agent.encode()).digest()[:8]


def _mac(key: bytes, body: bytes) -> bytes:
    return hmac.new(key, b"hint\0" + body, hashlib.sha256).digest()


class HintGate:
    """Decides which hints cause a poll and which views are accepted.

    ``version`` (ETag, or None) and ``point`` are those of the agent's view.
    """

    __slots__ = ("_point", "_stale_since", "_version")

    def __init__(self, version: str | None = None, point: Point = (0, 0)) -> None:
        self._version = version
        self._point = point
        self._stale_since: float | None = None

    def should_poll(self, hint: Hint, now: float) -> bool:
        """Return whether a hint requires a poll; ``now`` is monotonic, in seconds.

        It does not if the agent has its version, or if its point is older. Older points count
        again after they were received for `STALE_S` seconds.
        """
        if hint.version == self._version:
            return False
        return self._is_believed(hint.point, now)

    def accept_view(self, version: str, point: Point, now: float) -> bool:
        """Return whether to accept a received view, and record it if so.

        Also call it for an unchanged view, of which the broker sends only the point: it detects
        that the board was restored. A new view with an older point is rejected until such points
        were received for `STALE_S` seconds.
        """
        if not self._is_believed(point, now):
            return version == self._version
        self._version = version
        self._point = point
        self._stale_since = None
        return True

    def is_ahead_of(self, point: Point) -> bool:
        """Return whether ``point`` is older than that of the agent's view."""
        return is_older(point, self._point)

    def _is_believed(self, point: Point, now: float) -> bool:
        if not self.is_ahead_of(point):
            return True
        if self._stale_since is None:
            self._stale_since = now
        return now - self._stale_since >= STALE_S


def point_text(point: Point) -> str:
    """Return a point as header text: ``exports,imports``."""
    return f"{point[0]},{point[1]}"


def read_point(text: str) -> Point | None:
    """Read a point from header text; None if it is malformed."""
    exports, _, imports = text.partition(",")
    if not all(
        part.isascii() and part.isdigit() and len(part) <= 20 for part in (exports, imports)
    ):
        return None
    return int(exports), int(imports)


def is_older(point: Point, than: Point) -> bool:
    """Return whether any component of ``point`` is below that of ``than`` (a partial order)."""
    return point[0] < than[0] or point[1] < than[1]
