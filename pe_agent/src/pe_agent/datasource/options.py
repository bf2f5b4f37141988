"""Options of ``format("streambroker")``, checked once, with the remedy in the message."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pe_agent.datasource.packer import Packing
from pe_agent.transport import agent_tls
from pe_agent.transport.agent_client import AgentClient
from pe_agent.transport.agent_tls import AgentTrust
from streambroker_core.control.runtime.buckets import MAX_BUCKETS
from streambroker_core.control.runtime.packing import RANK_BITS
from streambroker_core.errors import StreambrokerError
from streambroker_core.model.schema import Column, to_ddl

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

SCHEMA_WAIT_SECONDS = 60.0
SOURCE_FIELD = "_source struct<job:string,port:string,stream:string,epoch:bigint>"
PACKED_ONLY = frozenset(
    {
        "columns",
        "input",
        "buckets",
        "key",
        "broadcast",
        "nulls",
        "eventtime",
        "rank",
        "mergeable",
        "apart",
        "controllog",
        "rulesfile",
    }
)
"""Options that mean nothing without ``control``."""
KNOWN = PACKED_ONLY | frozenset(
    {
        "export",
        "import",
        "agent",
        "agenttoken",
        "agentca",
        "agentcertificate",
        "agentkey",
        "agentplain",
        "maxbytesperbatch",
        "reconnect",
        "pollwait",
        "source",
        "failondataloss",
        "frame",
        "stopatend",
        "control",
        "path",
        "checkpointlocation",
        "queryname",
    }
)
"""Spark hands options over in lower case, its own among them."""


class AgentNotConfiguredError(StreambrokerError):
    """The source or sink does not know its agent."""

    code = "AgentNotConfigured"

    def __init__(self) -> None:
        super().__init__(
            "no agent is configured: create the stream with pe_agent.start(...).subscribe() or"
            " .publish(), set the options `agent` and `agentToken`, or set STREAMBROKER_AGENT and"
            " STREAMBROKER_AGENT_TOKEN in the environment before Spark starts."
        )


class OptionError(StreambrokerError):
    """An option that is unknown, missing or wrong."""

    code = "OptionInvalid"


@dataclass(frozen=True, slots=True)
class Options:
    """What one read or write was configured with.

    Attributes:
        port: name of the import or export.
        agent: ``grpc+tcp://host:port`` of the job's own agent.
        token: that agent's token.
        agent_ca: file of the certificates to trust of agents; None for that of the environment.
        agent_plain: ``allow`` for agents without TLS, too; None for what the environment says.
        agent_certificate: file of the own certificate, for agents that ask for one, and
            ``agent_key`` of its key; None for those of the environment.
        max_bytes: bytes of a micro-batch at most, or one epoch.
        reconnect: seconds for which a lost agent is tried again.
        poll_wait: seconds that ``latestOffset`` may wait for news.
        source: whether the column ``_source`` is added.
        stop_at_end: with `availableNow` the run goes on until all exports have ended.
        frame: name of the frame, by which the agent knows the queries that read it.
        lossy: loss that nobody agreed to is counted, and does not stop the query.
        packing: how rows and control tuples are packed; None for plain rows.
    """

    port: str
    agent: str
    token: str
    max_bytes: int = 256 << 20
    reconnect: float = 60.0
    poll_wait: float = 0.02
    source: bool = False
    lossy: bool = False
    frame: str | None = None
    stop_at_end: bool = False
    agent_ca: str | None = None
    agent_plain: str | None = None
    agent_certificate: str | None = None
    agent_key: str | None = None
    packing: Packing | None = None

    def trust(self) -> AgentTrust:
        """Return whose agents are called, and what they are shown."""
        own = agent_tls.shown(self.agent_certificate, self.agent_key)
        return agent_tls.trusted(self.agent_ca, self.agent_plain, own)

    @staticmethod
    def read(options: Mapping[str, str], port_option: str) -> Options:
        """Check the options of one direction.

        Args:
            options: as Spark hands them over.
            port_option: ``import`` or ``export``.

        Raises:
            OptionError: unknown, missing or wrong.
            AgentNotConfiguredError: no agent given.
        """
        given = {name.lower(): value for name, value in options.items()}
        unknown = sorted(name for name in given if name not in KNOWN)
        if unknown:
            raise OptionError(
                f"unknown option {unknown[0]!r} of format streambroker; known are"
                f" {', '.join(sorted(KNOWN - {'path', 'checkpointlocation', 'queryname'}))}."
            )
        if not given.get(port_option):
            raise OptionError(
                f"option `{port_option}` is missing: name the {port_option} port, as in"
                f' .option("{port_option}", "trades").'
            )
        agent = given.get("agent") or os.environ.get("STREAMBROKER_AGENT", "")
        if not agent:
            raise AgentNotConfiguredError
        return Options(
            port=given[port_option],
            agent=agent,
            token=given.get("agenttoken") or os.environ.get("STREAMBROKER_AGENT_TOKEN", ""),
            max_bytes=int(_number(given, "maxbytesperbatch", 256 << 20)),
            reconnect=_number(given, "reconnect", 60.0),
            poll_wait=_number(given, "pollwait", 0.02),
            source=given.get("source", "false").lower() == "true",
            frame=given.get("frame"),
            stop_at_end=_truth(given, "stopatend", False),
            lossy=not _truth(given, "failondataloss", True),
            agent_ca=given.get("agentca"),
            agent_plain=given.get("agentplain"),
            agent_certificate=given.get("agentcertificate"),
            agent_key=given.get("agentkey"),
            packing=_packing(given),
        )


class SchemaUnknownError(StreambrokerError):
    """No schema was given and no export matched in time."""

    code = "SchemaUnknown"


def schema_of(agent: AgentClient, port: str) -> str:
    """Return the columns of an import as DDL; waits for a first match.

    Raises:
        SchemaUnknownError: none came in 60 s.
    """
    deadline = time.monotonic() + SCHEMA_WAIT_SECONDS
    while time.monotonic() < deadline:
        ddl = agent.call("schema", port=port, wait=2.0)["ddl"]
        if ddl is not None:
            return str(ddl)
    raise SchemaUnknownError(
        f"import {port} has no match after {SCHEMA_WAIT_SECONDS:.0f} s, so its columns are not"
        " known. Start the exporter first, or give them with schema=."
    )


def ddl_of(schema: StructType) -> str:
    """Return a Spark schema as the DDL that manifests store."""
    return to_ddl(tuple(Column(f.name, f.dataType.simpleString()) for f in schema.fields))


def _packing(given: Mapping[str, str]) -> Packing | None:
    """Return how an import with ``control`` is packed.

    Raises:
        OptionError: an option is wrong, or means nothing without ``control``.
    """
    if not _truth(given, "control", False):
        alone = sorted(PACKED_ONLY & set(given))
        if alone:
            raise OptionError(
                f"option `{alone[0]}` is for rows that are packed for an operator: it needs"
                " `control` true."
            )
        return None
    mergeable = [one.strip() for one in given.get("mergeable", "").split(",")]
    return Packing(
        columns=given.get("columns", ""),
        input=given.get("input", "in"),
        buckets=_whole(given, "buckets", 64, 1, MAX_BUCKETS),
        key=given.get("key", ""),
        broadcast=_truth(given, "broadcast", False),
        nulls=_truth(given, "nulls", False),
        event_time=given.get("eventtime"),
        rank=_whole(given, "rank", 0, 0, (1 << RANK_BITS) - 1),
        mergeable=tuple(one for one in mergeable if one),
        apart=_truth(given, "apart", False),
        log=_truth(given, "controllog", False),
        rules=given.get("rulesfile"),
    )


def _whole(given: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = given.get(name, str(default))
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
    if not least <= value <= most:
        raise OptionError(
            f"option `{name}` is {text!r}; it has to be a whole number from {least} to {most}."
        )
    return value


def _truth(given: Mapping[str, str], name: str, default: bool) -> bool:
    text = given.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise OptionError(f"option `{name}` is {text!r}; it has to be true or false.")
    return text == "true"


def _number(given: Mapping[str, str], name: str, default: float) -> float:
    text = given.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e15:
        raise OptionError(f"option `{name}` is {text!r}; it has to be a number above 0.")
    return value
