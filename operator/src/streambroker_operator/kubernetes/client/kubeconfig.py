"""Address of the API server and credentials, from the pod or a kubeconfig."""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from streambroker_core.model import is_label
from streambroker_operator.errors import ClusterError
from streambroker_operator.kubernetes.client.exec_login import ExecLogin, ExecSettings, read_exec

SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Directory of a pod's own credentials."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Address of an API server and credentials for it.

    Attributes:
        server: URL without a trailing slash.
        token: bearer token, unless there is a file.
        token_file: file of the token; reread when it changes.
        ca: trusted certificates as PEM, unless there is a file.
        ca_file: file of these; reread when it changes.
        certificate: client certificate as PEM.
        key: its private key as PEM.
        login: settings of the program that prints tokens, from `read_exec`; None for no program.
    """

    server: str
    namespace: str = "default"
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    ca: str | None = None
    ca_file: str | None = None
    certificate: str | None = None
    key: str | None = field(default=None, repr=False)
    verify: bool = True
    login: ExecSettings | None = field(default=None, repr=False)


def find_access(environ: Mapping[str, str] = os.environ) -> Access:
    """Return the access to the API server that this process should use.

    The first available of: the file named by ``KUBECONFIG``, the current pod, ``~/.kube/config``.

    Raises:
        ClusterError: there is none, or its configuration is invalid.
    """
    path = environ.get("KUBECONFIG")
    if path:
        return from_kubeconfig(Path(path))
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return in_pod(environ)
    default_path = Path.home() / ".kube" / "config"
    if default_path.exists():
        return from_kubeconfig(default_path)
    raise ClusterError(
        "No Kubernetes API server is configured: this is not a pod, KUBECONFIG is not set and"
        " ~/.kube/config does not exist."
    )


def in_pod(environ: Mapping[str, str], directory: Path = SERVICE_ACCOUNT_DIR) -> Access:
    """Return the access to the cluster that this pod runs in.

    Raises:
        ClusterError: the pod has no credentials.
    """
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
    for name in ("token", "ca.crt"):
        if not (directory / name).exists():
            raise ClusterError(
                f"{directory / name} does not exist: the pod has no service account token mounted"
                " (automountServiceAccountToken)."
            )
    namespace = directory / "namespace"
    return Access(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        namespace=namespace.read_text().strip() if namespace.exists() else "default",
        token_file=str(directory / "token"),
        ca_file=str(directory / "ca.crt"),
    )


def from_kubeconfig(path: Path) -> Access:
    """Return the access of the current context of a kubeconfig.

    Raises:
        ClusterError: the file is invalid, or its login method is not supported.
    """
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ClusterError(f"{path} cannot be read as a kubeconfig: {error}") from error
    if not isinstance(document, dict):
        raise ClusterError(f"{path} is not a kubeconfig.")
    current = document.get("current-context")
    selected = _find_entry(path, document, "contexts", "context", current)
    cluster = _find_entry(path, document, "clusters", "cluster", selected.get("cluster"))
    user = _find_entry(path, document, "users", "user", selected.get("user"))
    for method in ("auth-provider", "username"):
        if method in user:
            raise ClusterError(
                f"{path} authenticates user {selected['user']!r} by {method!r}, which is not"
                " supported; give a token, a client certificate or `exec`."
            )
    ca_file, token_file = cluster.get("certificate-authority"), user.get("tokenFile")
    token = user.get("token")
    return Access(
        server=str(cluster.get("server", "")).rstrip("/"),
        namespace=str(selected.get("namespace") or "default"),
        token=None if token is None else str(token),
        token_file=None if token_file is None else str(path.parent / token_file),
        ca=_decode_inline(path, cluster, "certificate-authority-data"),
        ca_file=None if ca_file is None else str(path.parent / ca_file),
        certificate=_read_pem(path, user, "client-certificate"),
        key=_read_pem(path, user, "client-key"),
        verify=not cluster.get("insecure-skip-tls-verify", False),
        login=read_exec(path, user, cluster),
    )


def _find_entry(
    path: Path, document: dict[str, Any], list_key: str, entry_key: str, name: object
) -> dict[str, Any]:
    for item in document.get(list_key) or ():
        entry = item.get(entry_key)
        if item.get("name") == name and isinstance(entry, dict):
            return entry
    raise ClusterError(f"{path} has no {entry_key} named {name!r}.")


def _decode_inline(path: Path, entry: dict[str, Any], field: str) -> str | None:
    if field not in entry:
        return None
    try:
        return base64.b64decode(str(entry[field]), validate=True).decode()
    except (binascii.Error, ValueError) as error:
        raise ClusterError(f"{path}: {field} is not PEM in base64.") from error


def _read_pem(path: Path, entry: dict[str, Any], field: str) -> str | None:
    inline = _decode_inline(path, entry, f"{field}-data")
    if inline is not None or field not in entry:
        return inline
    file = path.parent / str(entry[field])
    try:
        return file.read_text()
    except OSError as error:
        raise ClusterError(f"{path}: {field} {file} cannot be read: {error}") from error


def parse_namespaces(words: str, own_namespace: str) -> tuple[str, ...]:
    """Return the namespaces of a setting; empty means all.

    The setting is ``*`` for all or comma-separated names, where ``own`` is `own_namespace`.

    Raises:
        ClusterError: a name is invalid.
    """
    names = [word.strip() for word in words.split(",")]
    if names == ["*"]:
        return ()
    for name in names:
        if not is_label(name):
            raise ClusterError(
                f"{words!r} does not list namespaces: {name!r} is not one. Write own, * for all,"
                " or names with commas between them."
            )
    return tuple(dict.fromkeys(own_namespace if name == "own" else name for name in names))


class Credentials:
    """Current token and TLS context; files are reread when they change."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._token: tuple[int, str] | None = None
        self._tls: tuple[int, ssl.SSLContext] | None = None
        self._login = None if access.login is None else ExecLogin(access.login)

    @property
    def is_slow(self) -> bool:
        """Whether `token` may take seconds, because it runs a program."""
        return self._login is not None and not self._login.is_fresh

    def on_unauthorised(self) -> None:
        """Handle a 401 of the API server."""
        if self._login is not None:
            self._login.on_unauthorised()

    def token(self) -> str | None:
        """Return the bearer token, or None if there is none.

        Raises:
            OSError: the file cannot be read, or the program prints no token.
        """
        if self._login is not None:
            return self._login.token()
        if self._access.token_file is None:
            return self._access.token
        file = Path(self._access.token_file)
        mtime = file.stat().st_mtime_ns
        if self._token is None or self._token[0] != mtime:
            self._token = (mtime, file.read_text().strip())
        return self._token[1]

    def tls(self) -> ssl.SSLContext:
        """Return the TLS context for the next connection.

        Raises:
            OSError: the certificates cannot be read.
            ssl.SSLError: the certificates are invalid.
        """
        file = self._access.ca_file
        mtime = 0 if file is None else Path(file).stat().st_mtime_ns
        if self._tls is None or self._tls[0] != mtime:
            self._tls = (mtime, self._create_context())
        return self._tls[1]

    def _create_context(self) -> ssl.SSLContext:
        access = self._access
        context = ssl.create_default_context(cafile=access.ca_file, cadata=access.ca)
        if not access.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if access.certificate is not None and access.key is not None:
            # The ssl module reads a client certificate only from a file.
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
                file.write(f"{access.certificate}\n{access.key}\n")
                file.flush()
                context.load_cert_chain(file.name)
        return context
