"""A certificate authority for local use, and the certificates that it issues; openssl makes them.

The authority, the agents' pair and the callers' pair are made once and kept. The broker's pair is
issued at each start, so it never ends and has the names that the machine has now.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streambroker_operator.errors import OpenError

DAYS = 3_650
TIMEOUT_S = 60.0

CA = "ca.crt"
AGENT_NAME = "streambroker-agent"
"""The DNS name that callers of agents look for in a certificate."""

_CA_KEY = "ca.key"
_ISSUED_ONCE = {
    "agent": ("serverAuth,clientAuth", [f"DNS:{AGENT_NAME}"]),
    "client": ("clientAuth", list[str]()),
}
"""What is issued once: by name, the usage and the names of the certificate."""
_EXTENSIONS = """
basicConstraints = critical,CA:false
keyUsage = critical,digitalSignature
extendedKeyUsage = {usage}
{names}
"""
_REQUEST = """
[req]
prompt = no
distinguished_name = name
[name]
CN = {name}
[authority]
basicConstraints = critical,CA:true
keyUsage = critical,keyCertSign,cRLSign
subjectKeyIdentifier = hash
"""


def write_certificates(folder: Path, host: str) -> tuple[Path, Path]:
    """Write what is missing, and the broker's pair in any case; return the broker's pair.

    Args:
        folder: has ``ca.crt`` and ``ca.key``, and pairs of ``.crt`` and ``.key``: ``broker``;
            ``agent``, which agents show; ``client``, which calls agents and cannot be one.
            Without ``ca.key`` nothing is issued, and what is there is used.
        host: where the broker listens.

    Raises:
        OpenError: openssl is missing or fails, or the folder cannot be written to.
    """
    with _wrap_errors(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = not (folder / CA).exists()
        if fresh:
            _write_authority(folder, "streambroker local CA", DAYS)
        if (folder / _CA_KEY).exists():
            _issue(folder, "broker", "serverAuth", _names(host), DAYS)
            for name, (usage, names) in _ISSUED_ONCE.items():
                if fresh or not all(path.exists() for path in _pair(folder, name)):
                    _issue(folder, name, usage, names, DAYS)
    return _pair(folder, "broker")


@contextmanager
def _wrap_errors(folder: Path) -> Iterator[None]:
    """Say of what fails that no certificates can be written."""
    try:
        yield
    except OSError as error:
        missing = isinstance(error, FileNotFoundError) and error.filename == "openssl"
        reason = "the program openssl is missing" if missing else str(error)
        raise _write_error(folder, reason) from error
    except subprocess.SubprocessError as error:
        reason = str(getattr(error, "stderr", None) or error).strip()
        raise _write_error(folder, f"openssl failed: {reason}") from error


def issue_pair(folder: Path, names: list[str], days: int) -> None:
    """Write a pair ``server`` and the authority that has issued it, which issues no other.

    Args:
        folder: an empty one; has ``ca.crt``, ``server.crt`` and ``server.key`` afterwards.
        names: of the server, as openssl writes them: ``DNS:name`` or ``IP:address``.
        days: for how long both certificates hold.

    Raises:
        OpenError: openssl is missing or fails.
    """
    with _wrap_errors(folder):
        # Certificates of several authorities may be trusted together: each has a name of its own.
        _write_authority(folder, f"streambroker CA {os.urandom(8).hex()}", days)
        _issue(folder, "server", "serverAuth", names, days)
        (folder / _CA_KEY).unlink()


def is_valid_for(folder: Path, name: str, at: float) -> bool:
    """Say whether the pair ``server`` of a folder is good for a name at a time.

    Args:
        folder: has ``ca.crt`` and ``server.crt``.
        name: of the server, as openssl writes it.
        at: seconds since 1970.
    """
    kind, _, value = name.partition(":")
    option = "-verify_ip" if kind == "IP" else "-verify_hostname"
    trusted = ["-no-CApath", "-no-CAstore", "-CAfile", str(folder / CA)]
    wanted = [option, value, "-attime", str(int(at))]
    try:
        _openssl("verify", *trusted, *wanted, str(folder / "server.crt"))
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def _write_error(folder: Path, reason: str) -> OpenError:
    return OpenError(
        f"No certificates can be written to {folder}: {reason}. Install openssl, or give a"
        " certificate and its key with --tls-cert and --tls-key."
    )


def _pair(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / f"{name}.crt", folder / f"{name}.key"


def _write_authority(folder: Path, name: str, days: int) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as place:
        made = Path(place)
        key, request = _key(made), _request(made, name)
        arguments = ["-x509", "-key", str(key), "-extensions", "authority", "-days", str(days)]
        certificate = made / "crt"
        _openssl("req", "-new", "-config", str(request), *arguments, "-out", str(certificate))
        key.replace(folder / _CA_KEY)
        certificate.replace(folder / CA)


def _issue(folder: Path, name: str, usage: str, names: list[str], days: int) -> None:
    """Put a certificate of the authority with a new key in the place of the one before."""
    chain, secret = _pair(folder, name)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        made = Path(place)
        key, config = _key(made), _request(made, f"streambroker {name}")
        wanted, extensions, certificate = made / "csr", made / "extensions", made / "crt"
        alternatives = f"subjectAltName = {','.join(names)}" if names else ""
        extensions.write_text(_EXTENSIONS.format(usage=usage, names=alternatives))
        _openssl("req", "-new", "-config", str(config), "-key", str(key), "-out", str(wanted))
        serial = f"0x{int.from_bytes(os.urandom(15), 'big'):x}"
        authority = ["-CA", str(folder / CA), "-CAkey", str(folder / _CA_KEY)]
        arguments = ["-set_serial", serial, "-days", str(days), "-extfile", str(extensions)]
        files = ["-in", str(wanted), "-out", str(certificate)]
        _openssl("x509", "-req", "-sha256", *authority, *arguments, *files)
        key.replace(secret)
        certificate.replace(chain)


def _key(folder: Path) -> Path:
    key = folder / "key"
    key.touch(mode=0o600)
    _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(key))
    return key


def _request(folder: Path, name: str) -> Path:
    config = folder / "config"
    config.write_text(_REQUEST.format(name=name))
    return config


def _openssl(*arguments: str) -> None:
    command = ["openssl", *arguments]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT_S)  # noqa: S603 - no shell


def _names(host: str) -> list[str]:
    """Return the names and addresses by which the broker may be called, as openssl writes them."""
    own = {"localhost", "127.0.0.1", "::1", host, socket.gethostname()}
    try:
        found = socket.getaddrinfo(socket.gethostname(), None)
        own |= {str(where[0]) for *_, where in found}
    except OSError:
        pass  # the name of this machine has no address
    own |= {address for family in _OUTWARD if (address := _outward_address(*family))}
    return sorted(subject_alt_name(name) for name in own if "%" not in name)


_OUTWARD = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))


def _outward_address(family: socket.AddressFamily, example: str) -> str:
    """Return the address that this machine shows to others; nothing is sent to find out."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((example, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def subject_alt_name(name: str) -> str:
    """Return a name or an address of a server as openssl writes it."""
    return f"{_kind(name)}:{name}"


def _kind(name: str) -> str:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return "DNS"
    return "IP"
