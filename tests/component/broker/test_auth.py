"""A broker with tokens: who gets in, what they may do, and what is told of it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from multidict import CIMultiDict

from streambroker_core.wire.broker.capability import verify
from streambroker_core.wire.broker.hints import decode
from streambroker_operator.broker import Broker
from streambroker_operator.errors import OpenError, TokensError
from streambroker_operator.rest.http.openapi import description
from support.brokers.brokers import EXPORT, IMPORT, Answer, BrokerProcess, Rest, received, udp_ear

FEED = "/job/feed/pe/0"
ALERTS = "/job/alerts/pe/0"
X = f"{FEED}/export/trades"
I = f"{ALERTS}/import/trades"  # noqa: E741

TOKENS = {name: f"{name}-{'0123456789abcdef'}" for name in ("ops", "eyes", "feed", "thief", "prod")}
ENTRIES: list[dict[str, Any]] = [
    {"name": "ops", "token": TOKENS["ops"], "role": "admin"},
    {"name": "eyes", "token": TOKENS["eyes"], "role": "reader"},
    {
        "name": "feed",
        "sha256": hashlib.sha256(TOKENS["feed"].encode()).hexdigest(),
        "jobs": ["default/feed"],
    },
    {"name": "thief", "token": TOKENS["thief"], "jobs": ["default/feed", "default/alerts"]},
    {"name": "prod", "token": TOKENS["prod"], "jobs": ["prod/feed"]},
]
VICTIM = {"instance": "aaaaaaaaaaaaaaaa", "location": "grpc+tcp://h:1", "hint": None}
THIEF = {"instance": "bbbbbbbbbbbbbbbb", "location": "grpc+tcp://evil:1", "hint": "evil:2"}


def write(path: Path, entries: list[dict[str, Any]]) -> Path:
    path.write_text(yaml.safe_dump({"tokens": entries}))
    path.chmod(0o600)
    return path


class Door:
    """A broker with tokens, and callers by the names of their tokens."""

    def __init__(self, broker: Broker, rest: Rest, file: Path) -> None:
        self.broker, self.rest, self.file = broker, rest, file

    async def __call__(
        self, who: str | None, method: str, path: str, body: Any = None, **headers: str
    ) -> Answer:
        sent: dict[str, Any] = dict(headers)
        if who is not None:
            sent["Authorization"] = f"Bearer {TOKENS.get(who, who)}"
        return await self.rest(method, path, body, **sent)


@asynccontextmanager
async def door_of(folder: Path) -> AsyncIterator[Door]:
    file = folder / "tokens.yaml"
    if not file.exists():
        write(file, ENTRIES)
    broker = Broker(db=folder / "broker.db", port=0, tokens=file)
    await broker.start()
    try:
        async with aiohttp.ClientSession() as session:
            yield Door(broker, Rest(broker.url, session), file)
    finally:
        await broker.stop()


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    async with door_of(tmp_path) as found:
        yield found


async def refused(answer: Answer, status: int, code: str) -> str:
    assert (answer.status, answer.code) == (status, code), answer.body
    assert answer.headers["Content-Type"].startswith("application/problem+json")
    return str(answer.body["detail"])


# ---- who gets in -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/exports"), ("GET", FEED), ("PUT", FEED), ("PUT", X), ("DELETE", X), ("GET", "/no")],
)
@pytest.mark.parametrize(
    ("header", "code"),
    [
        (None, "TokenMissing"),
        ("Bearer", "TokenMissing"),
        ("Bearer ", "TokenMissing"),
        (f"Basic {TOKENS['ops']}", "TokenMissing"),
        ("Bearer wrong", "TokenWrong"),
        (f"Bearer {TOKENS['ops']}x", "TokenWrong"),
        (f"Bearer {TOKENS['ops'][:-1]}", "TokenWrong"),
        ("Bearer " + "€" * 9, "TokenWrong"),
        ("Bearer " + hashlib.sha256(TOKENS["feed"].encode()).hexdigest(), "TokenWrong"),
    ],
)
async def test_without_a_token_that_is_known_nothing_is_answered(
    door: Door, method: str, path: str, header: str | None, code: str
) -> None:
    await door("ops", "PUT", X, EXPORT)
    headers: dict[str, Any] = {} if header is None else {"Authorization": header}
    answer = await door.rest(method, path, EXPORT, **headers)

    await refused(answer, 401, code)
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    kept = await door("ops", "GET", X)
    assert kept.body["metadata"]["generation"] == 1


async def test_the_word_bearer_is_read_in_any_case(door: Door) -> None:
    answer = await door.rest("GET", "/exports", Authorization=f"bEARER {TOKENS['eyes']}")
    assert answer.status == 200


async def test_two_tokens_at_once_are_none(door: Door) -> None:
    headers = CIMultiDict([("Authorization", f"Bearer {TOKENS[who]}") for who in ("eyes", "ops")])
    async with aiohttp.ClientSession(headers=headers) as session:
        await refused(await Rest(door.rest.url, session)("GET", "/exports"), 401, "TokenMissing")


async def test_what_does_not_exist_is_reported_to_anyone_who_is_known(door: Door) -> None:
    await refused(await door("feed", "PUT", "/nothing/here", {}), 404, "NotFound")
    await refused(await door("eyes", "POST", X, {}), 405, "MethodNotAllowed")


# ---- what they may do --------------------------------------------------------------------------


async def test_a_reader_reads_everything_and_changes_nothing(door: Door) -> None:
    await door("ops", "PUT", X, EXPORT)
    for path in ("/exports?namespace=*", "/pes", "/routes", FEED, X, f"{X}/properties"):
        assert (await door("eyes", "GET", path)).status == 200, path
    for method, path, body in (
        ("PUT", X, {**EXPORT, "allowFilter": False}),
        ("DELETE", X, None),
        ("PATCH", f"{X}/properties", {"kind": "quote"}),
        ("PUT", FEED, VICTIM),
        ("DELETE", FEED, None),
    ):
        answer = await door("eyes", method, path, body)
        assert "neither read nor change anything" in await refused(answer, 403, "NotYours")

    assert (await door("eyes", "GET", X)).body["metadata"]["generation"] == 1


async def test_a_jobs_token_changes_the_ports_of_its_job_and_no_others(door: Door) -> None:
    assert (await door("feed", "PUT", X, EXPORT)).status == 201
    assert (await door("feed", "PUT", "/job/feed/pe/7/export/p", EXPORT)).status == 201
    assert (await door("feed", "PATCH", f"{X}/properties", {"level": 6})).status == 200
    assert (await door("ops", "PUT", I, IMPORT)).status == 201
    others = (
        ("PUT", I, IMPORT),
        ("PUT", f"{I}/filter", {"filter": "price > 99.0"}),
        ("DELETE", I, None),
        ("PUT", ALERTS, VICTIM),
        ("DELETE", ALERTS, None),
        ("PUT", f"{X}?namespace=prod", EXPORT),
        ("PUT", f"{FEED}?namespace=prod", VICTIM),
        ("PUT", "/job/feed%2Fx/pe/0/export/p", EXPORT),
        ("PUT", "/job/feed2/pe/0/export/p", EXPORT),
    )
    for method, path, body in others:
        said = await refused(await door("feed", method, path, body), 403, "NotYours")
        assert "default/feed" in said
        assert "admin" in said
    assert (await door("prod", "PUT", f"{X}?namespace=prod", EXPORT)).status == 201
    await refused(await door("prod", "PUT", X, EXPORT), 403, "NotYours")

    assert (await door("ops", "GET", f"{I}/filter")).body == {"filter": "price > 10.0"}


async def test_a_manifest_cannot_name_another_job_than_the_address(door: Door) -> None:
    manifest = {
        "apiVersion": "streambroker.io/v1alpha1",
        "kind": "Import",
        "metadata": {"namespace": "default"},
        "spec": {"job": "alerts", "pe": 0, "port": "trades", **IMPORT},
    }
    answer = await door("feed", "PUT", f"{FEED}/import/trades", manifest)

    assert answer.status == 422
    assert (await door("ops", "GET", I)).status == 404


async def test_a_jobs_token_reads_its_own_namespaces_only(door: Door) -> None:
    await door("ops", "PUT", I, IMPORT)
    for path in ("/exports", "/routes", ALERTS, I):
        assert (await door("feed", "GET", path)).status == 200, path
    for path in (
        "/exports?namespace=prod",
        "/exports?namespace=*",
        f"{FEED}?namespace=prod",
        "/explain?export=prod/feed/0/trades",
        "/explain?namespace=prod&import=default/alerts/0/trades",
    ):
        said = await refused(await door("feed", "GET", path), 403, "NotYours")
        assert "default" in said
    assert (await door("prod", "GET", "/exports?namespace=prod")).status == 200
    await refused(await door("prod", "GET", "/exports"), 403, "NotYours")


OPEN = (
    "/api/subscriptions/explain",
    "/api/openapi.json",
    "/api/subscriptions/ui",
    "/healthz",
    "/readyz",
)
"""Selected by the ports it names; for all with a token, with what they may read; for all."""
GETS = [p for p, item in description()["paths"].items() if "get" in item and p not in OPEN]
SELECTING = (
    "import=prod/feed/0/trades",
    "export=prod/feed/0/trades",
    "export=prod",
    "focus=prod/feed",
    "group=prod/x",
    "limit=1",
    "wait=1s",
    "continue=x",
    "force=true",
    "import=prod/feed/0/trades&export=prod/feed/0/trades&limit=1&wait=1s&continue=x&name=x"
    "&force=true&operator=x&match=x&focus=prod/feed&group=prod/x&hops=1&filter=x&columns=x&after=x"
    "&format=arrow",
)


@pytest.mark.parametrize("path", GETS)
async def test_no_parameter_of_another_request_opens_a_namespace(door: Door, path: str) -> None:
    await door("ops", "PUT", X, EXPORT)
    await door("ops", "PUT", f"{FEED}/import/trades", IMPORT)
    filled = path.format(job="feed", pe=0, port="trades", name="kind", id="x", log="l", seq=0)
    named = filled.removeprefix("/api/subscriptions")
    for query in SELECTING:
        await refused(await door("prod", "GET", f"{named}?{query}"), 403, "NotYours")


async def test_the_page_learns_of_the_namespaces_of_its_token_alone(door: Door) -> None:
    await door("ops", "PUT", X, EXPORT)
    found = await door("prod", "GET", "/ui")

    assert (found.status, found.body["namespaces"]) == (200, ["prod"])
    assert not found.body["allNamespaces"]


def test_every_parameter_that_selects_is_tried_on_every_request() -> None:
    reported = json.dumps(description())
    selecting = set(re.findall(r'"name": "([a-z]+)", "in": "query"', reported))
    tried = {pair.partition("=")[0] for pair in SELECTING[-1].split("&")}
    assert tried == selecting - {"namespace"}


async def test_anyone_who_reads_may_ask_what_a_change_would_do_and_why_ports_are_connected(
    door: Door,
) -> None:
    await door("ops", "PUT", X, EXPORT)
    await door("ops", "PUT", I, IMPORT)
    pair = "import=default/alerts/0/trades&export=default/feed/0/trades"
    proposal = {"delete": [{"kind": "Export", "job": "feed", "port": "trades"}]}
    for who in ("eyes", "feed"):
        assert (await door(who, "GET", f"/explain?{pair}")).body["matched"] == 1
        assert len((await door(who, "POST", "/whatif", proposal)).body["cut"]) == 1
    await refused(await door("prod", "GET", f"/explain?{pair}"), 403, "NotYours")
    await refused(await door("prod", "POST", "/whatif", proposal), 403, "NotYours")
    elsewhere = {"delete": [{**proposal["delete"][0], "namespace": "default"}]}
    asked = await door("prod", "POST", "/whatif?namespace=prod", elsewhere)
    await refused(asked, 403, "NotYours")
    assert (await door("eyes", "GET", X)).status == 200


async def test_a_set_of_changes_is_for_those_that_may_make_each_of_them(door: Door) -> None:
    mine = {
        "apiVersion": "streambroker.io/v1alpha1",
        "kind": "Export",
        "metadata": {"name": "mine"},
        "spec": {"job": "feed", "port": "trades", **EXPORT},
    }
    theirs = {**mine, "kind": "Import", "spec": {"job": "alerts", "port": "trades", **IMPORT}}
    elsewhere = {**mine, "metadata": {"namespace": "prod"}}
    removal = {"delete": [{"kind": "Import", "job": "alerts", "port": "trades"}]}
    await door("ops", "PUT", I, IMPORT)
    for proposal in ({"resources": [mine, theirs]}, {"resources": [mine, elsewhere]}, removal):
        detail = await refused(await door("feed", "POST", "/apply", proposal), 403, "NotYours")
        assert "nothing was changed" in detail
    await refused(await door("eyes", "POST", "/apply", {}), 403, "NotYours")
    await refused(await door("prod", "POST", "/apply", {"resources": [mine]}), 403, "NotYours")
    assert (await door("ops", "GET", "/exports?namespace=*")).body["items"] == []
    assert (await door("feed", "POST", "/apply", {"resources": [mine]})).status == 200
    assert (await door("ops", "POST", "/apply", removal)).status == 200


async def test_the_description_of_the_interface_is_for_everybody_with_a_token(door: Door) -> None:
    for who in ("eyes", "feed", "prod"):
        answer = await door.rest.session.get(
            f"{door.broker.url}/api/openapi.json",
            headers={"Authorization": f"Bearer {TOKENS[who]}"},
        )
        assert answer.status == 200


async def test_capabilities_are_shown_to_the_importers_own_job_only(door: Door) -> None:
    await door("feed", "PUT", FEED, VICTIM)
    await door("feed", "PUT", X, EXPORT)
    await door("thief", "PUT", I, IMPORT)
    own = await door("thief", "GET", ALERTS)
    (route,) = own.body["imports"]["trades"]["routes"]
    assert route["capability"]
    for who in ("feed", "eyes"):
        seen = await door(who, "GET", ALERTS)
        (bare,) = seen.body["imports"]["trades"]["routes"]
        assert bare == {**route, "capability": None}
        assert seen.headers["ETag"] != own.headers["ETag"]
        again = await door(who, "GET", ALERTS, If_None_Match=seen.headers["ETag"])
        assert again.status == 304
        stolen = await door(who, "GET", ALERTS, If_None_Match=own.headers["ETag"])
        assert stolen.status == 200


async def test_a_view_without_capabilities_is_waited_for_as_any_other(door: Door) -> None:
    await door("ops", "PUT", X, EXPORT)
    seen = await door("eyes", "GET", FEED)
    waiting = asyncio.create_task(
        door("eyes", "GET", f"{FEED}?wait=20s", If_None_Match=seen.headers["ETag"])
    )
    done, _ = await asyncio.wait({waiting}, timeout=0.2)
    assert not done
    await door("ops", "PUT", X, {**EXPORT, "allowFilter": False})
    changed = await asyncio.wait_for(waiting, 5.0)

    assert (changed.status, changed.headers["ETag"] == seen.headers["ETag"]) == (200, False)


# ---- agents ------------------------------------------------------------------------------------


async def test_a_thief_who_registers_gets_no_key_and_takes_nothing(door: Door) -> None:
    async with udp_ear() as (victim_at, victim_ear), udp_ear() as (thief_at, thief_ear):
        body = {**VICTIM, "hint": victim_at}
        key = (await door("feed", "PUT", FEED, body)).body["key"]
        stolen = await door("thief", "PUT", FEED, {**THIEF, "hint": thief_at})
        said = await refused(stolen, 403, "NotYours")
        assert "'feed'" in said
        assert "key" not in stolen.body
        await door("feed", "PUT", X, EXPORT)
        hint = decode(bytes.fromhex(key), await received(victim_ear), "default/feed/0")
        assert hint.version == (await door("feed", "GET", FEED)).body["version"]
        assert thief_ear.empty()
    await door("ops", "PUT", I, IMPORT)
    (route,) = (await door("ops", "GET", ALERTS)).body["imports"]["trades"]["routes"]
    verify(
        bytes.fromhex(key),
        route["capability"],
        reader_import="default/alerts/0/trades",
        export="default/feed/0/trades",
        now=0.0,
    )

    assert route["location"] == VICTIM["location"]
    assert (await door("feed", "PUT", FEED, VICTIM)).body["key"] == key


async def test_who_knows_an_agents_instance_takes_it_nowhere_else(door: Door) -> None:
    await door("feed", "PUT", FEED, VICTIM)
    for body in ({**VICTIM, "location": THIEF["location"]}, {**VICTIM, "hint": "127.0.0.1:2"}):
        await refused(await door("thief", "PUT", FEED, body), 403, "NotYours")
    (found,) = (await door("ops", "GET", "/pes")).body["items"]

    assert found["location"] == VICTIM["location"]


async def test_a_pe_is_bound_over_a_restart_of_the_broker(tmp_path: Path) -> None:
    async with door_of(tmp_path) as door:
        await door("feed", "PUT", FEED, VICTIM)
    async with door_of(tmp_path) as door:
        await refused(await door("thief", "PUT", FEED, THIEF), 403, "NotYours")


async def test_the_same_token_brings_another_agent_after_a_loss_of_its_directory(
    door: Door,
) -> None:
    first = await door("feed", "PUT", FEED, VICTIM)
    second = await door("feed", "PUT", FEED, THIEF)

    assert second.status == 200
    assert second.body["key"] != first.body["key"]


async def test_an_admin_takes_a_pe_over_and_it_is_bound_to_the_admin_then(door: Door) -> None:
    await door("feed", "PUT", FEED, VICTIM)
    assert (await door("ops", "PUT", FEED, THIEF)).status == 200
    await refused(await door("feed", "PUT", FEED, VICTIM), 403, "NotYours")


async def test_withdrawing_a_pe_does_not_free_it_for_another_token(door: Door) -> None:
    await door("feed", "PUT", FEED, VICTIM)
    await refused(await door("thief", "DELETE", FEED), 403, "NotYours")
    await refused(await door("thief", "PUT", FEED, THIEF), 403, "NotYours")
    assert (await door("ops", "DELETE", FEED)).status == 204
    assert (await door("thief", "PUT", FEED, THIEF)).status == 200


async def test_a_token_is_replaced_by_one_of_another_name(door: Door) -> None:
    await door("feed", "PUT", FEED, VICTIM)
    assert (await door("thief", "PUT", FEED, VICTIM)).status == 200
    await refused(await door("feed", "PUT", FEED, THIEF), 403, "NotYours")
    write(door.file, [entry for entry in ENTRIES if entry["name"] != "thief"])
    assert (await door("feed", "PUT", FEED, THIEF)).status == 200


# ---- the file ----------------------------------------------------------------------------------


async def test_a_change_of_the_file_holds_from_the_next_request(door: Door) -> None:
    assert (await door("eyes", "GET", "/exports")).status == 200
    left = [entry for entry in ENTRIES if entry["name"] != "eyes"]
    write(door.file, [*left, {"name": "new", "token": "n" * 16, "role": "reader"}])

    await refused(await door("eyes", "GET", "/exports"), 401, "TokenWrong")
    assert (await door("n" * 16, "GET", "/exports")).status == 200


async def test_a_stream_of_events_ends_when_its_token_goes(door: Door) -> None:
    # By hand: a client of HTTP throws away what it has when the connection is cut.
    host, port = door.broker.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        f"GET /api/subscriptions/events HTTP/1.1\r\nHost: {host}\r\n"
        f"Authorization: Bearer {TOKENS['eyes']}\r\n\r\n".encode()
    )
    await door("ops", "PUT", X, EXPORT)
    await asyncio.wait_for(reader.readuntil(b"event: export"), 5.0)
    write(door.file, [entry for entry in ENTRIES if entry["name"] != "eyes"])
    await door("ops", "DELETE", X)
    rest = await asyncio.wait_for(reader.read(), 10.0)
    writer.close()

    assert b"the token is no longer valid" in rest
    assert b"DELETED" not in rest
    assert (await door("ops", "GET", X)).status == 404


@pytest.mark.parametrize("broken", ["tokens: [", "tokens: []", "", None])
async def test_a_broken_file_takes_no_token_away_and_is_reported_once(
    door: Door, broken: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    if broken is None:
        door.file.unlink()
    else:
        door.file.write_text(broken)
    for _ in range(3):
        assert (await door("eyes", "GET", "/exports")).status == 200
    errors = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert len(errors) == 1
    assert "tokens.yaml cannot be used" in errors[0].getMessage()
    write(door.file, ENTRIES[:1])

    await refused(await door("eyes", "GET", "/exports"), 401, "TokenWrong")
    assert (await door("ops", "GET", "/exports")).status == 200


async def test_a_broken_file_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(TokensError, match="No such file"):
        await Broker(db=tmp_path / "b.db", port=0, tokens=tmp_path / "none.yaml").start()
    assert not (tmp_path / "b.db").exists()


# ---- the address -------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "example.org", "10.1.2.3"])
async def test_an_address_for_others_is_refused_without_tokens(tmp_path: Path, host: str) -> None:
    with pytest.raises(OpenError, match="--tokens"):
        await Broker(db=tmp_path / "b.db", port=0, host=host).start()
    assert not (tmp_path / "b.db").exists()


async def test_an_address_for_others_is_served_with_tokens(tmp_path: Path) -> None:
    file = write(tmp_path / "tokens.yaml", ENTRIES)
    broker = Broker(db=tmp_path / "b.db", port=0, host="0.0.0.0", tokens=file, insecure=True)
    await broker.start()
    try:
        async with aiohttp.ClientSession() as session:
            url = broker.url.replace("0.0.0.0", "127.0.0.1")
            await refused(await Rest(url, session)("GET", "/exports"), 401, "TokenMissing")
    finally:
        await broker.stop()


def test_the_command_line_refuses_what_the_broker_refuses(tmp_path: Path) -> None:
    bare = BrokerProcess(tmp_path / "b.db", "--port", "0", "--host", "0.0.0.0")
    code, errors = bare.end()
    assert code != 0
    assert "NotSecured" in errors
    broken = tmp_path / "broken.yaml"
    broken.write_text("tokens: [{name: x, token: short, role: admin}]")
    code, errors = BrokerProcess(tmp_path / "b.db", "--port", "0", "--tokens", str(broken)).end()
    assert code != 0
    assert "TokensUnusable" in errors
    assert "short" not in errors


# ---- audit -------------------------------------------------------------------------------------


def audit_lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [json.loads(r.getMessage()) for r in caplog.records if r.name == "streambroker.audit"]


def part(line: Mapping[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(line[name] for name in names)


async def test_writes_without_a_known_token_add_one_line_of_bounded_length(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for number in range(50):
        await door(None, "PUT", f"{X}?x={'y' * 2_000}{number}", EXPORT)
        await door("wrong", "DELETE", X)
    (line,) = audit_lines(caplog)

    assert part(line, "principal", "status", "code") == (None, 401, "TokenMissing")
    assert len(line["path"]) == 256
    ours = [record for record in caplog.records if record.name.startswith("streambroker")]
    assert len(ours) == 1


async def test_every_write_is_reported_to_the_audit_log_done_or_refused(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "streambroker.audit")
    await door("feed", "PUT", X, EXPORT, Request_Id="r-1")
    await door("ops", "PUT", I, IMPORT)
    await door("ops", "PUT", f"{I}/subscription", {"subscription": 'kind == "quote"'})
    await door("feed", "DELETE", I)
    await door("ops", "PUT", f"{I}/filter", {"filter": "price >"})
    await door("not-a-token", "DELETE", X)
    await door("eyes", "GET", "/exports")
    lines = audit_lines(caplog)

    names = ("principal", "method", "status", "code", "generation", "added", "cut")
    assert [part(line, *names) for line in lines] == [
        ("feed", "PUT", 201, None, 1, 0, 0),
        ("ops", "PUT", 201, None, 1, 1, 0),
        ("ops", "PUT", 200, None, 2, 0, 1),
        ("feed", "DELETE", 403, "NotYours", None, 0, 0),
        ("ops", "PUT", 422, "FilterInvalid", None, 0, 0),
        (None, "DELETE", 401, "TokenWrong", None, 0, 0),
    ]
    assert part(lines[0], "address", "requestId") == ("127.0.0.1", "r-1")
    assert lines[0]["path"] == f"/api/subscriptions{X}"
    assert lines[0]["time"].endswith("+00:00")
    assert not [line for line in lines if any(t in json.dumps(line) for t in TOKENS.values())]


async def test_of_a_set_of_changes_the_audit_log_names_each(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "streambroker.audit")
    await door("ops", "PUT", X, EXPORT)
    await door("ops", "PUT", I, IMPORT)
    gone = {"kind": "Export", "job": "feed", "port": "trades"}
    await door("ops", "POST", "/apply", {"delete": [gone]}, Request_Id="r-2")
    await door("ops", "POST", "/apply", {"delete": [gone]})
    _, _, done, nothing = audit_lines(caplog)

    assert part(done, "status", "added", "cut", "requestId") == (200, 0, 1, "r-2")
    assert done["changes"] == ["export default/feed/0/trades deleted"]
    assert part(nothing, "status", "code") == (409, "UnknownPort")


async def test_registrations_are_reported_when_they_change_something_and_never_with_their_key(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "streambroker.audit")
    key = (await door("feed", "PUT", FEED, VICTIM)).body["key"]
    await door("feed", "PUT", FEED, VICTIM)
    await door("thief", "PUT", FEED, THIEF)
    await door("feed", "PUT", FEED, {**VICTIM, "location": "grpc+tcp://h:2"})
    lines = audit_lines(caplog)

    assert [part(line, "principal", "status") for line in lines] == [
        ("feed", 200),
        ("thief", 403),
        ("feed", 200),
    ]
    assert key not in caplog.text


async def test_with_tokens_the_command_line_writes_the_audit_to_standard_error(
    tmp_path: Path,
) -> None:
    file = write(tmp_path / "tokens.yaml", ENTRIES)
    process = BrokerProcess(tmp_path / "b.db", "--port", "0", "--tokens", str(file))
    url = await asyncio.to_thread(process.url)
    async with aiohttp.ClientSession() as session:
        bearer = f"Bearer {TOKENS['feed']}"
        await Rest(url, session)("PUT", X, EXPORT, Authorization=bearer)
    process.process.send_signal(signal.SIGTERM)
    code, errors = await asyncio.to_thread(process.end)

    assert code == 0
    (line,) = errors.splitlines()
    assert part(json.loads(line), "principal", "status") == ("feed", 201)
