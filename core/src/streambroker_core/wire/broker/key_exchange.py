"""Key exchange over an unencrypted connection: X25519 (RFC 7748), and a seal with its secret.

- It protects against eavesdropping, not against an impersonated broker, which takes TLS.
- Key pairs last as long as a process. The arithmetic is not constant-time.
"""

from __future__ import annotations

import hashlib
import hmac

from streambroker_core.errors import ManifestError

SIZE = 32
"""Bytes of a private key, a public key and a sealed secret."""

_P = 2**255 - 19
_A24 = 121_665
_BASE = 9


def public_key(private: bytes) -> bytes:
    """Return the public key of a private key of 32 random bytes."""
    return _x25519(private, _BASE)


def seal(secret: bytes, private: bytes, peer: bytes, purpose: bytes) -> bytes:
    """Return 32 bytes that only the two sides can read; applied to a sealed secret it opens it.

    Args:
        secret: 32 bytes.
        private: own private key.
        peer: public key of the other side.
        purpose: what the secret is for; equal on both sides, and unique for each secret.

    Raises:
        ManifestError: ``peer`` is not a public key; anyone could open the seal.
    """
    shared = _x25519(private, int.from_bytes(peer, "little") & ((1 << 255) - 1))
    if len(peer) != SIZE or not any(shared):
        raise ManifestError(path="exchange", reason="is not an X25519 public key")
    pad = hmac.new(shared, b"streambroker seal\0" + purpose, hashlib.sha256).digest()
    return bytes(a ^ b for a, b in zip(secret, pad, strict=True))


def _x25519(private: bytes, u: int) -> bytes:
    """Return the X25519 function of a scalar and a u-coordinate."""
    scalar = int.from_bytes(private, "little") & ~7
    scalar = scalar & ((1 << 255) - 1) | (1 << 254)
    x2, z2, x3, z3, swap = 1, 0, u, 1, 0
    for position in range(254, -1, -1):
        bit = scalar >> position & 1
        if swap ^ bit:
            x2, x3, z2, z3 = x3, x2, z3, z2
        swap = bit
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        aa, bb, da, cb = a * a % _P, b * b % _P, d * a % _P, c * b % _P
        e = aa - bb
        x3, z3 = (da + cb) ** 2 % _P, u * (da - cb) ** 2 % _P
        x2, z2 = aa * bb % _P, e * (aa + _A24 * e) % _P
    if swap:
        x2, z2 = x3, z3
    return (x2 * pow(z2, _P - 2, _P) % _P).to_bytes(SIZE, "little")
