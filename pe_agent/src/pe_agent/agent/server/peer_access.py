"""Access of other agents: which exports they may read, by capability or pass."""

from __future__ import annotations

import time
from typing import NamedTuple

from pe_agent.agent.agent import Agent
from pe_agent.agent.exports import read_grant as grants
from pe_agent.agent.exports.export import AgentExport
from pe_agent.agent.server.caller_checks import equal_in_constant_time
from streambroker_core.errors import CapabilityError, StreambrokerError
from streambroker_core.ledger.retention import Reader
from streambroker_core.ledger.routes import NotRoutedError
from streambroker_core.model import port_of
from streambroker_core.wire.agent_rpc.peer import PeerCredentials
from streambroker_core.wire.broker import capability


class FilterForbiddenError(StreambrokerError):
    """The export does not allow filters; nothing was planned."""

    code = "FilterForbidden"


class AuthorizedRead(NamedTuple):
    """Export that another agent may read, and the start policy of the reader's import.

    Without ``granted`` the caller may read what was planned before, but acknowledges nothing.
    """

    export: AgentExport
    policy: str
    granted: bool = True


class PeerAccess:
    """Checks the credentials of other agents."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def authorize(self, shown: PeerCredentials, *, planned: bool = False) -> AuthorizedRead:
        """Authorize another agent's request; return its export and start policy.

        A caller that opens an export or plans new epochs needs a capability. A pass is enough to
        read what a reader has ``planned``, or after its route is gone: then nothing new is planned.

        Raises:
            CapabilityError, FilterForbiddenError, PolicyDeniedError, PortNotDeclaredError,
            RevokedError.
        """
        export, import_ = self._agent.exports.get(shown.export), shown.import_
        export.state.ledger.routes.check_revoked(import_)
        reader = export.state.ledger.readers.get(shown.reader or "")
        if reader is not None and reader.import_ != import_:
            raise NotRoutedError(f"reader {reader.id} belongs to another import")
        if reader is not None and not reader.routed and self._is_pass_of(reader, export, shown):
            return AuthorizedRead(export, reader.policy)
        try:
            verified = self._verify_capability(export, import_, shown.capability)
        except CapabilityError:
            if reader is None or not (planned and self._is_pass_of(reader, export, shown)):
                raise
            return AuthorizedRead(export, reader.policy, granted=False)
        if verified.policed and not export.policies.current:
            raise CapabilityError(
                "early", f"the agent of {export.key} does not have the policies of the export yet"
            )
        export.policies.of_import(import_)
        if reader is not None:
            return AuthorizedRead(export, reader.policy)
        if shown.filter is not None and not verified.filter_allowed:
            raise FilterForbiddenError(f"export {export.key} does not allow filters")
        return AuthorizedRead(export, verified.policy)

    def pass_for(self, export: str, import_: str, reader: str) -> str:
        """Return the pass that authenticates a reader's agent where it has no valid capability."""
        return grants.pass_for(self._agent.token, export, import_, reader)

    def is_pass_valid(self, export: str, import_: str, reader: str, pass_: object) -> bool:
        """Return whether a caller shows the pass of a reader: the reader id is no secret."""
        return equal_in_constant_time(str(pass_ or ""), self.pass_for(export, import_, reader))

    def _is_pass_of(self, reader: Reader, export: AgentExport, shown: PeerCredentials) -> bool:
        return self.is_pass_valid(export.key, reader.import_, reader.id, shown.pass_)

    def _verify_capability(
        self, export: AgentExport, import_: str, token: str | None
    ) -> capability.Capability:
        """Verify a capability.

        An expired one counts on an existing route if the broker was away since its expiry.
        """
        if not self._agent.key:
            raise CapabilityError(
                "missing", f"agent {self._agent.pe} has no key to verify one: it never registered"
            )
        verified = capability.verify(
            self._agent.key, token, reader_import=import_, export=export.key, now=None
        )
        expires = verified.expires
        is_unrenewed = expires is not None and (self._agent.broker_last_seen or 0.0) < expires
        if not (is_unrenewed and import_ in export.state.ledger.routes.policies):
            verified.check_expiry(time.time())
        return verified

    def check_filter(self, export: AgentExport, filter_: str | None) -> None:
        """Refuse new plans with a filter if the export forbids filters now.

        Raises:
            FilterForbiddenError: filters are forbidden; planned epochs can still be read.
        """
        port = self._agent.routes.find_export(port_of(export.key))
        if filter_ is not None and port is not None and not port.allow_filter:
            raise FilterForbiddenError(f"export {export.key} does not allow filters")
