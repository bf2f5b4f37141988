"""Certificates of an authority that is nobody, made anew for each test."""

from __future__ import annotations

import hashlib
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from pe_agent.transport.agent_tls import AgentCertificate, AgentTrust
from streambroker_operator.broker import Broker

AGENT = "DNS:streambroker-agent"
"""What the certificate of an agent is for."""


class Authority:
    """A CA, and one certificate that comes from it, for 127.0.0.1 unless ``names`` differ."""

    def __init__(self, folder: Path, name: str, names: str = "IP:127.0.0.1") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        made = {part: folder / f"{name}-{part}" for part in ("ca.crt", "ca.key", "crt", "key")}
        self.ca, self.certificate, self.key = made["ca.crt"], made["crt"], made["key"]
        self._key, self._name = made["ca.key"], name
        _openssl(
            made["ca.crt"], made["ca.key"], f"/CN=ca {name}", "basicConstraints=critical,CA:true"
        )
        self.issue(names)

    def issue(self, names: str) -> None:
        """Put another certificate with another key in the place of the one before."""
        authority = ("-CA", str(self.ca), "-CAkey", str(self._key))
        _openssl(
            self.certificate, self.key, f"/CN={self._name}", f"subjectAltName={names}", *authority
        )

    def trust(self) -> AgentTrust:
        """Return what an agent with the certificate trusts, and shows."""
        return AgentTrust(
            self.ca, certificate=AgentCertificate(chain=self.certificate, key=self.key)
        )

    def fingerprint(self) -> str:
        der = ssl.PEM_cert_to_DER_cert(self.certificate.read_text())
        return hashlib.sha256(der).hexdigest()

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.certificate, self.key)
        return context


def _openssl(certificate: Path, key: Path, subject: str, extension: str, *more: str) -> None:
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", subject, "-addext", extension, *more]
    subprocess.run(
        [*command, "-out", str(certificate), "-keyout", str(key)],
        check=True,
        capture_output=True,
        timeout=30,
    )


@asynccontextmanager
async def also_by_tls(broker: Broker, shown: ssl.SSLContext) -> AsyncIterator[int]:
    """Let a broker answer at one more port, by TLS; yield the port."""
    site = web.TCPSite(broker._runner, "127.0.0.1", 0, ssl_context=shown)
    await site.start()
    try:
        assert site._server is not None
        yield int(broker._runner.addresses[-1][1])
    finally:
        await site.stop()
