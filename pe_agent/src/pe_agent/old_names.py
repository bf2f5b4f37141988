"""The old ``pe_agent.start``, for one more release, with its old arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pe_agent.job.arguments import ArgumentError
from pe_agent.job.settings import AgentOptions, AgentTls, BrokerAuth
from pe_agent.pe import PE
from pe_agent.pe import start as start_pe
from streambroker_core.model import DEFAULT_NAMESPACE, DEFAULT_SCOPE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def start(
    spark: SparkSession,
    *,
    job: str,
    broker: str | None = None,
    application: str | None = None,
    scope: str = DEFAULT_SCOPE,
    pe: int = 0,
    agents: int | Sequence[tuple[str, str]] = 1,
    namespace: str = DEFAULT_NAMESPACE,
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
    return start_pe(
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
