"""Where the API server is and how to be let in: in a pod, or by a kubeconfig."""

from __future__ import annotations

import base64
import binascii
import json
import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from streambroker_core.model import is_label
from streambroker_operator.errors import ClusterError
from streambroker_operator.kubernetes.client.exec_login import ExecLogin, read_exec

SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where Kubernetes puts a pod's own credentials."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """An API server and the credentials for it.

    Attributes:
        server: its URL, without a slash at the end.
        namespace: the one that is meant when none is named.
        token: sent with each request, unless there is a file.
        token_file: where the token is; read again when the file changes.
        ca: certificates to trust, as PEM, unless there is a file.
        ca_file: where they are; read again when the file changes.
        certificate: of this client, as PEM.
        key: the certificate's private key, as PEM.
        verify: whether the server has to prove who it is.
        login: the program that prints tokens, as of `read_exec`; None for no program.
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
    login: dict[str, Any] | None = field(default=None, repr=False)

    def encode(self) -> str:
        """Return this as one line of text, secrets included: for a pipe to an own process."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> Access:
        """Read the line back."""
        return cls(**json.loads(text))


def find_access(environ: Mapping[str, str] = os.environ) -> Access:
    """Return the API server that this process is meant to use.

    The first that is there: the file named by ``KUBECONFIG``, the pod this runs in,
    ``~/.kube/config``.

    Raises:
        ClusterError: there is none, or its description cannot be used.
    """
    named = environ.get("KUBECONFIG")
    if named:
        return from_kubeconfig(Path(named))
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return in_pod(environ)
    usual = Path.home() / ".kube" / "config"
    if usual.exists():
        return from_kubeconfig(usual)
    raise ClusterError(
        "No Kubernetes API server is known here: this is no pod, KUBECONFIG is not set "
        "and ~/.kube/config is not there."
    )


def in_pod(environ: Mapping[str, str], directory: Path = SERVICE_ACCOUNT_DIR) -> Access:
    """Return the API server of the cluster that this pod runs in.

    Raises:
        ClusterError: the pod was given no credentials.
    """
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
    for name in ("token", "ca.crt"):
        if not (directory / name).exists():
            raise ClusterError(
                f"{directory / name} is not there: the pod has no service account token mounted "
                "(automountServiceAccountToken)."
            )
    namespace = directory / "namespace"
    return Access(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        namespace=namespace.read_text().strip() if namespace.exists() else "default",
        token_file=str(directory / "token"),
        ca_file=str(directory / "ca.crt"),
    )


def from_kubeconfig(path: Path, context: str | None = None) -> Access:
    """Return the API server of a context of a kubeconfig.

    Args:
        path: the file.
        context: its name; by default the current one.

    Raises:
        ClusterError: the file cannot be read, or asks for a way in that is not supported.
    """
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ClusterError(f"{path} cannot be read as a kubeconfig: {error}") from error
    if not isinstance(document, dict):
        raise ClusterError(f"{path} is no kubeconfig.")
    name = context or document.get("current-context")
    chosen = _find_entry(path, document, "contexts", "context", name)
    cluster = _find_entry(path, document, "clusters", "cluster", chosen.get("cluster"))
    user = _find_entry(path, document, "users", "user", chosen.get("user"))
    for way in ("auth-provider", "username"):
        if way in user:
            raise ClusterError(
                f"{path} lets user {chosen['user']!r} in by {way!r}, which is not supported; "
                "give a token, a client certificate or `exec`."
            )
    ca_file, token_file = cluster.get("certificate-authority"), user.get("tokenFile")
    token = user.get("token")
    return Access(
        server=str(cluster.get("server", "")).rstrip("/"),
        namespace=str(chosen.get("namespace") or "default"),
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
    for entry in document.get(list_key) or ():
        if entry.get("name") == name and isinstance(entry.get(entry_key), dict):
            found: dict[str, Any] = entry[entry_key]
            return found
    raise ClusterError(f"{path} has no {entry_key} named {name!r}.")


def _decode_inline(path: Path, entry: dict[str, Any], field: str) -> str | None:
    if field not in entry:
        return None
    try:
        return base64.b64decode(str(entry[field]), validate=True).decode()
    except (binascii.Error, ValueError) as error:
        raise ClusterError(f"{path}: {field} is not base64 of a PEM text.") from error


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
    """Return the namespaces that a setting names; none stands for all.

    Args:
        words: ``own_namespace``, ``*``, or names with commas between them.
        own_namespace: the namespace that is meant by ``own_namespace``.

    Raises:
        ClusterError: a word is no namespace's name.
    """
    names = [word.strip() for word in words.split(",")]
    if names == ["*"]:
        return ()
    for name in names:
        if not is_label(name):
            raise ClusterError(
                f"{words!r} names no namespaces: {name!r} is none. "
                "Say own, * for all, or names with commas between them."
            )
    return tuple(dict.fromkeys(own_namespace if name == "own" else name for name in names))


class Credentials:
    """Token and TLS context as they are now: files are read again when they change.

    Args:
        access: where to find them.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self._token: tuple[int, str] | None = None
        self._tls: tuple[int, ssl.SSLContext] | None = None
        self._login = None if access.login is None else ExecLogin(access.login)

    @property
    def is_slow(self) -> bool:
        """Whether `token` may take seconds now, because a program is run for it."""
        return self._login is not None and not self._login.is_fresh

    def on_unauthorised(self) -> None:
        """Note that the API server has answered 401."""
        if self._login is not None:
            self._login.on_unauthorised()

    def token(self) -> str | None:
        """Return the bearer token, or None if there is none.

        Raises:
            OSError: its file cannot be read, or no program gives it.
        """
        if self._login is not None:
            return self._login.token()
        if self._access.token_file is None:
            return self._access.token
        file = Path(self._access.token_file)
        changed = file.stat().st_mtime_ns
        if self._token is None or self._token[0] != changed:
            self._token = (changed, file.read_text().strip())
        return self._token[1]

    def tls(self) -> ssl.SSLContext:
        """Return the TLS context for the next connection.

        Raises:
            OSError: the certificates cannot be read.
            ssl.SSLError: they are none.
        """
        file = self._access.ca_file
        changed = 0 if file is None else Path(file).stat().st_mtime_ns
        if self._tls is None or self._tls[0] != changed:
            self._tls = (changed, self._create_context())
        return self._tls[1]

    def _create_context(self) -> ssl.SSLContext:
        access = self._access
        context = ssl.create_default_context(cafile=access.ca_file, cadata=access.ca)
        if not access.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if access.certificate is not None and access.key is not None:
            # The ssl module takes a client's certificate from a file only.
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
                file.write(f"{access.certificate}\n{access.key}\n")
                file.flush()
                context.load_cert_chain(file.name)
        return context
