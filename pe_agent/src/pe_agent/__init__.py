"""The agent and the Spark data source of streambroker; jobs import ``streambroker``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from pathlib import Path

    from pyspark.sql import SparkSession

    from pe_agent.pe import PE as PE

_DEPRECATED = {
    "Failure": "pe_agent.spark.query_failure",
    "PE": "pe_agent.pe",
    "cause": "pe_agent.spark.query_failure",
    "start": "pe_agent",
}
__all__ = list(_DEPRECATED)


def __getattr__(name: str) -> Any:
    """Import an old name, with a warning."""
    if name == "functions":
        import importlib

        return importlib.import_module("pe_agent.functions")
    from streambroker_core.deprecation import deprecated_name, warn_deprecated

    if name == "start":
        warn_deprecated("pe_agent.start", "streambroker.start", stacklevel=3)
        return _start
    return deprecated_name(__name__, name, _DEPRECATED, "streambroker")


def _start(
    spark: SparkSession,
    *,
    job: str,
    broker: str | None = None,
    application: str | None = None,
    scope: str = "Default",
    pe: int = 0,
    agents: int | Sequence[tuple[str, str]] = 1,
    namespace: str = "default",
    data_dir: str | Path | None = None,
    linger: float = 60.0,
    host: str = "127.0.0.1",
    port: int = 0,
    hint_port: int = 0,
    token: str | None = None,
    token_file: str | Path | None = None,
    broker_ca: str | Path | None = None,
    agent_certificate: str | Path | None = None,
    agent_key: str | Path | None = None,
    agent_ca: str | Path | None = None,
    agent_clients: str | None = None,
    insecure: bool | None = None,
    owner: Mapping[str, str] | None = None,
) -> PE:
    """Deprecated: use ``streambroker.start``.

    Raises:
        ArgumentError: ``agents`` is not 1.
    """
    from pe_agent.job.arguments import ArgumentError
    from pe_agent.job.settings import AgentOptions, AgentTls, BrokerAuth
    from pe_agent.pe import start

    if agents != 1:
        raise ArgumentError(
            f"agents={agents!r}: the exports of a job have one agent. Let its tasks write to a"
            " bucket: streambroker.start(…, storage=…) and publish(…, durability='stored')."
        )
    certificates = AgentTls(
        certificate=agent_certificate,
        key=agent_key,
        ca=agent_ca,
        clients=agent_clients,
        insecure=insecure,
    )
    return start(
        spark,
        job=job,
        broker=broker,
        application=application,
        scope=scope,
        namespace=namespace,
        pe=pe,
        data_dir=data_dir,
        linger=linger,
        auth=BrokerAuth(token=token, token_file=token_file, ca=broker_ca),
        agent=AgentOptions(host=host, port=port, hint_port=hint_port, tls=certificates),
        owner=owner,
    )


_MOVED = {
    "pe_agent.aligned.control_file": "pe_agent.log.control_file",
    "pe_agent.aligned.operators": "pe_agent.streams.stream",
    "pe_agent.aligned.streams": "pe_agent.streams.stream",
    "pe_agent.broker_client": "pe_agent.transport.broker_client",
    "pe_agent.causes": "pe_agent.spark.query_failure",
    "pe_agent.cep.directory": "pe_agent.cep.discovery.polling",
    "pe_agent.cep.http": "pe_agent.cep.discovery.polling",
    "pe_agent.cep.manager": "pe_agent.cep.discovery.manager",
    "pe_agent.cep.processors": "pe_agent.cep.query_rules",
    "pe_agent.cep.row_patterns": "pe_agent.streams.old_names",
    "pe_agent.cep.streams": "pe_agent.streams.old_names",
    "pe_agent.cep.table": "pe_agent.cep.discovery.polling",
    "pe_agent.flight_errors": "pe_agent.transport.flight_errors",
    "pe_agent.local": "pe_agent.spark.local_session",
    "pe_agent.ports": "pe_agent.job.ports",
    "pe_agent.side.inputs": "pe_agent.streams.side_input",
    "pe_agent.side.joins": "pe_agent.streams.side_inputs",
    "pe_agent.side.stateless": "pe_agent.streams.side_inputs",
    "pe_agent.tokens": "pe_agent.transport.tokens",
}


class _OldNames:
    """Finds modules by their old names; imports the loader only when one is used."""

    @staticmethod
    def find_spec(name: str, _path: Sequence[str] | None, _target: Any = None) -> ModuleSpec | None:
        if name not in _MOVED:
            return None
        from streambroker_core.deprecation import moved_spec

        return moved_spec(name, _MOVED[name])


sys.meta_path.append(_OldNames)
