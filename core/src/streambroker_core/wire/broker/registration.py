"""Registration of agents: request, response and key.

- The key is derived, never stored. Any replica with the broker's secret and the registration can
  sign for the agent and verify it.
- Over an unencrypted connection the response has the key sealed (`key_exchange`).
- Functions that read a message raise `ManifestError`, which names the missing or wrong field.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from streambroker_core.errors import ManifestError
from streambroker_core.model import PeKey
from streambroker_core.wire.broker import key_exchange
from streambroker_core.wire.encoding.canonical import JsonObject, canonical, without_none
from streambroker_core.wire.encoding.fields import Fields

POLL_S = 30
"""Seconds between an agent's polls without hints."""

_INSTANCE = re.compile(r"[0-9a-f]{8,64}")
_SCHEMES = ("grpc+tcp", "grpc+tls", "grpc")
_KEY = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """Registration that an agent sends.

    Attributes:
        instance: hexadecimal id of the agent's data directory.
        location: where other agents read from it, ``grpc+tcp://host:port``.
        hint: ``host:port`` where it receives hints by UDP, or None.
    """

    instance: str
    location: str
    hint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationReply:
    """Response to a registration.

    Attributes:
        key: the agent's key.
        poll_s: its poll interval, in seconds.
        hinted: whether the broker sends hints to the agent's address.
    """

    key: bytes
    poll_s: int = POLL_S
    hinted: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One side of the key exchange that seals a key: its key pair, and the `key_purpose`."""

    private: bytes
    public: bytes
    purpose: bytes


def key_purpose(pe: PeKey, instance: str) -> bytes:
    """Return the text that binds a derived or sealed key to one agent."""
    return canonical([pe.namespace, pe.job, pe.pe, instance])


def encode_request(
    registration: Registration, exchange: Exchange, proof: str | None = None
) -> JsonObject:
    """Return the body of a registration request."""
    exchanged = without_none(exchange=exchange.public.hex(), proof=proof)
    return {**encode(registration), **exchanged}


def read_proof(body: object) -> str | None:
    """Read the proof that an agent received a challenge; None if it is absent."""
    return Fields(body).optional_text("proof", longest=64)


def read_exchange(body: object) -> bytes | None:
    """Read the public key of a registration request; None if it is absent."""
    fields = Fields(body)
    return _read_hex(fields, "exchange") if fields.has("exchange") else None


def encode(registration: Registration) -> JsonObject:
    """Return the registration as JSON-like data."""
    return asdict(registration)


def decode(body: object) -> Registration:
    """Read the body of a registration request."""
    fields = Fields(body)
    fields.allow_only(("instance", "location", "hint", "exchange", "proof"))
    instance = fields.text(
        "instance",
        check=lambda text: _INSTANCE.fullmatch(text) is not None,
        expected="8 to 64 lower case hexadecimal digits",
    )
    location = fields.text("location")
    scheme, _, address = location.partition("://")
    if scheme not in _SCHEMES:
        raise fields.error_at("location", f"is {location!r}; it has to begin with grpc+tcp://")
    _check_address(fields, "location", address)
    hint = fields.optional_text("hint")
    if hint is not None:
        _check_address(fields, "hint", hint)
        _check_target(fields, hint)
    return Registration(instance=instance, location=location, hint=hint)


def encode_answer(
    answer: RegistrationReply, exchange: Exchange | None = None, offered: bytes | None = None
) -> JsonObject:
    """Return the body of the response to a registration.

    The key is sealed unless ``exchange`` is None, for a private connection, or ``offered``, the
    agent's public key, is None.

    Raises:
        ManifestError: ``offered`` is not a public key.
    """
    common = {"poll": answer.poll_s, "hinted": answer.hinted}
    if exchange is None or offered is None:
        return {"key": answer.key.hex(), **common}
    sealed = key_exchange.seal(answer.key, exchange.private, offered, exchange.purpose)
    return {"sealed": sealed.hex(), "exchange": exchange.public.hex(), **common}


def decode_answer(body: Mapping[str, Any], exchange: Exchange | None = None) -> RegistrationReply:
    """Read the body of the response to a registration; ``exchange`` opens a sealed key."""
    fields = Fields(body)
    if exchange is not None and fields.has("sealed"):
        sealed, offered = _read_hex(fields, "sealed"), _read_hex(fields, "exchange")
        key = key_exchange.seal(sealed, exchange.private, offered, exchange.purpose)
    else:
        key = _read_hex(fields, "key")
    return RegistrationReply(
        key=key,
        poll_s=fields.integer("poll", POLL_S, low=1, high=86_400),
        hinted=fields.boolean("hinted", True),
    )


def _read_hex(fields: Fields, name: str) -> bytes:
    wanted = "64 lower case hexadecimal digits"
    text = fields.text(name, check=lambda text: _KEY.fullmatch(text) is not None, expected=wanted)
    return bytes.fromhex(text)


def derive_key(secret: bytes, pe: PeKey, instance: str) -> bytes:
    """Return the agent's key: HMAC-SHA256 over ``[namespace, job, pe, instance]``."""
    return hmac.new(secret, key_purpose(pe, instance), hashlib.sha256).digest()


def registration_tag(key: bytes, registration: Registration) -> str:
    """Return the tag of the registration that a broker knows, which it sends with a view.

    Only the agent and its broker can compute it, and it changes with the broker's secret. An agent
    that receives a different tag registers again. ``key`` is the agent's.
    """
    message = b"registration:" + canonical(encode(registration))
    return hmac.new(key, message, hashlib.sha256).hexdigest()[:32]


def split_address(text: str) -> tuple[str, int]:
    """Return host and port of ``host:port`` or ``[v6]:port``.

    Raises:
        ManifestError: the text has a different form.
    """
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    digits = port.isascii() and port.isdigit() and len(port) <= 5
    if not host or any(c in host for c in "/@ \t\r\n") or not digits or not 0 < int(port) < 65536:
        raise ManifestError(path="", reason=f"{text!r} is not host:port")
    return host, int(port)


def is_hint_target(host: str) -> bool:
    """Return whether hints may be sent to a host: only to the IP address of one machine.

    Broadcast, multicast, link-local and unspecified addresses are rejected, as are names, which
    may later resolve to other addresses.
    """
    try:
        return not _find_address_problem(ipaddress.ip_address(host))
    except ValueError:
        return False


def is_same_host(host: str, caller: str) -> bool:
    """Return whether an IP address is the caller's own."""
    try:
        return _unmap_address(ipaddress.ip_address(host)) == _unmap_address(
            ipaddress.ip_address(caller)
        )
    except ValueError:
        return False


def hint_proof(secret: bytes, pe: PeKey, registration: Registration, hour: int) -> str:
    """Return the proof that an agent has received a challenge at its hint address.

    ``secret`` is the broker's. ``hour`` is when the challenge was sent, in hours since 1970.
    """
    message = canonical([str(pe), registration.instance, registration.hint or "", hour])
    return hmac.new(secret, b"hint proof:" + message, hashlib.sha256).hexdigest()[:32]


_Ip: TypeAlias = "ipaddress.IPv4Address | ipaddress.IPv6Address"


def _unmap_address(address: _Ip) -> _Ip:
    return getattr(address, "ipv4_mapped", None) or address


def _find_address_problem(address: _Ip) -> str:
    address = _unmap_address(address)
    if address.is_multicast:
        return "a multicast address"
    if address.is_link_local:
        return "a link-local address"
    if address.is_unspecified:
        return "not an address of one machine"
    if str(address) == "255.255.255.255":
        return "the broadcast address"
    return ""


def _check_target(fields: Fields, hint: str) -> None:
    host, _ = split_address(hint)
    try:
        problem = _find_address_problem(ipaddress.ip_address(host.partition("%")[0]))
    except ValueError:
        return
    if problem:
        raise fields.error_at(
            "hint", f"is {hint!r}, {problem}; give the agent's own address, or null"
        )


def _check_address(fields: Fields, key: str, text: str) -> None:
    try:
        split_address(text)
    except ManifestError as error:
        raise fields.error_at(key, f"is wrong: {error.reason}") from error
