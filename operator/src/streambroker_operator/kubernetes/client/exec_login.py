"""Tokens for kubeconfig users with `exec`: a program prints them, as on EKS, GKE and AKS.

The protocol is `client.authentication.k8s.io`. The program gets an ExecCredential in its
environment and prints one with a token. The token is valid until its expiration or a 401 of the
API server.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from streambroker_operator.errors import ClusterError

VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
TIMEOUT_S = 60.0
REFRESH_BEFORE_S = 60.0
"""Seconds before its expiration at which a token is replaced."""
_MAX_STDERR_CHARS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecSettings:
    """Program that prints tokens.

    Attributes:
        info: the ExecCredential that the program gets, as JSON.
        hint: how to install the program; may be empty.
    """

    command: tuple[str, ...]
    env: Mapping[str, str]
    info: str
    hint: str


def read_exec(path: Path, user: Mapping[str, Any], cluster: object) -> ExecSettings | None:
    """Return the settings for `ExecLogin` from a kubeconfig's user; None without `exec`.

    They include the cluster's entry if the program requests it.

    Raises:
        ClusterError: the entry is invalid.
    """
    entry = user.get("exec")
    if entry is None:
        return None
    command = str(entry.get("command") or "")
    version = entry.get("apiVersion")
    if not command or version not in VERSIONS:
        raise ClusterError(
            f"{path}: `exec` needs a command and an apiVersion of {' or '.join(VERSIONS)}, and has"
            f" {command!r} and {version!r}."
        )
    if entry.get("interactiveMode") == "Always":
        raise ClusterError(
            f"{path}: {command} asks its user for input, and a broker cannot answer."
        )
    if os.sep in command and not Path(command).is_absolute():
        command = str(path.parent / command)
    info = {"cluster": cluster} if entry.get("provideClusterInfo") else {}
    spec = {"interactive": False, **info}
    return ExecSettings(
        command=(command, *(str(arg) for arg in entry.get("args") or ())),
        env={str(variable["name"]): str(variable["value"]) for variable in entry.get("env") or ()},
        info=json.dumps({"apiVersion": version, "kind": "ExecCredential", "spec": spec}),
        hint=str(entry.get("installHint") or ""),
    )


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    expires_at: float | None


class ExecLogin:
    """Runs a program for a token, and again when the token expires; thread-safe."""

    def __init__(self, settings: ExecSettings, *, clock: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._token: _Token | None = None

    @property
    def is_fresh(self) -> bool:
        """Whether `token` returns without running the program."""
        token = self._token
        return token is not None and (
            token.expires_at is None or self._clock() < token.expires_at - REFRESH_BEFORE_S
        )

    def token(self) -> str:
        """Return a token.

        Raises:
            OSError: the program cannot be run, fails, or prints no token.
        """
        with self._lock:
            if not self.is_fresh or self._token is None:
                self._token = self._parse_token(self._run())
            return self._token.text

    def on_unauthorised(self) -> None:
        """Drop the token after a 401 of the API server."""
        self._token = None

    def _run(self) -> str:
        settings = self._settings
        environ = {**os.environ, **settings.env, "KUBERNETES_EXEC_INFO": settings.info}
        try:
            result = subprocess.run(  # noqa: S603 - the kubeconfig of who runs this names it
                settings.command,
                env=environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise self._error(str(error)) from error
        if result.returncode:
            raise self._error(
                f"exit status {result.returncode}: {result.stderr.strip()[-_MAX_STDERR_CHARS:]}"
            )
        return result.stdout

    def _parse_token(self, text: str) -> _Token:
        try:
            status = json.loads(text)["status"]
            token, expiration = status["token"], status.get("expirationTimestamp")
            expires_at = (
                None
                if expiration is None
                else datetime.fromisoformat(expiration.replace("Z", "+00:00")).timestamp()
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            # The output is not logged: it may contain a secret.
            raise self._error("it printed no ExecCredential with a token") from error
        return _Token(str(token), expires_at)

    def _error(self, reason: str) -> OSError:
        command, hint = self._settings.command[0], self._settings.hint
        return OSError(
            f"{command} returned no token for the cluster: {reason}.{f' {hint}' if hint else ''}"
        )
