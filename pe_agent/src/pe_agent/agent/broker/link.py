"""Agent's link to the broker: registration, declarations, polls, hints.

Only a view in the broker's response replaces the view. On no response, errors and 404 the routes
stay as they are.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from time import time as wall_clock

from pe_agent.agent.actions import job_actions
from pe_agent.agent.agent import Agent
from pe_agent.agent.broker.capability_renewal import CapabilityRenewal
from pe_agent.agent.broker.commands import CommandRunner
from pe_agent.agent.broker.connection_state import BrokerStatus, ConnectionState
from pe_agent.agent.broker.hint_listener import HintListener
from pe_agent.agent.broker.port_declarer import PortDeclarer
from pe_agent.agent.broker.registrar import Registrar
from pe_agent.agent.broker.reporter import StatusReporter
from pe_agent.agent.broker.request_signer import Signer
from pe_agent.agent.state.route_table import RuleGate
from pe_agent.transport.broker_client import BrokerClient
from pe_agent.transport.broker_trust import BrokerTrust
from pe_agent.transport.tokens import Token
from streambroker_client.errors import BrokerRefusedError
from streambroker_core.wire.broker import agent_commands, hints, registration
from streambroker_core.wire.broker import ended_exports as ends
from streambroker_core.wire.broker.view import decode

log = logging.getLogger("pe_agent")

SPACING_SECONDS = hints.POLL_SPACING_S
ACKNOWLEDGE_SECONDS = 0.25
"""Delay of the acknowledgement of a view, if the broker asked for one."""
BUSY_SECONDS = 2.0
BUSY_ACKNOWLEDGE_SECONDS = 0.7
"""Delay of the acknowledgement shortly after another one: the poll for the next change may carry
it. Below the one second in which a broker lets a status settle."""
LINGER_SECONDS = 1.0
"""How long a connection is kept after a poll: changes often come in series."""


class Acknowledgement:
    """When a poll reports that the agent has applied a view."""

    def __init__(self) -> None:
        self._applied_at: float | None = None
        self._sent_at = -BUSY_SECONDS

    def request(self) -> None:
        """Record that the broker wants to know about the view that was just applied."""
        self._applied_at = time.monotonic()

    def limit(self, pause: float) -> float:
        """Return a pause before the next poll that is short enough for what is to be reported."""
        if self._applied_at is None:
            return pause
        busy = time.monotonic() - self._sent_at < BUSY_SECONDS
        return min(pause, BUSY_ACKNOWLEDGE_SECONDS if busy else ACKNOWLEDGE_SECONDS)

    def headers(self) -> dict[str, str]:
        """Return the header of a poll that reports the view, if there is one to report."""
        if self._applied_at is None:
            return {}
        self._sent_at = time.monotonic()
        return {"Running-For": f"{self._sent_at - self._applied_at:.3f}"}

    def sent(self) -> None:
        """Record that the broker has answered the poll."""
        self._applied_at = None


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
        token = token or Token()
        self._signer = Signer(agent.pe, instance, lambda: agent.key)
        self._client = BrokerClient(url, agent.pe.namespace, token, trust, sign=self._signer.header)
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._state = ConnectionState(self._client.url)
        self._commands = CommandRunner(
            job_actions(agent),
            lambda done: self._client.request("POST", f"{self._registrar.path}/errands", done).body,
        )
        self._listener = HintListener(
            agent,
            host=host,
            port=hint_port,
            broker=self._client.address,
            on_poll=self._wake.set,
            on_commands=self._commands.wake,
        )
        wanted = registration.Registration(
            instance=instance, location=location, hint=self._listener.address
        )
        self._registrar = Registrar(agent, self._client, token, wanted)
        self._declarer = PortDeclarer(
            agent.pe, agent.declarations, self._client, self._registrar.path
        )
        self._rule_gate = RuleGate()
        self._restored = False
        self._acknowledgement = Acknowledgement()
        self._renewal = CapabilityRenewal()
        self._reporter = StatusReporter(
            lambda: {**agent.status(), "patterns": agent.rule_state.page()},
            lambda report: (
                self._client.request("PUT", f"{self._registrar.path}/report", report).body
            ),
            agent.throttle.set_rates,
        )
        agent.rule_state.on_report = self._reporter.report_soon
        agent.problems.on_change = self._reporter.report_soon

    def start(self) -> None:
        """Start polling and listening."""
        for name, target in (("_run", self._run), ("_listen", self._listener.run)):
            threading.Thread(target=target, daemon=True, name=f"broker {name}").start()
        self._reporter.start()
        self._commands.start()

    def close(self) -> None:
        """Stop both threads."""
        self._stopped.set()
        self._wake.set()
        self._reporter.close()
        self._commands.close()
        self._client.close_idle()
        self._listener.close()

    def wake(self) -> None:
        """Poll now: there is something to report."""
        self._wake.set()

    def status(self) -> BrokerStatus:
        """Return URL, state and counters of the link."""
        return {**self._state.status(), "refusedHints": self._listener.refused}

    # -- polling -----------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopped.is_set():
            pause = self._registrar.poll_seconds * random.uniform(0.9, 1.1)  # noqa: S311 - jitter
            try:
                self._sync()
                self._agent.broker_last_seen = wall_clock()
                pause = self._acknowledgement.limit(pause)
                self._state.succeeded()
                self._reporter.on_poll()
            except Exception as error:
                # The next round is the remedy for any error; without this thread there is none.
                pause = self._state.failed(error)
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
        if self._registrar.is_due(self._listener.proof):
            self._register()
        self._declarer.declare_ports()
        try:
            self._poll()
        except BrokerRefusedError as error:
            if error.status != 404:
                raise
            self._agent.declarations.mark_all_unreported()
            self._register_again()
        if not self._registrar.is_known():
            # Another or older broker file, another agent of this PE, or an older release.
            self._register_again()

    def _register(self) -> None:
        self._registrar.register(self._listener.proof)

    def _register_again(self) -> None:
        self._register()
        self._declarer.declare_ports()
        self._poll()

    def _accept_view(self, version: str, point: hints.Point) -> bool:
        """Return whether to apply a view; an older one reveals a broker with a restored file."""
        restored = self._listener.gate.is_ahead_of(point)
        if restored and not self._restored:
            self._agent.declarations.mark_all_unreported()
            self._wake.set()
        self._restored = restored
        return self._listener.gate.accept_view(version, point, time.monotonic())

    def _poll(self) -> None:
        view = self._agent.routes.view
        needs_full = self._rule_gate.needs_full_view or (
            view is not None and self._renewal.is_due(view)
        )
        known = view is not None and view.version and not needs_full
        headers = {"If-None-Match": f'"{view.version}"'} if view and known else {}
        headers |= self._acknowledgement.headers()
        ended = self._agent.exports.ended()
        if ended:
            headers[ends.HEADER] = ends.encode(ends.make_ended_exports(ended))
        self._state.polls += 1
        response = self._client.request(
            "GET", self._registrar.path, headers=headers, keep_alive=True
        )
        self._note_reported_ended(ended)
        self._registrar.tag = response.headers.get("agent")
        self._signer.on_answer(response.headers)
        if agent_commands.HEADER.lower() in response.headers:
            self._commands.wake()
        self._acknowledgement.sent()
        if response.status == 304:
            point = hints.read_point(response.headers.get("point", ""))
            if view is not None and point is not None:
                self._accept_view(view.version, point)
            return
        received = decode(response.body)
        if self._accept_view(received.version, received.point):
            self._agent.routes.apply(self._rule_gate.drop_stale_rules(received, view))
            if "acknowledge" in response.headers:
                self._acknowledgement.request()

    def _note_reported_ended(self, ended: frozenset[str]) -> None:
        """Record acknowledged ends; poll again if they changed during the request."""
        self._agent.exports.reported_ended = ended
        if self._agent.exports.ended() != ended:
            self._wake.set()
