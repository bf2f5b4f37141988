"""Certificate of the REST server, reloaded when its files change."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

from streambroker_operator.errors import OpenError
from streambroker_operator.security.token_file import file_signature

CHECK_INTERVAL_S = 10.0
"""Interval of checks, in seconds; a mounted Secret changes within about a minute."""

_log = logging.getLogger("streambroker.tls")


class Certificate:
    """Certificate chain with its key, and the TLS context that uses it.

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
            _log.info("reloaded the certificate")
        except (OSError, ssl.SSLError) as error:
            _log.warning("cannot reload the certificate, keeping the previous one: %s", error)
