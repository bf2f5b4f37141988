"""The certificate that REST shows, taken in anew when its file changes."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

from streambroker_operator.errors import OpenError

CHECK_INTERVAL_S = 10.0
"""How often the files are looked at, in seconds; a mounted Secret changes within a minute or so."""

_log = logging.getLogger("streambroker.tls")


class Certificate:
    """A certificate chain with its key, and the TLS context that shows it.

    Args:
        cert: file of the chain, PEM.
        key: file of the private key, PEM.

    Raises:
        OpenError: they cannot be used.
    """

    def __init__(self, cert: Path, key: Path) -> None:
        self._cert, self._key = cert, key
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._signature = self._file_signature()
        try:
            self.context.load_cert_chain(cert, key)
        except (OSError, ssl.SSLError) as error:
            raise OpenError(
                f"{cert} and {key} are no certificate with its key: {error}. Give both as PEM with"
                " --tls-cert and --tls-key."
            ) from error

    async def follow(self) -> None:
        """Take in what the files become, until cancelled; connections that are there stay."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            self.reload_if_changed()

    def reload_if_changed(self) -> None:
        """Take the files in if they have changed; what cannot be used changes nothing."""
        state = self._file_signature()
        if state == self._signature:
            return
        self._signature = state
        try:
            # First into one that nobody uses: half a pair would spoil the one that is used.
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
                self._cert, self._key
            )
            self.context.load_cert_chain(self._cert, self._key)
            _log.info("the certificate was taken in anew")
        except (OSError, ssl.SSLError) as error:
            _log.warning("the certificate before stays: %s", error)

    def _file_signature(self) -> tuple[int, ...]:
        try:
            found = (self._cert.stat(), self._key.stat())
        except OSError:
            return ()
        return tuple(n for stat in found for n in (stat.st_ino, stat.st_mtime_ns, stat.st_size))
