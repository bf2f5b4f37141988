"""The life of an agent process: lock, recovery, service, link, end."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import gc
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypedDict

import pyarrow as pa

from pe_agent.agent.agent import Agent
from pe_agent.agent.broker.link import BrokerLink
from pe_agent.agent.reports import prometheus as metrics
from pe_agent.agent.reports.log_file import ProcessLog
from pe_agent.agent.reports.prometheus import MetricsServer
from pe_agent.agent.server.flight_service import AgentService
from pe_agent.agent.server.listener import Listener
from pe_agent.agent.state.recovery_progress import RecoveryProgress
from pe_agent.agent.storage.tier import StorageTier
from pe_agent.agent.tracing import Tracing
from pe_agent.log.atomic_file import replace_file
from pe_agent.log.objects.bucket import open_bucket
from pe_agent.transport import agent_client as client
from pe_agent.transport import agent_tls, tokens
from pe_agent.transport import broker_trust as tls
from pe_agent.transport.agent_tls import AgentCertificate, AgentTrust
from pe_agent.transport.broker_trust import BrokerTrust, TrustError
from pe_agent.transport.tokens import Token
from streambroker_core.errors import StreambrokerError
from streambroker_core.ledger.planner import MAX_READERS
from streambroker_core.model import DEFAULT_NAMESPACE, PeKey
from streambroker_telemetry import logs, otlp

if TYPE_CHECKING:
    from typing import NotRequired

log = logging.getLogger("pe_agent")

ADDRESS_FILE = "agent.json"
DRIVER_AWAY_SECONDS = 5.0
SHUTDOWN_SECONDS = 3.0
STORAGE_VARIABLE = "STREAMBROKER_STORAGE"
READERS_VARIABLE = "STREAMBROKER_MAX_READERS"


class AgentAddress(TypedDict):
    """Content of ``agent.json``; an agent of an earlier release wrote no ``clients``."""

    pid: int
    location: str
    token: str
    port: int
    metrics: int | None
    pe: str
    clients: NotRequired[str]


class HomeInUseError(StreambrokerError):
    """Another agent has the data directory."""

    code = "HomeInUse"


class AddressInUseError(StreambrokerError):
    """The agent's address is taken."""

    code = "AddressInUse"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one agent; ``port`` 0 is the previous port if free, ``hint_port`` 0 is any."""

    home: Path
    pe: PeKey
    broker: str | None
    host: str
    port: int
    hint_port: int
    metrics_port: int | None
    linger: float
    token: Token
    trust: BrokerTrust
    agent_trust: AgentTrust
    certificate: AgentCertificate | None
    clients_required: bool
    storage: str | None
    max_readers: int


def parse_settings(arguments: Sequence[str] | None = None) -> Settings:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="pe_agent.agent", description=__doc__)
    parser.add_argument("--home", type=Path, required=True, help="data directory, locked")
    parser.add_argument("--job", required=True)
    parser.add_argument("--pe", type=int, default=0)
    parser.add_argument("--namespace", default=DEFAULT_NAMESPACE)
    parser.add_argument("--broker", help="http[s]://host:port; without it the last routes stay")
    parser.add_argument(
        "--broker-ca",
        type=Path,
        default=os.environ.get(tls.VARIABLE) or None,
        help="certificates to trust of a broker at https://, PEM; default $STREAMBROKER_CA, or the"
        " system's",
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        help="file with the token for the broker; without it $STREAMBROKER_TOKEN is used, if set",
    )
    parser.add_argument(
        "--tls-cert",
        type=Path,
        help=(
            "certificate to present to other agents and the job, PEM; default"
            f" ${tls.CERTIFICATE_VARIABLE}, or no TLS"
        ),
    )
    parser.add_argument("--tls-key", type=Path, help=f"its key, PEM; default ${tls.KEY_VARIABLE}")
    parser.add_argument(
        "--agent-ca",
        type=Path,
        help="certificates to trust of other agents, PEM; with it only agents with TLS are called,"
        f" unless ${agent_tls.PLAIN_VARIABLE} is `allow`; default ${tls.AGENT_CA_VARIABLE}",
    )
    parser.add_argument(
        "--clients",
        choices=(agent_tls.ANY, agent_tls.REQUIRED),
        help=(
            "`required`: callers have to present a certificate of the CA; default"
            f" ${agent_tls.CLIENTS_VARIABLE}, or `required` where other machines reach --host"
        ),
    )
    parser.add_argument(
        "--insecure",
        action="store_true",
        default=None,
        help="serve other machines without asking for certificates; default"
        f" ${agent_tls.INSECURE_VARIABLE} is `allow`",
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--hint-port", type=int, default=0, help="for UDP; 0 for any")
    parser.add_argument(
        "--metrics-port",
        type=int,
        default=os.environ.get(metrics.VARIABLE) or None,
        help=f"for GET /metrics; 0 for any; default ${metrics.VARIABLE}, or none",
    )
    parser.add_argument(
        "--linger",
        type=float,
        default=60.0,
        help="seconds to keep serving when the driver is gone; -1 for ever",
    )
    parser.add_argument(
        "--storage",
        default=os.environ.get(STORAGE_VARIABLE) or None,
        help="bucket behind the exports: s3://bucket/prefix or file:///shared/directory; default"
        f" ${STORAGE_VARIABLE}, or the data directory alone",
    )
    parser.add_argument(
        "--max-readers",
        type=int,
        default=os.environ.get(READERS_VARIABLE) or MAX_READERS,
        help="readers of one export, and of all imports together; default"
        f" ${READERS_VARIABLE}, or {MAX_READERS:,}",
    )
    logs.add_option(parser)
    got = parser.parse_args(arguments)
    if got.max_readers < 1:
        parser.error(f"--max-readers {got.max_readers}: at least 1 reader has to be allowed")
    if ":" in got.host:
        parser.error(f"--host {got.host}: give a name or an IPv4 address; IPv6 is not supported")
    certificate = agent_tls.resolve_certificate(got.tls_cert, got.tls_key)
    return Settings(
        home=got.home,
        broker=got.broker,
        host=got.host,
        port=got.port,
        hint_port=got.hint_port,
        metrics_port=got.metrics_port,
        storage=got.storage,
        max_readers=got.max_readers,
        linger=got.linger,
        pe=PeKey.parse(f"{got.namespace}/{got.job}/{got.pe}"),
        # A missing token file does not prevent serving: the last routes still apply.
        token=Token(path=got.token_file) if got.token_file else tokens.resolve_token(None, None),
        trust=BrokerTrust(got.broker_ca),
        agent_trust=agent_tls.resolve_agent_trust(got.agent_ca, certificate=certificate),
        certificate=certificate,
        clients_required=agent_tls.are_clients_required(
            got.clients, got.host, insecure=agent_tls.is_insecure(got.insecure)
        ),
    )


class AgentServer:
    """One running agent."""

    def __init__(self, chosen: Settings) -> None:
        self.settings = chosen
        trust = chosen.agent_trust
        required = chosen.clients_required
        agent_tls.check_secured(
            str(chosen.pe), chosen.host, chosen.certificate, trust, required=required
        )
        if not required and not agent_tls.is_loopback(chosen.host):
            log.warning(
                "other machines can reach the agent at %s, and it serves callers without a"
                " certificate",
                chosen.host,
            )
        os.umask(0o077)
        chosen.home.mkdir(parents=True, exist_ok=True)
        self._lock = _lock_home(chosen.home)
        self._process_log = ProcessLog(chosen.home)
        listener = Listener(
            chosen.host,
            lambda location, chain: AgentService(location, self.agent, self.token, chain),
            chosen.certificate,
            trust if required else None,
        )
        if trust.demands_tls() and chosen.certificate is None:
            raise TrustError(
                f"the agent of {chosen.pe} would have no certificate, but with a CA only agents"
                " with TLS are called: give `AgentTls.certificate` and `AgentTls.key` as well."
            )
        # Before the agent is created: it calls the agents of the last routes at once.
        client.trust_in_process(trust)
        pa.set_cpu_count(1)
        sys.setswitchinterval(0.0005)
        progress = RecoveryProgress(chosen.home)
        # Recovery creates no cycles and keeps its objects: cyclic GC would double its time.
        gc.disable()
        self.link: BrokerLink | None = None
        storage = None
        if chosen.storage:
            bucket = open_bucket(chosen.storage).folder(str(chosen.pe))
            storage = StorageTier(bucket, chosen.home)
        self._telemetry = otlp.start(
            {
                "service.namespace": chosen.pe.namespace,
                "service.name": chosen.pe.job,
                "service.instance.id": str(chosen.pe),
            }
        )
        tracer = None if self._telemetry is None else self._telemetry.start_traces()
        self.agent = Agent(
            chosen.pe,
            chosen.home,
            progress=progress,
            broker_status=lambda: {} if self.link is None else self.link.status(),
            listener_status=listener.status,
            storage=storage,
            max_readers=chosen.max_readers,
            tracing=None if tracer is None else Tracing(tracer),
            # That of an agent whose disk was lost: queries go on with it.
            token=os.environ.pop(client.FORMER_TOKEN_VARIABLE, ""),
        )
        gc.freeze()
        gc.enable()
        self.instance = self.agent.store.identity("instance")
        self.token = self.agent.token
        self._listen(listener)
        self.listener = listener
        self.agent.store.set("port", str(self.listener.port))
        self.location = self.listener.location
        if chosen.broker:
            self.link = self._create_link(chosen.broker)
            self.link.start()
        self.metrics = self._start_metrics()
        if self._telemetry is not None:
            self._telemetry.push_metrics(self.agent.collect_metrics)
        self._write_address()
        progress.end()
        self._terminated = False

    def _listen(self, listener: Listener) -> None:
        chosen = self.settings
        previous = int(self.agent.store.get("port") or 0)
        candidates = [chosen.port] if chosen.port else [previous, 0]
        for port in candidates:
            try:
                listener.open(port)
                return
            except (pa.ArrowException, OSError) as error:
                if port == candidates[-1]:
                    raise AddressInUseError(
                        f"the agent of {chosen.pe} cannot listen on {chosen.host}:{port}"
                        f" ({str(error).partition('.')[0]}). Stop what uses the port, or start the"
                        " job with another `port`."
                    ) from error

    def _create_link(self, broker: str) -> BrokerLink:
        chosen = self.settings
        try:
            return BrokerLink(
                self.agent,
                broker,
                location=self.location,
                instance=self.instance,
                host=chosen.host,
                hint_port=chosen.hint_port,
                token=chosen.token,
                trust=chosen.trust,
            )
        except (OSError, OverflowError) as error:
            raise AddressInUseError(
                f"the agent of {chosen.pe} cannot listen for hints on"
                f" {chosen.host}:{chosen.hint_port} ({error}). Stop what uses the port, or start"
                " the job with another `hint_port`."
            ) from error

    def _start_metrics(self) -> MetricsServer | None:
        port = self.settings.metrics_port
        if port is None:
            return None
        try:
            return MetricsServer(self.settings.host, port, self.agent.metrics)
        except (OSError, OverflowError) as error:
            log.error("cannot serve metrics at %s:%s: %s", self.settings.host, port, error)
            return None

    def _write_address(self) -> None:
        address: AgentAddress = {
            "pid": os.getpid(),
            "location": self.location,
            "token": self.token,
            "port": self.listener.port,
            "metrics": self.metrics.port if self.metrics else None,
            "pe": str(self.settings.pe),
            "clients": agent_tls.REQUIRED if self.settings.clients_required else agent_tls.ANY,
        }
        replace_file(self.settings.home / ADDRESS_FILE, json.dumps(address), private=True)

    def run(self) -> None:
        """Serve until SIGTERM, SIGINT or ``stop``, or until the driver is away for ``linger``."""
        for signal_ in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signal_, self._terminate)
        while not self._terminated and not self.agent.stopping.wait(0.2):
            if self.link is not None and self.agent.report_due.is_set():
                self.agent.report_due.clear()
                self.link.wake()
            self.agent.tick()
            with contextlib.suppress(OSError):
                self._process_log.rotate_if_full()
            away = time.monotonic() - self.agent.driver_last_seen - DRIVER_AWAY_SECONDS
            if self.settings.linger >= 0 and away > self.settings.linger:
                log.info(
                    "the driver is gone, stopping the agent", extra={"pe": str(self.settings.pe)}
                )
                break
        self.close()

    def _terminate(self, *_: object) -> None:
        # No event: this runs in the thread that waits, which may hold an event's lock.
        self._terminated = True

    def close(self) -> None:
        """Shut down; log and store stay."""
        if self.link is not None:
            self.link.close()
        if self.metrics is not None:
            self.metrics.close()
        self.agent.notifier.close()
        # Calls in progress may complete; one with a stalled peer must not block the exit.
        self.listener.close(SHUTDOWN_SECONDS)
        if self._telemetry is not None:
            self._telemetry.close()
        self.agent.close()
        (self.settings.home / ADDRESS_FILE).unlink(missing_ok=True)
        self._lock.close()


def read_address(home: Path) -> AgentAddress | None:
    """Return the content of ``agent.json`` in a data directory, None if it is missing."""
    try:
        address: AgentAddress = json.loads((home / ADDRESS_FILE).read_text())
    except (OSError, ValueError):
        return None
    return address


def _lock_home(home: Path) -> IO[str]:
    file = (home / "lock").open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        address = read_address(home)
        file.close()
        pid = None if address is None else address["pid"]
        raise HomeInUseError(
            f"the data directory {home} is in use by another agent (process {pid}):"
            " one job and PE has one agent. Give this one another `data_dir`, or stop the other."
        ) from None
    return file


def main(arguments: Sequence[str] | None = None) -> int:
    """Run an agent; return the exit code."""
    form = logs.read_option(arguments)
    logs.configure(form, logging.INFO, "%(asctime)s %(levelname)s %(message)s")
    # gRPC would log each failed handshake; the relevant ones are raised as errors.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        agent = AgentServer(parse_settings(arguments))
    except StreambrokerError as error:
        sys.stderr.write(logs.format_line(form, f"{error.code}: {error}", logging.CRITICAL))
        return 1
    line = f"agent {agent.settings.pe} listening on {agent.location}"
    sys.stdout.write(logs.format_line(form, line))
    sys.stdout.flush()
    agent.run()
    return 0
