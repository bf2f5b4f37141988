"""Capabilities: tokens with which an importer opens a route at the exporter's agent.

The broker signs them with the key of the exporter's agent, which verifies them even while the
broker is away. Text form: ``base64url(json)`` dot ``base64url(mac)``, without padding.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from dataclasses import dataclass
from functools import lru_cache

from streambroker_core.errors import CapabilityError, ManifestError
from streambroker_core.wire.encoding.canonical import canonical
from streambroker_core.wire.encoding.fields import Fields

CAPABILITY_VERSION = 1
POLICED_VERSION = 2
"""Of a capability for an Export with policies; agents that do not know policies refuse it."""
MAX_TOKEN = 2048
"""Characters; a longer token is rejected unread."""

DAY_S = 86_400
"""Seconds between the end of the day of signing and the capability's expiry."""

MAX_VERIFIED = 16_384
"""Verified capabilities that a process remembers, each with about 1 KiB."""

_FAR = 1 << 53


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """Permission of the bearer to read an export.

    Attributes:
        reader_import: ``namespace/job/pe/port`` of the importer.
        export: ``namespace/job/pe/port`` of the exporter.
        filter_allowed: whether the importer may filter rows.
        policy: ``wait`` or ``drop``.
        expires: seconds since 1970, UTC, or None for as long as the route exists.
        policed: whether the Export has policies, without which its agent gives nothing.
    """

    reader_import: str
    export: str
    filter_allowed: bool
    policy: str
    expires: int | None = None
    policed: bool = False

    def check_expiry(self, now: float) -> None:
        """Raise `CapabilityError` if it has expired."""
        if self.expires is not None and now >= self.expires:
            ago = f"{now - self.expires:.0f} s ago"
            raise CapabilityError("expired", f"the capability for {self.export} expired {ago}")


def compute_expiry(now: float) -> int:
    """Return the expiry of a capability that is signed now, one to two days later.

    It is constant throughout a day, so that equal views stay equal.
    """
    return (int(now) // DAY_S + 2) * DAY_S


def claimed_expiry(token: str) -> int | None:
    """Return the claimed expiry of a capability; None for never, or if it is malformed.

    The signature is not verified, because the bearer has no key.
    """
    claimed = _read_unverified(token)
    return None if claimed is None else claimed.expires


def claims_filter(token: str | None) -> bool:
    """Return whether a capability claims to allow filters, unverified; False without one."""
    claimed = None if token is None else _read_unverified(token)
    return claimed is not None and claimed.filter_allowed


def _read_unverified(token: str) -> Capability | None:
    try:
        return _read(_decode(token.partition(".")[0]))
    except CapabilityError:
        return None


def sign(
    key: bytes,
    *,
    reader_import: str,
    export: str,
    filter_allowed: bool,
    policy: str,
    expires: int | None = None,
    policed: bool = False,
) -> str:
    """Return a token; equal arguments return equal tokens.

    ``key`` is that of the exporter's agent; for the other arguments see `Capability`.
    """
    body = canonical(
        {
            "v": POLICED_VERSION if policed else CAPABILITY_VERSION,
            "import": reader_import,
            "export": export,
            "filter": filter_allowed,
            "policy": policy,
            "expires": expires,
        }
    )
    return f"{_encode(body)}.{_encode(_mac(key, body))}"


def verify(
    key: bytes, token: str | None, *, reader_import: str, export: str, now: float | None
) -> Capability:
    """Verify the reader's token for an import and an export, and return its content.

    ``key`` is that of this agent. ``now`` is in seconds since 1970; None ignores the expiry.

    Raises:
        CapabilityError: it is missing, malformed, forged, for another import or export, or
            expired; the error's ``reason`` is that word.
    """
    if not token:
        raise CapabilityError("missing", f"no capability for {export} was presented")
    capability = _open(key, token)
    if capability.reader_import != reader_import:
        raise CapabilityError(
            "wrong import", f"the capability is for {capability.reader_import}, not {reader_import}"
        )
    if capability.export != export:
        raise CapabilityError(
            "wrong export", f"the capability is for {capability.export}, not {export}"
        )
    if now is not None:
        capability.check_expiry(now)
    return capability


@lru_cache(maxsize=MAX_VERIFIED)
def _open(key: bytes, token: str) -> Capability:
    if len(token) > MAX_TOKEN:
        raise CapabilityError(
            "malformed", f"a capability has at most {MAX_TOKEN} characters, not {len(token)}"
        )
    body_text, dot, mac_text = token.partition(".")
    if not dot:
        raise CapabilityError("malformed", "the capability has no signature")
    body, mac = _decode(body_text), _decode(mac_text)
    if not hmac.compare_digest(mac, _mac(key, body)):
        raise CapabilityError("forged", "the capability's signature is wrong")
    return _read(body)


def _read(body: bytes) -> Capability:
    try:
        fields = Fields(json.loads(body))
        version = fields.integer("v", low=1, high=_FAR)
        if version > POLICED_VERSION:
            raise CapabilityError(
                "malformed",
                f"the capability has form {version}, this agent reads up to {POLICED_VERSION}",
            )
        return Capability(
            reader_import=fields.text("import"),
            export=fields.text("export"),
            filter_allowed=fields.boolean("filter", False),
            policy=fields.text("policy"),
            expires=fields.optional_integer("expires", high=_FAR),
            policed=version == POLICED_VERSION,
        )
    except (ValueError, ManifestError) as error:
        raise CapabilityError("malformed", f"the capability cannot be read: {error}") from error


def _mac(key: bytes, body: bytes) -> bytes:
    return hmac.new(key, b"capability\0" + body, hashlib.sha256).digest()


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _decode(text: str) -> bytes:
    try:
        raw = text.encode("ascii")
        padded = raw + b"=" * (-len(raw) % 4)
        data = base64.b64decode(padded, altchars=b"-_", validate=True)
    except (UnicodeEncodeError, binascii.Error) as error:
        raise CapabilityError("malformed", "the capability is not base64url") from error
    if _encode(data) != text:
        raise CapabilityError("malformed", "the capability is not in its canonical form")
    return data
