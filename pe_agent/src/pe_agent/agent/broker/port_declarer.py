"""Declaration of the job's ports at the broker."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from pe_agent.agent.state.declarations import Declarations
from pe_agent.transport.broker_client import BrokerClient
from streambroker_client.errors import BrokerRefusedError
from streambroker_core.model import PeKey
from streambroker_core.wire.manifests.ports import API_VERSION

log = logging.getLogger("pe_agent")


class PortDeclarer:
    """Declares the ports of one PE, whose path at the broker is ``path``."""

    def __init__(
        self, pe: PeKey, declarations: Declarations, client: BrokerClient, path: str
    ) -> None:
        self._pe, self._declarations = pe, declarations
        self._client, self._path = client, path

    def declare_ports(self) -> None:
        """Declare all ports that the broker does not know yet; log what it refuses."""
        for name, state in list(self._declarations.by_name.items()):
            if state["told"] or (state["spec"] is None and state["schema"] is None):
                continue
            try:
                self._declare_port(name, state)
            except BrokerRefusedError as error:
                if state["spec"] is None and error.status == 404:
                    continue
                log.exception("declaration refused", extra={"port": name})
                state["differs"] = f"{error.code}: {error}"
                if error.status not in (400, 409, 422):
                    continue
            state["told"] = True
            state["redeclare"] = False
            self._declarations.save(name)

    def _declare_port(self, name: str, state: dict[str, Any]) -> None:
        """Declare a port if it does not exist; else update only the schema of its rows.

        The schema is no setting: importers are matched by it, so it must be that of the rows.
        """
        path, spec = f"{self._path}/{name}", state["spec"]
        if spec is not None:
            headers = {} if state["redeclare"] else {"If-None-Match": "*"}
            try:
                body = _build_declaration(self._pe, name, spec, state.get("owner"))
                self._client.request("PUT", path, body, headers=headers)
                state["differs"] = None
                return
            except BrokerRefusedError as error:
                if error.status != 412:
                    raise
        response = self._client.request("GET", path)
        existing = {
            k: v for k, v in response.body["spec"].items() if k not in ("job", "pe", "port")
        }
        if state["schema"] is not None and existing.get("schema") != state["schema"]:
            existing["schema"] = state["schema"]
            self._client.request(
                "PUT", path, existing, headers={"If-Match": response.headers["etag"]}
            )
        differs = "; ".join(
            f"{k} is {existing.get(k)!r}, in the code it is {v!r}"
            for k, v in sorted((spec or {}).items())
            if existing.get(k) != v
        )
        state["differs"] = differs or None
        if differs:
            log.warning(
                "resource exists and differs from the code, keeping it as it is (redeclare=True"
                " overwrites): %s: %s",
                name,
                differs,
            )


def _build_declaration(
    pe: PeKey, name: str, spec: Mapping[str, Any], owner: Mapping[str, Any] | None
) -> Mapping[str, Any]:
    if owner is None:
        return spec
    kind, _, port = name.partition("/")
    return {
        "apiVersion": API_VERSION,
        "kind": kind.capitalize(),
        "metadata": {"ownerReferences": [owner]},
        "spec": {"job": pe.job, "pe": pe.pe, "port": port, **spec},
    }
