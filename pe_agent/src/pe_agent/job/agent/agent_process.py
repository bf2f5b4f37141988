"""Start, adopt and keep alive the agent process of a PE, from the driver."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pe_agent.agent.process import AgentAddress, read_address
from pe_agent.agent.reports import log_file as own_log
from pe_agent.agent.state.recovery_progress import ProgressTimeout, describe_progress, read_progress
from pe_agent.job.agent.agent_log import AgentLogForwarder, is_forwarding
from pe_agent.transport import agent_tls, tokens
from pe_agent.transport.agent_client import FORMER_TOKEN_VARIABLE, AgentClient, send
from pe_agent.transport.agent_tls import AgentCertificate, AgentTrust
from pe_agent.transport.flight_errors import AgentUnreachableError
from pe_agent.transport.tokens import Token
from streambroker_core.errors import StreambrokerError
from streambroker_core.model import PeKey
from streambroker_core.wire.agent_rpc.job import DriverRenew, GetStatus, Stop
from streambroker_telemetry.logs import read_message

log = logging.getLogger("pe_agent")

TOKEN_FILE = "broker-token"  # noqa: S105 - the name of a file
"""File of the agent's token in its data directory. The agent reads it again when it changes, so a
driver that adopts the agent can replace the token."""
START_SECONDS = 60.0
ADOPT_SECONDS = 60.0
"""How long the agent in the data directory may take until it can be adopted. Both limits restart
whenever its recovery makes progress."""
PING_SECONDS = 0.5
STOP_SECONDS = 10.0
JOIN_SECONDS = 5.0


class AgentFailedError(StreambrokerError):
    """The agent process did not start; the message has the last line of its log."""

    code = "AgentFailed"


def default_home(pe: PeKey) -> Path:
    """Return ``$STREAMBROKER_HOME/<job>/<pe>``; below the user's home if that is not set."""
    base = os.environ.get("STREAMBROKER_HOME")
    root = Path(base) if base else Path.home() / ".streambroker"
    return root / pe.job / str(pe.pe)


class AgentProcess:
    """The agent of one PE: adopted if it runs, else started; restarted on the same port."""

    def __init__(
        self,
        pe: PeKey,
        home: Path,
        *,
        broker: str | None,
        linger: float,
        host: str,
        port: int,
        hint_port: int = 0,
        token: Token | None = None,
        broker_ca: Path | None = None,
        certificate: AgentCertificate | None = None,
        trust: AgentTrust | None = None,
        clients: str | None = None,
        insecure: bool | None = None,
        storage: str | None = None,
    ) -> None:
        self.pe, self.home, self.trust = pe, home, trust or AgentTrust()
        self._insecure = agent_tls.is_insecure(insecure)
        self._clients_required = agent_tls.are_clients_required(
            clients, host, insecure=self._insecure
        )
        self._options: dict[str, str | float | Path | None] = {
            "home": home,
            "job": pe.job,
            "pe": pe.pe,
            "namespace": pe.namespace,
            "host": host,
            "hint-port": hint_port,
            "linger": linger,
            "broker": broker or None,
            "broker-ca": broker_ca,
            "tls-cert": None if certificate is None else certificate.chain,
            "tls-key": None if certificate is None else certificate.key,
            "agent-ca": self.trust.path,
            "clients": clients or None,
            "storage": storage,
        }
        self._adopt_error = ""
        self._token = token or Token()
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self.beat_callbacks: list[Any] = []
        self._log_forwarder = (
            AgentLogForwarder(home, f"agent {pe.job}/{pe.pe}: ") if is_forwarding() else None
        )
        self.client = self._adopt_or_start(port)
        self._answers = True
        # Callbacks have a thread of their own: one that waits for a Spark Connect server that is
        # away must not delay the renewal of the driver's lease.
        self._threads = [
            threading.Thread(target=target, daemon=True, name=name)
            for target, name in ((self._keep_alive, "agent keeper"), (self._beat, "agent beats"))
        ]
        for thread in self._threads:
            thread.start()

    def _adopt_or_start(self, port: int) -> AgentClient:
        """Adopt the agent if it runs or is starting, else start one.

        A driver that was killed may have left an agent that is still recovering its log.

        Raises:
            AgentFailedError: see :meth:`_start`; or the directory is another PE's, or its agent
                does not require client certificates although it should.
        """
        patience = ProgressTimeout(self.home, ADOPT_SECONDS)
        while True:
            adopted = self._adopt()
            if adopted is not None:
                return adopted
            try:
                return self._start(port)
            except AgentFailedError as error:
                if "HomeInUse" not in str(error):
                    raise
                if not patience.should_wait():
                    raise AgentFailedError(f"{error} {self._adopt_error}".rstrip()) from None
            time.sleep(0.2)

    def _adopt(self) -> AgentClient | None:
        address = read_address(self.home)
        if address is None:
            return None
        client = AgentClient(address["location"], address["token"], self.trust)
        try:
            pe = send(client, GetStatus(), timeout=2.0)["pe"]
        except StreambrokerError as error:
            self._adopt_error = f"It cannot be adopted: {error}"
            return None
        if pe != str(self.pe):
            raise AgentFailedError(
                f"the data directory {self.home} is in use by the agent of {pe}. Give"
                f" {self.pe} a `data_dir` of its own."
            )
        self._check_clients(address)
        if self._token.value is not None:
            tokens.write(self._token, self.home / TOKEN_FILE)
        log.info("adopted the agent of %s at %s", self.pe, client.location)
        return client

    def _check_clients(self, address: AgentAddress) -> None:
        """Raise AgentFailedError if certificates are required, and the agent does not require them.

        The agent is not ended here: a kubelet may keep it, and restart it unchanged.
        """
        if self._clients_required and address.get("clients") != agent_tls.REQUIRED:
            raise AgentFailedError(
                f"the agent of {self.pe} that runs in {self.home} (process {address['pid']})"
                " serves callers without a certificate, but certificates are required here. Stop"
                " it first: by SIGTERM or with `pe.stop(end_agent=True)`, or wait until its"
                " `linger` is over; its log stays. A sidecar needs `--clients required`."
            )

    def _start(self, port: int, token: str = "") -> AgentClient:
        """Start the process and wait until it serves; raise AgentFailedError if it does not.

        An agent that finds no data directory takes ``token``.
        """
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.home / own_log.LOG_NAME
        with path.open("ab") as output:
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                self._command(port),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, FORMER_TOKEN_VARIABLE: token} if token else None,
            )
        self._process = process
        patience = ProgressTimeout(self.home, START_SECONDS)
        while patience.should_wait() and process.poll() is None:
            client = self._connect_if_serving(process.pid)
            if client is not None:
                return client
            if self._stopping.wait(0.02):
                raise AgentFailedError(f"the agent of {self.pe} starts while the PE is stopped")
        if process.poll() is not None:
            # If an agent serves this directory, it is not our child.
            self._process = None
        raise AgentFailedError(
            f"the agent of {self.pe} did not start: {self._failure_reason(path)} (all of it in"
            f" {path})"
        )

    def _failure_reason(self, path: Path) -> str:
        progress = read_progress(self.home) if self._process is not None else None
        if progress is not None:
            return f"its recovery makes no progress, at {describe_progress(progress)}"
        lines = path.read_text(errors="replace").strip().splitlines()
        return read_message(lines[-1]) if lines else "it printed no error"

    def _command(self, port: int) -> list[str]:
        token_file = tokens.write(self._token, self.home / TOKEN_FILE)
        options = {**self._options, "port": port, "token-file": token_file}
        command = [sys.executable, "-m", "pe_agent.agent"]
        for name, value in options.items():
            if value is not None:
                command += [f"--{name}", str(value)]
        return [*command, "--insecure"] if self._insecure else command

    def _connect_if_serving(self, pid: int) -> AgentClient | None:
        """Return a client of the process once it answers.

        The address file is checked first: a refused connection is refused from cache for a while.
        """
        address = read_address(self.home)
        if address is None or address["pid"] != pid:
            return None
        client = AgentClient(address["location"], address["token"], self.trust)
        try:
            send(client, GetStatus(), timeout=5.0)
        except AgentUnreachableError:
            return None
        return client

    def _keep_alive(self) -> None:
        """Renew the driver's lease at the agent, and restart an agent that has ended."""
        failures = 0
        while not self._stopping.wait(PING_SECONDS):
            try:
                if self._log_forwarder is not None:
                    self._log_forwarder.copy()
                send(self.client, DriverRenew(), timeout=2.0)
                failures, self._answers = 0, True
                continue
            except AgentUnreachableError:
                failures, self._answers = failures + 1, False
            except Exception as error:
                # This thread restarts the agent, so no error may end it.
                log.warning("agent: %s", error)
                continue
            if self._is_dead(failures) and not self._stopping.is_set():
                self._restart()

    def _beat(self) -> None:
        """Call the callbacks while the agent answers."""
        while not self._stopping.wait(PING_SECONDS):
            for callback in list(self.beat_callbacks) if self._answers else []:
                try:
                    callback()
                except AgentUnreachableError:
                    break
                except Exception as error:
                    log.warning("agent: %s", error)

    def _is_dead(self, failures: int) -> bool:
        if self._process is not None:
            return self._process.poll() is not None
        return failures >= 4

    def _restart(self) -> None:
        log.warning("the agent of %s is gone, restarting it", self.pe)
        try:
            port = int(self.client.location.rpartition(":")[2])
            self.client = self._start(port, self.client.token)
        except StreambrokerError:
            if not self._stopping.is_set():
                log.exception("cannot restart the agent; retrying")

    def stop(self, *, end_agent: bool) -> None:
        """Release the agent; ``end_agent`` ends it at once, else it serves on for ``linger``."""
        self._stopping.set()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(JOIN_SECONDS)
        try:
            if end_agent:
                self._end_agent()
            elif self._process is not None:
                self._process.returncode = 0  # it goes on: Python must not warn that it runs
                self._process = None
        finally:
            if self._log_forwarder is not None:
                self._log_forwarder.close()

    def _end_agent(self) -> None:
        try:
            send(self.client, Stop(), timeout=2.0)
        except StreambrokerError as error:
            log.info("cannot send the agent the command to stop: %s", error)
        deadline = time.monotonic() + STOP_SECONDS
        while read_address(self.home) is not None and time.monotonic() < deadline:
            if self._process is not None and self._process.poll() is not None:
                break
            time.sleep(0.02)
        if self._process is not None:
            self._end_process(self._process)

    @staticmethod
    def _end_process(process: subprocess.Popen[bytes]) -> None:
        try:
            process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
