"""Agent's link to the broker: registration, declarations, polls, hints.

Only a view in the broker's response replaces the view. On no response, errors and 404 the routes
stay as they are.
"""

from __future__ import annotations

import ipaddress
import logging
import random
import secrets
import socket
import threading
import time
from dataclasses import replace
from time import time as wall_clock
from typing import Any

from pe_agent.agent.actions import job_actions
from pe_agent.agent.agent import Agent
from pe_agent.agent.broker.capability_renewal import CapabilityRenewal
from pe_agent.agent.broker.commands import CommandRunner
from pe_agent.agent.broker.port_declarer import PortDeclarer
from pe_agent.agent.broker.reporter import StatusReporter
from pe_agent.agent.broker.request_signer import Signer
from pe_agent.agent.state.route_table import RuleGate
from pe_agent.transport.broker_client import (
    BrokerClient,
    BrokerRefusedError,
    BrokerUnavailableError,
    pe_path,
)
from pe_agent.transport.broker_trust import BrokerTrust
from pe_agent.transport.tokens import Token
from streambroker_core.errors import HintError, StreambrokerError
from streambroker_core.wire.broker import (
    agent_commands,
    hints,
    key_exchange,
    registration,
)
from streambroker_core.wire.broker import ended_exports as ends
from streambroker_core.wire.broker.view import decode

log = logging.getLogger("pe_agent")

RETRY_SECONDS = 1.0
REFUSED_FACTOR = 5
"""Factor on the retry pause while the broker refuses the agent's token."""
MAX_DOUBLINGS = 4
"""Maximum doublings of the retry pause while the broker responds that it is busy."""
SPACING_SECONDS = hints.POLL_SPACING_S
ACKNOWLEDGE_SECONDS = 0.25
"""Delay of the acknowledgement of a view, if the broker asked for one."""
BUSY_SECONDS = 2.0
BUSY_ACKNOWLEDGE_SECONDS = 0.7
"""Delay of the acknowledgement shortly after another one: the poll for the next change may carry
it. Below the one second in which a broker lets a status settle."""
LINGER_SECONDS = 1.0
"""How long a connection is kept after a poll: changes often come in series."""
REGISTER_SECONDS = 600.0
"""Registration interval although the broker shows that it knows the agent."""
UNPROVEN_SECONDS = 60.0
"""Registration interval while no hints arrive: the challenge that enables them may be lost."""


class BrokerLink:
    """Polling thread and hint listener thread."""

    def __init__(
        self,
        agent: Agent,
        url: str,
        *,
        location: str,
        instance: str,
        host: str,
        hint_port: int = 0,
        token: Token | None = None,
        trust: BrokerTrust | None = None,
    ) -> None:
        self._agent = agent
        self._token = token or Token()
        self._signer = Signer(agent.pe, instance, lambda: agent.key)
        self._client = BrokerClient(
            url, agent.pe.namespace, self._token, trust, sign=self._signer.header
        )
        self._path = pe_path(agent.pe.job, agent.pe.pe)
        self._declarer = PortDeclarer(agent.pe, agent.declarations, self._client, self._path)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._socket.bind((host, hint_port))
        except (OSError, OverflowError):
            self._socket.close()
            raise
        self._socket.settimeout(0.5)
        self._registration = registration.Registration(
            instance=instance,
            location=location,
            hint=_hint_address(self._socket, self._client.address),
        )
        # Whether the broker sends hints, and the proof received by hint that this agent listens.
        self._hints_enabled, self._proof, self._registered_proof = True, "", ""
        self._registered_token: str | None = None
        # Tag of the registration that the broker knows, from its last response.
        self._registration_tag: str | None = None
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._poll_seconds = float(registration.POLL_S)
        view = agent.routes.view
        self._hint_gate = (
            hints.HintGate(view.version or None, view.point) if view else hints.HintGate()
        )
        self._rule_gate = RuleGate()
        self._next_registration = 0.0
        self._restored = False
        self._away = False
        self._busy_retries = 0
        self._refused: str | None = None
        self._refused_hints = 0
        self._polls = 0
        # Whether the broker wants an acknowledgement of the view, and when the view was applied.
        self._acknowledge_due, self._view_applied_at = False, 0.0
        self._renewal = CapabilityRenewal()
        self._acknowledged_at = -BUSY_SECONDS
        self._reporter = StatusReporter(
            lambda: {**agent.status(), "patterns": agent.rule_state.page()},
            lambda report: self._client.request("PUT", f"{self._path}/report", report).body,
        )
        self._commands = CommandRunner(
            job_actions(agent),
            lambda done: self._client.request("POST", f"{self._path}/errands", done).body,
        )

        agent.rule_state.on_report = self._reporter.report_soon

    def start(self) -> None:
        """Start polling and listening."""
        for target in (self._run, self._listen):
            threading.Thread(target=target, daemon=True, name=f"broker {target.__name__}").start()
        self._reporter.start()
        self._commands.start()

    def close(self) -> None:
        """Stop both threads."""
        self._stopped.set()
        self._wake.set()
        self._reporter.close()
        self._commands.close()
        self._client.close_idle()
        self._socket.close()

    def wake(self) -> None:
        """Poll now: there is something to report."""
        self._wake.set()

    def status(self) -> dict[str, Any]:
        """Return URL, state and counters of the link."""
        return {
            "url": self._client.url,
            "away": self._away,
            "refused": self._refused,
            "polls": self._polls,
            "refusedHints": self._refused_hints,
        }

    # -- polling -----------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopped.is_set():
            pause = self._poll_seconds * random.uniform(0.9, 1.1)  # noqa: S311 - jitter
            try:
                self._sync()
                self._agent.broker_last_seen = wall_clock()
                pause = min(pause, self._acknowledge_delay()) if self._acknowledge_due else pause
                if self._away:
                    log.info("broker is reachable again", extra={"broker": self._client.url})
                self._away, self._refused, self._busy_retries = False, None, 0
                self._reporter.on_poll()
            except Exception as error:
                # The next round is the remedy for any error; without this thread there is none.
                if not isinstance(error, StreambrokerError):
                    log.exception("communication with the broker failed")
                else:
                    self._log_failure(error)
                self._away = True
                pause = RETRY_SECONDS * random.uniform(0.5, 1.0)  # noqa: S311 - jitter
                pause *= REFUSED_FACTOR if self._refused else 1
                later = isinstance(error, BrokerUnavailableError) and error.busy
                self._busy_retries = min(self._busy_retries + 1, MAX_DOUBLINGS) if later else 0
                pause *= 2**self._busy_retries
            ended = time.monotonic()
            self._wait(pause)
            self._wake.clear()
            self._stopped.wait(max(0.0, ended + SPACING_SECONDS - time.monotonic()))
        self._client.close_idle()

    def _wait(self, pause: float) -> None:
        """Wait for the next round; close an idle connection after `LINGER_SECONDS`."""
        if pause > LINGER_SECONDS and self._client.has_idle_connection:
            if self._wake.wait(LINGER_SECONDS):
                return
            self._client.close_idle()
            pause -= LINGER_SECONDS
        self._wake.wait(pause)

    def _acknowledge_delay(self) -> float:
        busy = time.monotonic() - self._acknowledged_at < BUSY_SECONDS
        return BUSY_ACKNOWLEDGE_SECONDS if busy else ACKNOWLEDGE_SECONDS

    def _log_failure(self, error: StreambrokerError) -> None:
        """Log once that the broker is away, or why it refuses this agent."""
        denied = isinstance(error, BrokerRefusedError) and error.status in (401, 403)
        refused = f"{error.code}: {error}" if denied else None
        if refused is not None and refused != self._refused:
            log.error("the broker refuses this agent, routes stay: %s", refused)
        elif refused is None and not (self._away and self._refused is None):
            log.warning("broker is unreachable, routes stay: %s", error)
        self._refused = refused

    def _sync(self) -> None:
        """Register and poll; on a refused signature register with the token and retry."""
        try:
            self._register_and_poll()
        except BrokerRefusedError as error:
            if error.status != 401 or not self._signer.on_refused(error.challenge):
                raise
            log.info("the broker refuses the agent's signature, sending the token: %s", error)
            self._register()
            self._register_and_poll()

    def _register_and_poll(self) -> None:
        due = time.monotonic() >= self._next_registration or self._proof != self._registered_proof
        if due or self._token.current() != self._registered_token:
            self._register()
        self._declarer.declare_ports()
        try:
            self._poll()
        except BrokerRefusedError as error:
            if error.status != 404:
                raise
            self._agent.declarations.mark_all_unreported()
            self._register()
            self._declarer.declare_ports()
            self._poll()
        if self._registration_tag != registration.registration_tag(
            self._agent.key, self._accepted_registration()
        ):
            # Another or older broker file, another agent of this PE, or an older release.
            self._register()
            self._declarer.declare_ports()
            self._poll()

    def _accepted_registration(self) -> registration.Registration:
        """Return the registration as the broker stores it."""
        return self._registration if self._hints_enabled else replace(self._registration, hint=None)

    def _register(self) -> None:
        token, exchange = self._token.current(), self._create_exchange()
        self._registered_proof = self._proof
        body = registration.encode_request(
            self._registration, exchange, self._registered_proof or None
        )
        reply = self._client.request("PUT", self._path, body).body
        response = registration.decode_answer(reply, exchange)
        self._registered_token = token
        if self._agent.key not in (b"", response.key):
            # The broker derives keys from its secret: a new key means another file without ports.
            self._agent.declarations.mark_all_unreported()
        self._agent.key = response.key
        self._agent.store.set("key", response.key.hex())
        self._poll_seconds = float(response.poll_s)
        self._hints_enabled = response.hinted
        again = REGISTER_SECONDS if response.hinted else UNPROVEN_SECONDS
        self._next_registration = time.monotonic() + again

    def _create_exchange(self) -> registration.Exchange:
        private = secrets.token_bytes(key_exchange.SIZE)
        return registration.Exchange(
            private=private,
            public=key_exchange.public_key(private),
            purpose=registration.key_purpose(self._agent.pe, self._registration.instance),
        )

    def _accept_view(self, version: str, point: hints.Point) -> bool:
        """Return whether to apply a view; an older one reveals a broker with a restored file."""
        restored = self._hint_gate.is_ahead_of(point)
        if restored and not self._restored:
            self._agent.declarations.mark_all_unreported()
            self._wake.set()
        self._restored = restored
        return self._hint_gate.accept_view(version, point, time.monotonic())

    def _poll(self) -> None:
        view = self._agent.routes.view
        needs_full = self._rule_gate.needs_full_view or (
            view is not None and self._renewal.is_due(view)
        )
        known = view is not None and view.version and not needs_full
        headers = {"If-None-Match": f'"{view.version}"'} if view and known else {}
        if self._acknowledge_due:
            headers["Running-For"] = f"{time.monotonic() - self._view_applied_at:.3f}"
            self._acknowledged_at = time.monotonic()
        ended = self._agent.exports.ended()
        if ended:
            headers[ends.HEADER] = ends.encode(ends.make_ended_exports(ended))
        self._polls += 1
        response = self._client.request("GET", self._path, headers=headers, keep_alive=True)
        self._note_reported_ended(ended)
        self._registration_tag = response.headers.get("agent")
        self._signer.on_answer(response.headers)
        if agent_commands.HEADER.lower() in response.headers:
            self._commands.wake()
        self._acknowledge_due = False
        if response.status == 304:
            point = hints.read_point(response.headers.get("point", ""))
            if view is not None and point is not None:
                self._accept_view(view.version, point)
            return
        received = decode(response.body)
        if self._accept_view(received.version, received.point):
            self._agent.routes.apply(self._rule_gate.drop_stale_rules(received, view))
            if "acknowledge" in response.headers:
                self._acknowledge_due, self._view_applied_at = True, time.monotonic()

    def _note_reported_ended(self, ended: frozenset[str]) -> None:
        """Record acknowledged ends; poll again if they changed during the request."""
        self._agent.exports.reported_ended = ended
        if self._agent.exports.ended() != ended:
            self._wake.set()

    # -- hints -------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Turn valid hints into polls; a replayed hint costs at most one poll.

        A hint for commands may have replaced one for a view, so it also counts as a poll hint.
        """
        while not self._stopped.is_set():
            try:
                datagram = self._socket.recv(hints.MAX_DATAGRAM + 1)
            except TimeoutError:
                continue
            except OSError:
                return
            try:
                hint = hints.decode(self._agent.key, datagram, str(self._agent.pe))
            except HintError as error:
                self._refused_hints += 1
                log.debug("hint refused: %s", error)
                continue
            if hint.version.startswith(hints.PROOF):
                self._proof = hint.version.removeprefix(hints.PROOF)
            if hint.version == hints.COMMANDS:
                self._commands.wake()
            if self._hint_gate.should_poll(hint, time.monotonic()):
                self._wake.set()


def _hint_address(listener: socket.socket, broker: tuple[str, int]) -> str:
    """Return the IP address and port for hints; a broker resolves no names."""
    host, port = listener.getsockname()
    if ipaddress.ip_address(host).is_unspecified:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(broker)
                host = probe.getsockname()[0]
            except OSError:
                host = "127.0.0.1"
    return f"{host}:{port}"


__all__ = ["BrokerLink", "BrokerUnavailableError"]
