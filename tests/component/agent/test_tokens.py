"""Real agents of a broker that asks for tokens."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

import streambroker as sb
from pe_agent.agent.process import read_address
from pe_agent.job.agent.agent_process import AgentProcess
from pe_agent.transport.broker_client import BrokerClient, pe_path
from pe_agent.transport.tokens import Token, TokenError, resolve_token
from streambroker.functions import set_export_properties
from streambroker_client.errors import BrokerRefusedError
from streambroker_core.model import PeKey
from support.brokers.brokers import BrokerProcess
from support.processes.waiting import until

SECONDS = 30.0
FIRST, SECOND, OPS = "first-token-of-feed", "second-token-of-feed", "token-of-operations"


def write_tokens(path: Path, *of_feed: str) -> None:
    entries: list[dict[str, object]] = [
        {"name": token[:8], "token": token, "jobs": ["default/feed"]} for token in of_feed
    ]
    path.write_text(
        yaml.safe_dump({"tokens": [*entries, {"name": "o", "token": OPS, "role": "admin"}]})
    )
    path.chmod(0o600)


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.yaml"
    write_tokens(path, FIRST)
    return path


@pytest.fixture
def url(tmp_path: Path, tokens: Path) -> Iterator[str]:
    broker = BrokerProcess(tmp_path / "broker.db", "--port", "0", "--tokens", str(tokens))
    yield broker.url()
    broker.kill()


@pytest.fixture
def start(tmp_path: Path, url: str) -> Iterator[Callable[[Token], AgentProcess]]:
    started: list[AgentProcess] = []

    def one(token: Token) -> AgentProcess:
        process = AgentProcess(
            PeKey.parse("default/feed/0"),
            tmp_path / "home",
            broker=url,
            linger=20,
            host="127.0.0.1",
            port=0,
            token=token,
        )
        started.append(process)
        return process

    yield one
    for process in started:
        process.stop(end_agent=True)


def follows(process: AgentProcess) -> bool:
    """Say whether the agent's last round with the broker went well, and was not the first."""
    status = process.client.call("status")
    return status["view"] is not None and not status["broker"]["away"]


def refusal(process: AgentProcess) -> str | None:
    found: str | None = process.client.call("status")["broker"]["refused"]
    return found


def ask_again(url: str, level: int) -> None:
    """Change something, so that the agent gets a hint and asks."""
    path = f"{pe_path('feed', 0)}/export/trades"
    BrokerClient(url, "default", Token(OPS)).request("PUT", path, {"properties": {"level": level}})


def test_an_agent_registers_with_the_jobs_token_which_stands_on_no_command_line(
    start: Callable[[Token], AgentProcess], tmp_path: Path
) -> None:
    process = start(resolve_token(FIRST, None))
    until(lambda: follows(process), SECONDS, "a view from the broker")
    address = read_address(tmp_path / "home")
    assert address is not None
    pid = address["pid"]

    assert FIRST.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    kept = tmp_path / "home" / "broker-token"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert FIRST not in (tmp_path / "home" / "agent.log").read_text()


def test_what_a_job_declares_goes_to_the_broker_with_its_token(
    start: Callable[[Token], AgentProcess], url: str
) -> None:
    process = start(resolve_token(FIRST, None))
    spec = {"properties": {"kind": "trade"}}
    process.client.call("declare", kind="export", port="trades", spec=spec, redeclare=False)

    def reported() -> bool:
        return bool(process.client.call("status")["declarations"]["export/trades"]["told"])

    until(reported, SECONDS, "the declaration at the broker")
    broker = BrokerClient(url, "default", Token(OPS))
    found = broker.request("GET", f"{pe_path('feed', 0)}/export/trades/properties")
    assert found.body == {"kind": "trade"}


def test_an_agent_takes_another_token_from_its_file(
    start: Callable[[Token], AgentProcess], tmp_path: Path, tokens: Path, url: str
) -> None:
    file = tmp_path / "token"
    file.write_text(FIRST)
    process = start(resolve_token(None, file))
    until(lambda: follows(process), SECONDS, "a view from the broker")
    write_tokens(tokens, FIRST, SECOND)
    file.write_text(SECOND)
    write_tokens(tokens, SECOND)
    before = process.client.call("status")["view"]
    ask_again(url, 1)

    until(lambda: process.client.call("status")["view"] != before, SECONDS, "the change")
    assert refusal(process) is None


def test_an_agent_with_a_wrong_token_keeps_its_routes_says_so_and_waits_for_another(
    start: Callable[[Token], AgentProcess], tmp_path: Path
) -> None:
    process = start(resolve_token("wrong-token-of-feed", None))
    said = until(lambda: refusal(process), SECONDS, "a refusal")
    assert said.startswith("TokenWrong")
    log = (tmp_path / "home" / "agent.log").read_text()
    assert "the broker refuses this agent, routes stay: TokenWrong" in log
    assert "wrong-token-of-feed" not in log

    adopted = start(resolve_token(FIRST, None))
    assert adopted.client.location == process.client.location
    until(lambda: follows(process), SECONDS, "a view from the broker")
    assert refusal(process) is None


def test_an_agent_without_a_token_says_what_is_missing(
    start: Callable[[Token], AgentProcess],
) -> None:
    process = start(Token())
    said = until(lambda: refusal(process), SECONDS, "a refusal")
    assert said.startswith("TokenMissing")
    assert "STREAMBROKER_TOKEN" in said


@pytest.mark.parametrize("way", ["token", "token_file", "environment"])
def test_start_takes_the_token_for_the_program_and_for_its_agent(
    way: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text(FIRST)
    given_by: dict[str, Any] = {"token": {"token": FIRST}, "token_file": {"token_file": file}}
    if way == "environment":
        monkeypatch.setenv("STREAMBROKER_TOKEN", FIRST)
    # All that start() wants of a session.
    spark: Any = SimpleNamespace(dataSource=SimpleNamespace(register=lambda _: None))
    auth = sb.BrokerAuth(**given_by.get(way, {}))
    pe = sb.start(spark, job="feed", broker=url, data_dir=tmp_path / "home", auth=auth)
    try:
        pe.broker().request("PUT", f"{pe_path('feed', 0)}/export/trades", {"properties": {}})
        outcome = set_export_properties(pe, "trades", {"kind": "trade"}, wait="programmed")
    finally:
        pe.stop(end_agent=True)

    assert outcome == 0, outcome.message


def test_start_refuses_a_token_that_is_none_before_anything_is_started(tmp_path: Path) -> None:
    with pytest.raises(TokenError):
        sb.start(
            cast(Any, None),
            job="feed",
            data_dir=tmp_path / "home",
            auth=sb.BrokerAuth(token="no token"),
        )
    assert not (tmp_path / "home").exists()


def test_the_jobs_program_shows_its_token_too(url: str) -> None:
    path = pe_path("feed", 0)
    spec = {"properties": {"kind": "trade"}}
    BrokerClient(url, "default", Token(FIRST)).request("PUT", f"{path}/export/trades", spec)
    with pytest.raises(BrokerRefusedError) as refused:
        BrokerClient(url, "default").request("PUT", f"{path}/export/trades", spec)

    assert (refused.value.status, refused.value.code) == (401, "TokenMissing")
    assert os.environ.get("STREAMBROKER_TOKEN") is None
