"""The token a job shows: where it comes from, and that it is read again."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from pe_agent.agent.process import parse_settings
from pe_agent.transport.tokens import Token, TokenError, resolve_token, write

SECRET = "s3cret-s3cret"


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STREAMBROKER_TOKEN", raising=False)


def test_a_token_is_given_or_in_a_file_or_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "token"
    path.write_text(f"{SECRET}\n")
    assert resolve_token(None, None).current() is None
    assert resolve_token(SECRET, None).current() == SECRET
    assert resolve_token(None, path).current() == SECRET
    monkeypatch.setenv("STREAMBROKER_TOKEN", "from-environment")
    assert resolve_token(None, None).current() == "from-environment"
    assert resolve_token(SECRET, None).current() == SECRET
    assert resolve_token(None, path).current() == SECRET
    monkeypatch.setenv("STREAMBROKER_TOKEN", "")
    assert resolve_token(None, None).current() is None


@pytest.mark.parametrize("token", ["", "two words", "line\nbreak", "né", "x" * 4097])
def test_what_cannot_stand_in_a_header_is_no_token_and_is_not_shown(
    token: str, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    path.write_text(token)
    for value, file in ((token, None), (None, path)):
        with pytest.raises(TokenError, match="one word") as refused:
            resolve_token(value, file)
        assert not token or token not in str(refused.value)


def test_a_token_and_a_file_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(TokenError, match="exclude each other"):
        resolve_token(SECRET, tmp_path / "token")


def test_a_file_that_is_not_there_is_refused_where_it_is_given(tmp_path: Path) -> None:
    with pytest.raises(TokenError, match="No such file"):
        resolve_token(None, tmp_path / "none")


def test_a_file_is_read_again_and_keeps_its_token_while_it_cannot_be(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first")
    token = resolve_token(None, path)
    path.write_text("second")
    assert token.current() == "second"
    for broken in (b"", b"\xff", b"two words"):
        path.write_bytes(broken)
        assert token.current() == "second"
    path.unlink()
    assert token.current() == "second"
    path.write_text("third")
    assert token.current() == "third"


def test_a_token_is_written_for_its_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "home" / "broker-token"
    for value in (SECRET, "another"):
        assert write(Token(value), path) == path
        assert path.read_text() == value
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    write(Token(), path)
    assert not path.exists()
    assert write(Token(path=tmp_path / "elsewhere"), path) == tmp_path / "elsewhere"
    assert not path.exists()


def test_an_agent_takes_its_token_from_the_environment_if_it_is_given_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMBROKER_TOKEN", SECRET)
    line = ["--home", str(tmp_path), "--job", "feed"]
    assert parse_settings(line).token.current() == SECRET
    path = tmp_path / "token"
    assert parse_settings([*line, "--token-file", str(path)]).token.current() is None
    path.write_text("of-the-file")
    assert parse_settings([*line, "--token-file", str(path)]).token.current() == "of-the-file"
