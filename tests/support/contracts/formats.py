"""One example of each format that processes exchange or keep, made of fixed input.

Bytes that are text are shown as text, those of Arrow as schema and rows, all others in
hexadecimal. So an example does not depend on the release of Arrow or of a compression library.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import sqlite3
import struct
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from pe_agent.agent.exports import read_grant as grants
from pe_agent.agent.exports import state_codec as claims
from pe_agent.agent.exports.stream.delivery_counts import ReaderDelivery as Delivered
from pe_agent.agent.exports.stream.manifests import (
    Block,
    Manifest,
    ManifestControl,
    Stage,
)
from pe_agent.agent.state.control_log import ControlLog
from pe_agent.agent.state.route_table import RouteTable
from pe_agent.agent.state.store import Store as AgentStore
from pe_agent.aligned.file_ends import EndOfFile
from pe_agent.aligned.runtime import progress_messages as notes
from pe_agent.aligned.runtime.state_store import BucketState, GroupState, write_groups
from pe_agent.aligned.timeout_ticks import TickPlan
from pe_agent.log.commit import Committer
from pe_agent.log.control_file import ControlFile
from pe_agent.log.frames import Address, Kind
from pe_agent.log.log import StreamLog
from pe_agent.side.tables import pins, versions
from streambroker_core.board import AgentRegistered
from streambroker_core.cep import Pattern
from streambroker_core.cep.engine.active_rule import Metrics
from streambroker_core.cep.engine.metrics import RuleMetrics, WindowMetrics
from streambroker_core.cep.operator import PatternOperator, PatternRules, RuleStopped
from streambroker_core.cep.pattern.rule import PatternProcessor
from streambroker_core.cep.rules.rule_set import RuleContext, RuleSet
from streambroker_core.control.operators.keyed_state import KeyedState, time_key
from streambroker_core.control.runtime import packing
from streambroker_core.control.runtime.buckets import Layout, bucket_for_key
from streambroker_core.control.tuples import (
    ControlTuple,
    Delivery,
    SideTick,
    Target,
    envelope,
    make_logged_tuple,
    payloads,
)
from streambroker_core.control.tuples import epoch_control as placing
from streambroker_core.control.tuples.request import ControlRequest
from streambroker_core.control.tuples.window_bounds import make_control_head
from streambroker_core.diagnose.forecast import ProposalProblem as ForecastProblem
from streambroker_core.errors import SubscriptionError
from streambroker_core.expression import parse
from streambroker_core.ledger import retention
from streambroker_core.ledger.offset import Offset, PinnedRules, Position
from streambroker_core.ledger.publisher import Published, Publisher
from streambroker_core.model import PeKey, Rule
from streambroker_core.side import (
    Enrich,
    SideComplete,
    SideInput,
    SideJoin,
    SideOperator,
    SideRefresh,
    SideVersion,
)
from streambroker_core.side.state.input_state import Tally
from streambroker_core.side.state.waiting_rows import _StallCounts
from streambroker_core.wire.agent_rpc.job import RulesMetrics
from streambroker_core.wire.broker import agent_commands as command
from streambroker_core.wire.broker import (
    capability,
    hints,
    key_exchange,
    problem,
    registration,
    view,
)
from streambroker_core.wire.broker import ended_exports as ends
from streambroker_core.wire.broker import request_signature as signature
from streambroker_core.wire.manifests import ports as manifest
from streambroker_core.wire.manifests import rules
from streambroker_core.wire.reports import rule_metrics as rule_figures
from streambroker_core.wire.reports import rule_status as rule_reports
from streambroker_core.wire.reports import side_status as side_reports
from streambroker_operator.kubernetes.client.kubeconfig import Access
from streambroker_operator.rest.guard.rate_limits import RateLimits as RestLimits
from streambroker_operator.storage.sqlite_store import Store as BrokerStore
from support.aligned.runner import Through
from support.core.resources import board_of, export_of, import_of, pe
from support.core.resources import registration as registered
from support.patterns.cases import compiled
from support.patterns.windows import Buckets

KEY = bytes(range(32))
NOW = 1_700_000_000
AGENT = PeKey(namespace="default", job="feed", pe=0)
INSTANCE = "0123456789abcdef"
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
COLUMNS = [{"name": "price", "type": "double"}, {"name": "sizes", "type": "array<int>"}]


def shown(data: bytes) -> Any:
    """Return bytes as JSON-like data: text, an Arrow stream as schema and rows, or hexadecimal."""
    with suppress(pa.ArrowException, OSError), pa.ipc.open_stream(data) as reader:
        return table(reader.read_all())
    with suppress(pa.ArrowException, OSError, EOFError):
        message = pa.ipc.read_message(pa.py_buffer(data).slice(8))
        return f"{data[:8].hex()} {message.type} {message.body.to_pybytes().hex(' ', -8)}"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return data.hex(" ", -8)
    return text if text.isprintable() else data.hex(" ", -8)


def table(of: pa.Table | pa.RecordBatch) -> dict[str, Any]:
    metadata = {k.decode(): v.decode() for k, v in sorted((of.schema.metadata or {}).items())}
    return {
        "schema": columns(of.schema),
        "metadata": metadata,
        "rows": [
            {k: shown(v) if isinstance(v, bytes) else str(v) for k, v in row.items()}
            for row in of.to_pylist()
        ],
    }


POLICIES = [
    {"for": {"namespace": "lab", "job": "alerts"}, "filter": "price > 1.0", "columns": ["price"]},
    {"mask": [{"column": "price", "with": "constant", "value": "0.5"}]},
]


def columns(schema: pa.Schema) -> list[str]:
    return [f"{one.name}: {one.type}{'' if one.nullable else ' not null'}" for one in schema]


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


# ---- between broker and agents ---------------------------------------------------------------


def whole_view() -> view.View:
    """Return a view with all that a view can have."""
    board = board_of(
        export_of(
            "feed/out",
            schema=COLUMNS,
            buffer={"maxAge": "1h", "waitLimit": "90s"},
            archive={"maxBytes": "1Ti", "maxAge": "7d"},
            policies=POLICIES,
        ),
        export_of("feed/named", streamId="s", allowFilter=False, revoked=["lab/alerts"]),
        import_of("feed/in", filter="price > 1.0", start="earliest"),
        import_of("feed/by-name", streams=[{"applicationName": "a", "streamId": "s"}]),
        import_of("feed/refused", filter="size > 1"),
    )
    board.handle(AgentRegistered(pe=pe("feed"), registration=registered()))
    made = board.reader.view(pe("feed"))
    assert made is not None
    return view.with_capabilities(made, lambda key, route: f"{key}>{route.export}")


def rule() -> Rule:
    spec = {"job": "alerts", "version": 2, "pattern": {"stages": []}, "enable": 3}
    return rules.read_rule_spec(spec, name="spike")


def encoded_view() -> dict[str, Any]:
    return view.encode(whole_view())


def manifests() -> dict[str, Any]:
    export = export_of(
        "feed/trades", uid="u-1", created=NOW, schema=COLUMNS, allowedNamespaces=["lab"],
        revoked=["lab/alerts"], buffer={"maxBytes": "1Gi", "maxAge": "1h", "waitLimit": "90s"},
        properties={"kind": "trade", "level": 3, "price": 0.5, "open": True, "tags": ["a", "b"]},
        congestionPolicy="drop", application={"name": "app", "scope": "Team"},
        archive={"maxBytes": "1Ti", "maxAge": "7d"}, description="Trades", owner="team-a",
        tags=["gold"], columnComments={"price": "in USD"}, policies=POLICIES,
        policyDefault="deny",
    )  # fmt: skip
    return {
        "export": manifest.write_manifest(export, version=7),
        "export by name": manifest.write_manifest(export_of("feed/named", streamId="s")),
        "import": manifest.write_manifest(import_of("alerts/in", filter="price > 1.0")),
        "import by name": manifest.write_manifest(
            import_of("alerts/by-name", streams=[{"applicationName": "a", "streamId": "s"}])
        ),
        "rule": rules.write_rule_manifest(dataclasses.replace(rule(), uid="u-2"), version=8),
    }


def agent_and_broker() -> dict[str, Any]:
    """Return the messages between an agent and a broker, beside views."""
    one = registration.Registration(
        instance=INSTANCE, location="grpc+tcp://127.0.0.1:4711", hint="127.0.0.1:9"
    )
    sides = [
        registration.Exchange(
            private=private,
            public=key_exchange.public_key(private),
            purpose=registration.key_purpose(AGENT, INSTANCE),
        )
        for private in (KEY, KEY[::-1])
    ]
    answer = registration.RegistrationReply(key=registration.derive_key(KEY, AGENT, INSTANCE))
    asked = command.AgentCommand(id="0" * 32, action="export.emit", text='{"request":"r"}')
    done = command.CommandResult(id="0" * 32, answer={"id": "log/1"})
    refused = command.CommandResult(id="1" * 32, code="ExportFull", detail="No room.")
    stall = side_reports.SideStall(cause="no data", rows=2, since=5)
    side = side_reports.SideStatus(operator="join", input="rates", keyed=True, stalls=(stall,))
    of_rule = rule_figures.RuleMetricsReport(
        operator="find", log="l", rule="r", version=1, tested=9
    )
    waiting = rule_figures.WatermarkWait(operator="find", log="l", rows=1, first=2, watermark=3)
    one_rule = rule_reports.RuleStatus(
        version=2, state="active", since=1, buckets=2, of=2, matches=3, errors=1
    )
    return {
        "registration": registration.encode_request(one, sides[0], "proof"),
        "answer": registration.encode_answer(answer),
        "sealed answer": registration.encode_answer(answer, sides[1], sides[0].public),
        "tag": registration.registration_tag(KEY, one),
        "proof": registration.hint_proof(KEY, AGENT, one, hour=5),
        "errands": command.encode_commands([asked]),
        "done": command.encode_results([done, refused]),
        "ended": ends.encode(ends.EndedExports(ports=frozenset({"b", "a"}), more=True)),
        "rules told": rule_reports.write_statuses({"r": one_rule}),
        "side told": side_reports.write_side(side),
        "rule figures": rule_figures.write_metrics(of_rule),
        "rows that wait for the watermark": rule_figures.write_metrics(waiting),
    }


def signed() -> dict[str, Any]:
    """Return what is signed: a hint, capabilities, a request, a grant and a pass."""
    ports: dict[str, Any] = {"reader_import": "default/alerts/0/in", "export": "default/feed/0/out"}
    grant = grants.Grant(
        export=ports["export"], reader="r", ranges={"s": (1, 3)}, filter="a > 1", columns=("a",)
    )
    hint = hints.encode(KEY, str(AGENT), "etag", (7, 9))
    return {
        "hint": {"bytes": hint.hex(" ", -8), "point": hints.point_text((7, 9))},
        "capability": capability.sign(KEY, filter_allowed=True, policy="wait", **ports),
        "capability for an export with policies": capability.sign(
            KEY, filter_allowed=True, policy="wait", policed=True, **ports
        ),
        "capability that ends": capability.sign(
            KEY,
            filter_allowed=False,
            policy="drop",
            expires=capability.compute_expiry(NOW),
            **ports,
        ),
        "request": signature.sign(
            KEY, agent=AGENT, instance=INSTANCE, method="PUT", path="/api/x?a=b", body=b"{}",
            time_us=NOW * 1_000_000,
        ),
        "grant": grants.sign("token", grant),
    }  # fmt: skip


def problems() -> dict[str, Any]:
    try:
        parse("a ==", "subscription")
    except SubscriptionError as error:
        refused = problem.encode(problem.from_error(error, 422))
    plain = problem.Problem(status=409, code="NameTaken", detail="It is taken.", facts={"x": 1})
    return {"expression": refused, "plain": problem.encode(plain)}


# ---- what agents keep ------------------------------------------------------------------------


def offsets() -> dict[str, Any]:
    """Return offsets in the order of keys in which Spark has them as text."""
    plain = Offset(
        reader="r", filter="a > 1", columns=("a", "b"), control={"log": 2}, dropped={"s": (1, 10)},
        streams={"t": Position(from_=0, next=1), "s": Position(from_=3, next=7)},
        last={"default/feed/0/out": ("query", 4), "default/feed/0/none": None},
        lost={"s": (2, None)},
    )  # fmt: skip
    pinned = PinnedRules(log="rules", next=3, relevant="n == 1", own="a > 1")
    return {
        "empty": Offset().encode(),
        "plain": plain.encode(),
        "with rules": dataclasses.replace(plain, rules=pinned).encode(),
    }


def segment() -> dict[str, Any]:
    """Return segments and index of a log, and the metas of an export's frames."""
    control = ManifestControl(
        head=make_control_head(5, [tuple_()]), query_tuples=1, emitted=("log", 4)
    )
    at = Address(1, 32, 96)
    plain = Manifest(
        epoch=5, query="q", run="u", batch=4, rows=9, bytes=96, published=float(NOW), ddl="a int",
        rows_before=20, blocks=(Block(at, 9),),
    )  # fmt: skip
    traced = dataclasses.replace(plain, traceparent=TRACEPARENT)
    stage = Stage(id="g", stream="s", query="q", run="u", batch=4, rows=9, crc=1)
    stage.blocks.append(Block(at, 9))
    metas = {
        "manifest, version 1": plain.encode(),
        "manifest after missing batches": dataclasses.replace(plain, gap=2).encode(),
        "manifest, version 3": dataclasses.replace(plain, control=control).encode(),
        "stage end": stage.encode_end(),
    }
    with folder() as place:
        committer = Committer(threads=1)
        log = StreamLog.open(place / "log", segment_bytes=200, committer=committer)
        for number, meta in enumerate(metas.values()):
            log.append(list(Kind)[number], meta, bytes([number] * 8))
        log.sync()
        log.close()
        committer.close()
        files = {path.name: path.read_bytes() for path in sorted((place / "log").iterdir())}
    return {
        "metas": {
            **{name: meta.decode() for name, meta in metas.items()},
            "manifest with a trace": traced.encode().decode(),
        },
        "summary of a stage": stage.summary(),
        "files": {
            name: _index(data) if name.endswith(".index") else _parts(data)
            for name, data in files.items()
        },
    }


def _parts(data: bytes) -> dict[str, str]:
    """Return what is not room that is filled with zeros, by its offset."""
    found = re.finditer(rb"[^\0](?:\0{0,63}[^\0])*", data, re.DOTALL)
    return {str(one.start()): one[0].hex(" ", -8) for one in found}


def _index(data: bytes) -> list[str]:
    """Return the runs of an index unpacked: how zlib packs differs between its releases."""
    found = []
    while data:
        size = struct.unpack_from("<I", data, 12)[0]
        head, body, data = data[:64], data[64 : 64 + size], data[64 + size :]
        constant = head[:4] + head[8:12] + head[16:]  # without checksum and packed size
        found.append(f"{constant.hex(' ', -8)} | {zlib.decompress(body).hex(' ', -8)}")
    return found


def agent_tables() -> dict[str, Any]:
    """Return the tables of an agent's SQLite file, and the rows that hold more than a number."""
    publisher = Publisher(export="default/feed/0/out", query="q", schema="a int", runs={"u": 1})
    publisher.last = Published(batch=4, rows=9, schema="a int", control=1)
    publisher.earlier, publisher.aborted = {"p": publisher.last}, ("u", 5)
    reader = retention.Reader(id="r", import_="default/alerts/0/in", policy="wait", start="latest",
        lease_expires=0.0, cursors={"s": retention.Cursor(next=1, planned=(1, 3))}, resume={"s": 1},
    )  # fmt: skip
    with folder() as place:
        store = AgentStore(place / "state.sqlite")
        store.set("control_log", "log")
        state = claims.encode_publisher(publisher, lease_released=False)
        store.write(
            "INSERT OR REPLACE INTO publishers VALUES (?, ?)", publisher.export, json.dumps(state)
        )
        request = {"type": "T", "payload": {"a": 1}, "delivery": "BEGIN"}
        ControlLog(store, lambda: None).append("request", request)
        kept = {
            name: store.query(f"SELECT * FROM {name}") for name in ("publishers", "control_log")
        }
        store.close()
        schema = _schema(place / "state.sqlite")
    delivery = Delivered(pending={"s": (1, 2, 3, 0, 0, 0, 0)})
    return {
        **schema,
        "rows": kept,
        "state of a reader": msgspec.to_builtins(claims.encode_reader(reader, delivery)),
    }


def broker_tables() -> dict[str, Any]:
    """Return the tables of a broker's SQLite file, and a resource and a rule in them."""
    with folder() as place:
        store = BrokerStore(place / "broker.db", clock=lambda: float(NOW), new_uid=lambda: "u-1")
        store.ports.put(export_of("feed/out", schema=COLUMNS))
        asyncio.run(store.put_rule(rule()))
        store.close()
        found = _schema(place / "broker.db")
        with sqlite3.connect(place / "broker.db") as db:
            found["rows"] = {
                name: db.execute(f"SELECT * FROM {name}").fetchall()
                for name in ("resources", "pes", "rules")
            }
        db.close()
    return found


def _schema(path: Path) -> dict[str, Any]:
    with sqlite3.connect(path) as db:
        found = db.execute("SELECT sql FROM sqlite_master WHERE sql NOT NULL ORDER BY name")
        tables = [" ".join(sql.split()) for (sql,) in found]
        version = db.execute("PRAGMA user_version").fetchone()[0]
        names = db.execute("SELECT name FROM meta ORDER BY name").fetchall()
        known = db.execute("SELECT value FROM meta WHERE name = 'format'").fetchall()
    db.close()
    return {
        "tables": tables,
        "user_version": version,
        "names in meta": [name for (name,) in names],
        "format in meta": [value for (value,) in known],
    }


def route_file() -> str:
    """Return the file that keeps an agent's routes."""
    with folder() as place:
        RouteTable(place / "routes.json").apply(whole_view())
        return (place / "routes.json").read_text()


# ---- control and state -----------------------------------------------------------------------


def tuple_(**more: Any) -> ControlTuple:
    return make_logged_tuple("log", 3, type_="Factor", text='{"f":2}', **more)


def control_tuples() -> dict[str, Any]:
    timed = tuple_(
        delivery=Delivery.AT_TIME, at=7, target=Target(operator="op", bucket=1, key=("a", 1))
    )
    said = [
        PatternRules(rules={"a": 1}), RuleStopped(rule="r", version=1), SideTick(1),
        SideComplete(input="rates", version="v1"), SideVersion(input="rates", version="v1"),
        SideRefresh(input="rates"),
    ]  # fmt: skip
    held: list[notes.ProgressMessage] = [
        notes.WatermarkUpdate(operator="op", watermark=5),
        notes.WatermarkHold(operator="op", bucket=1, at=None),
        notes.LatestEventTime(port="in", at=6),
    ]  # fmt: skip
    with folder() as place:
        (place / "control").write_text('{"log":"file-1","v":1}\n')
        ControlFile(place / "control").append(SideTick(1), delivery="BEGIN")
        lines = (place / "control").read_text().splitlines()
    return {
        "json": [envelope.encode(tuple_()), envelope.encode(timed)],
        "asked for": ControlRequest(
            type="T", text="[1]", delivery=Delivery.BEGIN, target=timed.target
        ).encode(),
        "of an epoch": placing.encode([(0, tuple_()), (9, timed)]).decode(),
        "payloads": [list(payloads.encode(one)) for one in said],
        "notes": notes.encode(held).decode(),
        "control file": lines,
        "plan of ticks": dataclasses.asdict(TickPlan(seconds=0.5, due=7)),
    }


def packed_rows() -> dict[str, Any]:
    """Return packed rows, packed control tuples, and where keys are hashed to."""
    kinds = (("k", pa.int64()), ("t", pa.string()))
    layout = Layout(port="in", buckets=8, key=kinds)
    rows = pa.RecordBatch.from_pydict({"k": [1, 2, 3], "t": ["a", "b", None], "v": [0.5, 1.5, 2.5]})
    nulls = dataclasses.replace(layout, nulls=True)
    return {
        "layout": layout.text(),
        "rows": table(packing.pack(rows, nulls, packing.sequence(rank=1, part=2, number=3))),
        "control": table(packing.pack_control([(4, tuple_())], "in", 1)),
        "watermark": table(packing.pack_watermark(9)),
        "buckets of keys": [bucket_for_key((n, "abc"[n % 3]), layout) for n in range(16)],
    }


def operator_state() -> dict[str, Any]:
    """Return the state of a bucket: the runtime's own value, and keyed state."""
    keyed = KeyedState("keys")
    keyed.put(time_key(-5) + b"a", b"one")
    keyed.put(b"b", b"two")
    own = BucketState(
        wake_at=1, held_at=2, last_watermark=3, watermarks={"op": 4}, holds={"op.1": 5},
        blobs={"~meta": b"{}"}, input_times={"in": [6, 7]},
    )  # fmt: skip
    group = GroupState(None, "op", None)
    group.bucket(3).blobs, group.bucket(3).wake_at = {"~meta": b"{}", "small": b"s"}, 7
    group.bucket(5).large = {"pages"}
    slot = group.changed() or b""
    following = GroupState(None, "next", None, "next/")
    following.bucket(3).blobs = {"small": b"n"}
    return {
        "own": own.write().hex(" ", -8),
        "slot": slot.hex(" ", -8),
        "hop": (write_groups([group, following], ["op", "next"], None) or b"").hex(" ", -8),
        "keyed": _blobs(keyed.changes()),
    }


def _blobs(blobs: Mapping[str, bytes | None]) -> dict[str, Any]:
    return {name: None if data is None else shown(data) for name, data in sorted(blobs.items())}


def pattern_state() -> dict[str, Any]:
    """Return the state of a bucket of patterns: rules, partial matches and rows that wait."""
    pattern = Pattern.begin("a").where('n == "A"').one_or_more().followed_by("b").where('n == "B"')
    rule = PatternProcessor(id="r", version=1, pattern=pattern.within("1s"))
    schema = pa.schema([("t", pa.int64()), ("user", pa.string()), ("n", pa.string())])
    buckets = Buckets(
        lambda: PatternOperator(event_time="t", key=("user",), maker=compiled), buckets=1
    )
    given = [{"t": t, "user": user, "n": "A"} for t, user in ((1, "u"), (2, "v"), (3, "u"))]
    rows = pa.RecordBatch.from_pylist(given, schema=schema)
    buckets.window([rows], rules=RuleSet().apply_update([rule], RuleContext())[0])
    buckets.window([], watermark=2)
    return _blobs(buckets.through.blobs[0])


def side_state() -> dict[str, Any]:
    """Return the state of a bucket of side inputs: values, and rows that wait."""
    rates = pa.schema([("currency", pa.string()), ("rate", pa.float64())])
    main = pa.schema([("id", pa.string()), ("currency", pa.string())])
    join = SideJoin(
        schema=main,
        inputs=(
            SideInput(name="rates", kind="map", schema=rates, key=("currency",), value="rate"),
        ),
        enrich=(Enrich(input="rates", on=("currency",), missing="wait"),),
    )
    through = Through(lambda: SideOperator(join))
    first = pa.RecordBatch.from_pydict({"currency": ["EUR", "USD"], "rate": [1.0, 2.0]}, rates)
    second = pa.RecordBatch.from_pydict({"id": ["1", "2"], "currency": ["EUR", "JPY"]}, main)
    through.window([("rates", first)], watermark=None)
    through.window([("main", second)], watermark=None, clock=5)
    return _blobs(through.blobs[0])


def side_tables() -> dict[str, Any]:
    """Return the list of a table's versions, and a pin; digests are those of Arrow's files."""
    with folder() as place:
        kept = versions.Versions(place)
        written = kept.write(pa.table({"k": [1, 2]}), now=float(NOW))
        assert written is not None
        kept.record_announcement(written, "rates", 3)
        pins.create_pin_folder(place)
        pin = pins.pin_for(place, pins.MicroBatch(query="q", run="u", number=4))
        pinned = {**json.loads(pin.path.read_text()), "at": "now"}
        texts = {
            "files": sorted(path.name for path in place.iterdir() if path.is_file()),
            versions.JOURNAL: (place / versions.JOURNAL).read_text(),
            str(pin.path.relative_to(place)): json.dumps(pinned),
        }
    text = json.dumps(texts).replace(written.digest, "DIGEST").replace(written.digest[:8], "DIGEST")
    found: dict[str, Any] = json.loads(re.sub(r"(bytes\W+)\d+", r"\g<1>0", text))
    return found


FIELDS: Mapping[str, Any] = {
    "limits of an export, in the agent's table meta": retention.RetentionLimits,
    "batch that was published, in the agent's table publishers": Published,
    "delivery, in the agent's table readers": Delivered,
    "pinned rules, in offsets": PinnedRules,
    "rule in a window, from task to driver": RuleMetrics,
    "window, from task to driver": WindowMetrics,
    "rule in a bucket, copied to that of a window": Metrics,
    "request rules.figures": RulesMetrics,
    "rule, from agent to broker": rule_figures.RuleMetricsReport,
    "rows that wait, from agent to broker": rule_figures.WatermarkWait,
    "state of a rule, from agent to broker": rule_reports.RuleStatus,
    "side input, from agent to broker": side_reports.SideStatus,
    "stall, from agent to broker": side_reports.SideStall,
    "note tick": notes.WatermarkUpdate,
    "note hold": notes.WatermarkHold,
    "note latest": notes.LatestEventTime,
    "file of ticks": TickPlan,
    "version of a table": versions.Version,
    "option --limit": RestLimits,
    "problem of a what-if": ForecastProblem,
    "metadata of a manifest": manifest.Metadata,
    "JSON for the kopf process": Access,
    "tally of a side input, in this order": Tally,
    "what waits, in this order": _StallCounts,
    "payload PatternRules": PatternRules,
    "payload RuleStopped": RuleStopped,
    "payload SideComplete": SideComplete,
    "payload SideVersion": SideVersion,
    "payload SideRefresh": SideRefresh,
    "payload SideTick": SideTick,
    "payload EndOfFile": EndOfFile,
}
"""Types whose fields are keys, or whose order of fields is the order, in some format."""


def fields() -> dict[str, str]:
    """Return the names of fields that are formats; the types' own names may change."""
    return {
        what: " ".join(getattr(one, "_fields", None) or [f.name for f in dataclasses.fields(one)])
        for what, one in FIELDS.items()
    }
