"""Registers the agent with the broker."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace

from pe_agent.agent.agent import Agent
from pe_agent.transport.broker_client import BrokerClient, pe_path
from pe_agent.transport.tokens import Token
from streambroker_core.wire.broker import key_exchange, registration

REGISTER_SECONDS = 600.0
"""Registration interval although the broker shows that it knows the agent."""
UNPROVEN_SECONDS = 60.0
"""Registration interval while no hints arrive: the challenge that enables them may be lost."""


class Registrar:
    """What the broker has of this agent, and when to register again.

    Attributes:
        wanted: what is registered.
        path: the agent's path in the broker's REST API.
        poll_seconds: the poll interval that the broker asks for.
        tag: tag of the registration that the broker knows, from its last response.
    """

    def __init__(
        self, agent: Agent, client: BrokerClient, token: Token, wanted: registration.Registration
    ) -> None:
        self._agent, self._client, self._token, self.wanted = agent, client, token, wanted
        self.path = pe_path(agent.pe.job, agent.pe.pe)
        self.poll_seconds = float(registration.POLL_S)
        self.tag: str | None = None
        self._hints_enabled = True
        self._proof = ""
        self._sent_token: str | None = None
        self._next = 0.0

    def is_due(self, proof: str) -> bool:
        """Return whether to register: after a while, with a new proof, and with a new token."""
        due = time.monotonic() >= self._next or proof != self._proof
        return due or self._token.current() != self._sent_token

    def is_known(self) -> bool:
        """Return whether the broker's last response came from one that has this registration."""
        accepted = self.wanted if self._hints_enabled else replace(self.wanted, hint=None)
        return self.tag == registration.registration_tag(self._agent.key, accepted)

    def register(self, proof: str) -> None:
        """Register; take over the agent's key, and how often to poll.

        Args:
            proof: the last proof that hints arrive, or empty.
        """
        token, self._proof = self._token.current(), proof
        private = secrets.token_bytes(key_exchange.SIZE)
        exchange = registration.Exchange(
            private=private,
            public=key_exchange.public_key(private),
            purpose=registration.key_purpose(self._agent.pe, self.wanted.instance),
        )
        body = registration.encode_request(self.wanted, exchange, proof or None)
        reply = self._client.request("PUT", self.path, body).body
        response = registration.decode_answer(reply, exchange)
        self._sent_token = token
        if self._agent.key not in (b"", response.key):
            # The broker derives keys from its secret: a new key means another file without ports.
            self._agent.declarations.mark_all_unreported()
        self._agent.key = response.key
        self._agent.store.set("key", response.key.hex())
        self.poll_seconds = float(response.poll_s)
        self._hints_enabled = response.hinted
        again = REGISTER_SECONDS if response.hinted else UNPROVEN_SECONDS
        self._next = time.monotonic() + again
