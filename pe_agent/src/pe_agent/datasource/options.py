"""Options of ``format("streambroker")``, checked once, with the remedy in the message."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pe_agent.datasource.packer import Packing
from pe_agent.transport import agent_tls
from pe_agent.transport.agent_client import TOKEN_VARIABLE, AgentClient, send
from pe_agent.transport.agent_tls import AgentTrust
from streambroker_core.control.runtime.buckets import MAX_BUCKETS
from streambroker_core.control.runtime.packing import RANK_BITS
from streambroker_core.errors import StreambrokerError
from streambroker_core.model.schema import Column, nested_name, to_ddl
from streambroker_core.wire.agent_rpc.job import GetView
from streambroker_core.wire.agent_rpc.reader import GetSchema
from streambroker_core.wire.encoding.start import START_FORMS, is_start

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

log = logging.getLogger("pe_agent")
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
        "slots",
    }
)
"""Options that mean nothing without ``control``."""
BATCH_ONLY = frozenset({"start", "end", "filter", "pushfilters"})
"""Options of batch reads."""
OPTION_NAMES = (PACKED_ONLY | BATCH_ONLY) | frozenset(
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
"""All options in lower case, as Spark passes them, including options of Spark itself."""


class AgentNotConfiguredError(StreambrokerError):
    """The source or sink does not know its agent."""

    code = "AgentNotConfigured"

    def __init__(self) -> None:
        super().__init__(
            "no agent is configured: create the stream with streambroker.start(...).subscribe() or"
            " .publish(), set the options `agent` and `agentToken`, or set STREAMBROKER_AGENT and"
            " STREAMBROKER_AGENT_TOKEN in the environment before Spark starts."
        )


class OptionError(StreambrokerError):
    """An option that is unknown, missing or wrong."""

    code = "OptionInvalid"


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one read or write.

    Attributes:
        port: name of the import or export.
        agent: ``grpc+tcp://host:port`` of the job's own agent.
        token: that agent's token.
        agent_ca: file with the CA certificates of agents; None for that of the environment.
        agent_plain: ``allow`` to call agents without TLS, too; None for the environment's setting.
        agent_certificate: file of the own certificate, for agents that require one; ``agent_key``
            is the file of its key. None for those of the environment.
        max_bytes: maximum bytes of a micro-batch; a single epoch may exceed it.
        reconnect: seconds for which an unreachable agent is retried.
        poll_wait: seconds that ``latestOffset`` may wait for new data.
        source: whether to add the column ``_source``.
        stop_at_end: with `availableNow` the run continues until all exports have ended.
        frame: name of the frame, by which the agent identifies the queries that read it.
        skip_lost: count unexpected data loss instead of stopping the query.
        packing: how rows and control tuples are packed; None for plain rows.
    """

    port: str
    agent: str
    token: str
    max_bytes: int = 256 << 20
    reconnect: float = 60.0
    poll_wait: float = 0.02
    source: bool = False
    skip_lost: bool = False
    frame: str | None = None
    stop_at_end: bool = False
    agent_ca: str | None = None
    agent_plain: str | None = None
    agent_certificate: str | None = None
    agent_key: str | None = None
    packing: Packing | None = None

    def trust(self) -> AgentTrust:
        """Return the trusted CA of agents, and the own certificate for them."""
        own = agent_tls.resolve_certificate(self.agent_certificate, self.agent_key)
        return agent_tls.resolve_agent_trust(self.agent_ca, self.agent_plain, own)

    @staticmethod
    def read(options: Mapping[str, str], port_option: str) -> Options:
        """Parse and check Spark's options; ``port_option`` is ``import`` or ``export``."""
        lowered = {name.lower(): value for name, value in options.items()}
        unknown = sorted(name for name in lowered if name not in OPTION_NAMES)
        if unknown:
            raise OptionError(
                f"unknown option {unknown[0]!r} of format streambroker; known are"
                f" {', '.join(sorted(OPTION_NAMES - {'path', 'checkpointlocation', 'queryname'}))}."
            )
        if not lowered.get(port_option):
            raise OptionError(
                f"option `{port_option}` is missing: name the {port_option} port, as in"
                f' .option("{port_option}", "trades").'
            )
        agent = lowered.get("agent") or os.environ.get("STREAMBROKER_AGENT", "")
        if not agent:
            raise AgentNotConfiguredError
        return Options(
            port=lowered[port_option],
            agent=agent,
            token=lowered.get("agenttoken") or os.environ.get(TOKEN_VARIABLE, ""),
            max_bytes=int(_read_number(lowered, "maxbytesperbatch", 256 << 20)),
            reconnect=_read_number(lowered, "reconnect", 60.0),
            poll_wait=_read_number(lowered, "pollwait", 0.02),
            source=lowered.get("source", "false").lower() == "true",
            frame=lowered.get("frame"),
            stop_at_end=_read_bool(lowered, "stopatend", False),
            skip_lost=not _read_bool(lowered, "failondataloss", True),
            agent_ca=lowered.get("agentca"),
            agent_plain=lowered.get("agentplain"),
            agent_certificate=lowered.get("agentcertificate"),
            agent_key=lowered.get("agentkey"),
            packing=_read_packing(lowered),
        )


@dataclass(frozen=True, slots=True)
class BatchRange:
    """What a batch read reads.

    Attributes:
        start, end: as the start of an import.
        filter: narrows that of the import.
        push_filters: take filters of Spark, whose setting for it has to be on.
    """

    start: str = "earliest"
    end: str = "latest"
    filter: str | None = None
    push_filters: bool = False

    @staticmethod
    def read(options: Mapping[str, str]) -> BatchRange:
        """Parse and check Spark's options."""
        lowered = {name.lower(): value for name, value in options.items()}
        if _read_bool(lowered, "control", False):
            raise OptionError("option `control` is for a readStream; a batch read has rows alone.")
        given = {name: lowered[name] for name in ("start", "end", "filter") if name in lowered}
        for name in ("start", "end"):
            if not is_start(given.get(name, "latest")):
                raise OptionError(
                    f"option `{name}` is {given[name]!r}; it has to be {START_FORMS}."
                )
        return BatchRange(**given, push_filters=_read_bool(lowered, "pushfilters", False))

    @staticmethod
    def check_absent(options: Mapping[str, str]) -> None:
        """Raise OptionError if an option of a stream is one of batch reads."""
        for name in options:
            if name.lower() in BATCH_ONLY:
                raise OptionError(
                    f"option `{name}` is for spark.read; a readStream has that of its import."
                )


class SchemaUnknownError(StreambrokerError):
    """No schema was passed and no export matched in time."""

    code = "SchemaUnknown"


def fetch_schema(agent: AgentClient, port: str) -> str:
    """Return an import's columns as DDL; raise SchemaUnknownError without a match after 60 s."""
    deadline, warned = time.monotonic() + SCHEMA_WAIT_SECONDS, False
    while time.monotonic() < deadline:
        ddl = send(agent, GetSchema(port=port, wait=2.0)).ddl
        if ddl is not None:
            return ddl
        if not warned:
            log.warning(
                "import %s has no match yet. Its columns are those of the first match, awaited for"
                " %.0f s; `streambroker explain` shows why no export matches",
                port,
                SCHEMA_WAIT_SECONDS,
            )
            warned = True
    raise SchemaUnknownError(
        f"import {port} has no match after {SCHEMA_WAIT_SECONDS:.0f} s, so its columns are not"
        f" known.{_refusal(agent, port)} Start the exporter first, or pass schema=."
    )


def _refusal(agent: AgentClient, port: str) -> str:
    """Return a sentence about an export that fits but is refused; empty if there is none."""
    view = send(agent, GetView()).view or {}
    refused = view.get("imports", {}).get(port, {}).get("refused", ())
    return "".join(f" Export {r['export']} is refused: {r['message']}" for r in refused[:1])


def format_ddl(schema: StructType) -> str:
    """Return a Spark schema as the DDL that manifests store."""
    return to_ddl(tuple(Column(f.name, _format_type(f.dataType)) for f in schema.fields))


def _format_type(kind: Any) -> str:
    """Return a type's ``simpleString``, with backquotes where fields of structs need them."""
    match kind.typeName():
        case "struct":
            fields = (f"{nested_name(f.name)}:{_format_type(f.dataType)}" for f in kind.fields)
            return f"struct<{','.join(fields)}>"
        case "array":
            return f"array<{_format_type(kind.elementType)}>"
        case "map":
            return f"map<{_format_type(kind.keyType)},{_format_type(kind.valueType)}>"
        case _:
            text: str = kind.simpleString()
            return text


def _read_packing(options: Mapping[str, str]) -> Packing | None:
    """Return how an import is packed; raise OptionError if one is wrong or needs ``control``."""
    if not _read_bool(options, "control", False):
        alone = sorted(PACKED_ONLY & set(options))
        if alone:
            raise OptionError(
                f"option `{alone[0]}` is for rows that are packed for an operator: it needs"
                " `control` true."
            )
        return None
    mergeable = [one.strip() for one in options.get("mergeable", "").split(",")]
    return Packing(
        columns=options.get("columns", ""),
        input=options.get("input", "in"),
        buckets=_read_int(options, "buckets", 64, 1, MAX_BUCKETS),
        key=options.get("key", ""),
        broadcast=_read_bool(options, "broadcast", False),
        nulls=_read_bool(options, "nulls", False),
        event_time=options.get("eventtime"),
        rank=_read_int(options, "rank", 0, 0, (1 << RANK_BITS) - 1),
        mergeable=tuple(one for one in mergeable if one),
        unpacks_rows=_read_bool(options, "apart", False),
        log=_read_bool(options, "controllog", False),
        rules=options.get("rulesfile"),
        slots=_read_bool(options, "slots", False),
    )


def _read_int(
    options: Mapping[str, str], name: str, default: int, lowest: int, highest: int
) -> int:
    text = options.get(name, str(default))
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
    if not lowest <= value <= highest:
        raise OptionError(
            f"option `{name}` is {text!r}; it has to be a whole number from {lowest} to {highest}."
        )
    return value


def _read_bool(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise OptionError(f"option `{name}` is {text!r}; it has to be true or false.")
    return text == "true"


def _read_number(options: Mapping[str, str], name: str, default: float) -> float:
    text = options.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e15:
        raise OptionError(f"option `{name}` is {text!r}; it has to be a number above 0.")
    return value
