"""Local certificate authority and the certificates it issues, made with openssl.

The authority, the agents' pair and the callers' pair are made once and kept. The broker's pair is
issued at each start, so it does not expire and has the current names of the machine.
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
"""DNS name that callers of agents expect in a certificate."""

_CA_KEY = "ca.key"
_ISSUED_ONCE = {
    "agent": ("serverAuth,clientAuth", [f"DNS:{AGENT_NAME}"]),
    "client": ("clientAuth", list[str]()),
}
"""Pairs issued once: key usage and names of the certificate, by pair name."""
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
    """Write missing certificates, and always the broker's pair; return the broker's pair.

    Args:
        folder: has ``ca.crt`` and ``ca.key``, and pairs of ``.crt`` and ``.key``: ``broker``;
            ``agent``, which agents present; ``client``, for callers of agents, not valid as an
            agent. Without ``ca.key`` the existing files are used and nothing is issued.
        host: address the broker listens on.

    Raises:
        OpenError: openssl is missing or fails, or the folder is not writable.
    """
    with _wrap_errors(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_new = not (folder / CA).exists()
        if is_new:
            _write_authority(folder, "streambroker local CA", DAYS)
        if (folder / _CA_KEY).exists():
            _issue(folder, "broker", "serverAuth", _names(host), DAYS)
            for name, (usage, names) in _ISSUED_ONCE.items():
                if is_new or not all(path.exists() for path in _pair(folder, name)):
                    _issue(folder, name, usage, names, DAYS)
    return _pair(folder, "broker")


@contextmanager
def _wrap_errors(folder: Path) -> Iterator[None]:
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
    """Write a pair ``server`` and the authority that issued it to an empty folder.

    The authority's key is deleted. Names are as in openssl: ``DNS:name`` or ``IP:address``.

    Raises:
        OpenError: openssl is missing or fails.
    """
    with _wrap_errors(folder):
        # Several authorities may be trusted together, so each has a unique name.
        _write_authority(folder, f"streambroker CA {os.urandom(8).hex()}", days)
        _issue(folder, "server", "serverAuth", names, days)
        (folder / _CA_KEY).unlink()


def is_valid_for(folder: Path, name: str, at: float) -> bool:
    """Return whether the pair ``server`` of a folder is valid for a name at a Unix time."""
    kind, _, value = name.partition(":")
    option = "-verify_ip" if kind == "IP" else "-verify_hostname"
    trusted = ["-no-CApath", "-no-CAstore", "-CAfile", str(folder / CA)]
    checks = [option, value, "-attime", str(int(at))]
    try:
        _openssl("verify", *trusted, *checks, str(folder / "server.crt"))
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
    with tempfile.TemporaryDirectory(dir=folder) as directory:
        temporary = Path(directory)
        key, request = _key(temporary), _request(temporary, name)
        arguments = ["-x509", "-key", str(key), "-extensions", "authority", "-days", str(days)]
        certificate = temporary / "crt"
        _openssl("req", "-new", "-config", str(request), *arguments, "-out", str(certificate))
        key.replace(folder / _CA_KEY)
        certificate.replace(folder / CA)


def _issue(folder: Path, name: str, usage: str, names: list[str], days: int) -> None:
    chain, secret = _pair(folder, name)
    with tempfile.TemporaryDirectory(dir=folder) as directory:
        temporary = Path(directory)
        key, config = _key(temporary), _request(temporary, f"streambroker {name}")
        request, extensions, certificate = (
            temporary / "csr",
            temporary / "extensions",
            temporary / "crt",
        )
        alternatives = f"subjectAltName = {','.join(names)}" if names else ""
        extensions.write_text(_EXTENSIONS.format(usage=usage, names=alternatives))
        _openssl("req", "-new", "-config", str(config), "-key", str(key), "-out", str(request))
        serial = f"0x{int.from_bytes(os.urandom(15), 'big'):x}"
        authority = ["-CA", str(folder / CA), "-CAkey", str(folder / _CA_KEY)]
        arguments = ["-set_serial", serial, "-days", str(days), "-extfile", str(extensions)]
        files = ["-in", str(request), "-out", str(certificate)]
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
    """Return the names and addresses of the broker's machine, as openssl writes them."""
    own = {"localhost", "127.0.0.1", "::1", host, socket.gethostname()}
    try:
        infos = socket.getaddrinfo(socket.gethostname(), None)
        own |= {str(address_info[0]) for *_, address_info in infos}
    except OSError:
        pass  # the name of this machine has no address
    own |= {address for family in _OUTWARD if (address := _outward_address(*family))}
    return sorted(subject_alt_name(name) for name in own if "%" not in name)


_OUTWARD = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))


def _outward_address(family: socket.AddressFamily, example: str) -> str:
    """Return the outgoing address of this machine; no packet is sent. Empty if there is none."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((example, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def subject_alt_name(name: str) -> str:
    """Return a server's name or address as openssl writes it."""
    return f"{_kind(name)}:{name}"


def _kind(name: str) -> str:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return "DNS"
    return "IP"
