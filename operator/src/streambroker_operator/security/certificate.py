"""Certificate of the REST server, reloaded when its files change."""

from __future__ import annotations

import asyncio
import logging
import ssl
from datetime import UTC, datetime
from pathlib import Path

from streambroker_operator.errors import OpenError
from streambroker_operator.security.token_file import file_signature

CHECK_INTERVAL_S = 10.0
"""Interval of checks, in seconds; a mounted Secret changes within about a minute."""

_log = logging.getLogger("streambroker.tls")


_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_VALIDITY_FIELD = 4
"""Fields of a certificate before its validity: version, serial, algorithm, issuer."""


class Certificate:
    """Certificate chain with its key, and the TLS context that uses it.

    Attributes:
        context: TLS context that uses the files.
        valid_until: when the certificate ends, in Unix seconds.

    Raises:
        OpenError: the files cannot be used.
    """

    def __init__(self, cert: Path, key: Path) -> None:
        self._cert, self._key = cert, key
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._signature = file_signature(cert, key)
        try:
            self.context.load_cert_chain(cert, key)
            self.valid_until = read_end(cert.read_text())
        except (OSError, ssl.SSLError) as error:
            raise OpenError(
                f"{cert} and {key} are not a certificate with its key: {error}. Give both as PEM"
                " with --tls-cert and --tls-key."
            ) from error

    async def follow(self) -> None:
        """Reload changed files until cancelled; existing connections stay."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            self.reload_if_changed()

    def reload_if_changed(self) -> None:
        """Reload the files if they changed; keep the current certificate if they are invalid."""
        current = file_signature(self._cert, self._key)
        if current == self._signature:
            return
        self._signature = current
        try:
            # Test with another context first: a mismatched pair would spoil the one in use.
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
                self._cert, self._key
            )
            self.context.load_cert_chain(self._cert, self._key)
            self.valid_until = read_end(self._cert.read_text())
            _log.info("reloaded the certificate")
        except (OSError, ssl.SSLError) as error:
            _log.warning("cannot reload the certificate, keeping the previous one: %s", error)


def read_end(pem: str) -> float:
    """Return when the first certificate of a PEM text ends, in Unix seconds.

    The ssl module returns it only of a certificate that it has verified, so not of an expired one.
    """
    der = ssl.PEM_cert_to_DER_cert(pem[pem.index(_BEGIN) : pem.index(_END) + len(_END)])
    at = _content(der, _content(der, 0)[0])[0]
    for _ in range(_VALIDITY_FIELD):
        at = _content(der, at)[1]
    start, end = _content(der, _content(der, _content(der, at)[0])[1])
    text = der[start:end].decode("ascii")
    century = "" if end - start > len("YYMMDDhhmmssZ") else "19" if text >= "5" else "20"
    return datetime.strptime(century + text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _content(der: bytes, at: int) -> tuple[int, int]:
    """Return where the content of the element at a position begins and ends."""
    size, start = der[at + 1], at + 2
    if size & 0x80:
        start += size & 0x7F
        size = int.from_bytes(der[at + 2 : start], "big")
    return start, start + size
