"""What to do if a connection to the broker fails because of TLS."""

from __future__ import annotations

import http.client
import ssl

_HOSTNAME_MISMATCH = (62, 64)
"""OpenSSL verify codes for a valid certificate with another name or address."""


def tls_remedy(reason: object, url: str, setting: str) -> str:
    """Return the remedy if TLS may have caused a connection failure, else an empty text.

    ``setting`` names how the trusted certificates are set.
    """
    scheme, _, rest = url.partition("://")
    if isinstance(reason, ssl.SSLCertVerificationError):
        if reason.verify_code in _HOSTNAME_MISMATCH:
            return "Its certificate is for another name: use one of the names in it."
        return (
            f"Its certificate is not signed by a trusted CA: give the CA's file with {setting} or"
            " STREAMBROKER_CA."
        )
    if isinstance(reason, ssl.SSLError):
        return f"If it does not use TLS, use http://{rest}."
    # A TLS port closes an HTTP connection, without a response or after a TLS alert.
    if scheme == "http" and isinstance(reason, ConnectionResetError | http.client.BadStatusLine):
        return f"If it uses TLS, use https://{rest}."
    return ""
