"""The token file: what is read, what is refused, and that nothing of a token is shown."""

from __future__ import annotations

import hashlib
import hmac
import logging
from pathlib import Path

import pytest

from streambroker_operator.errors import TokensError
from streambroker_operator.security import token_file as auth
from streambroker_operator.security.token_file import TokenFile, is_loopback, read_tokens

SECRET = "s3cret-s3cret-s3cret"
DIGEST = hashlib.sha256(SECRET.encode()).hexdigest()


def test_a_token_in_plain_and_its_sha256_are_the_same_token() -> None:
    plain, is_plain = read_tokens(f"tokens: [{{name: a, token: {SECRET}, role: admin}}]".encode())
    hashed, is_hashed = read_tokens(
        f"tokens: [{{name: a, sha256: '{DIGEST}', role: admin}}]".encode()
    )

    assert plain == hashed
    assert (is_plain, is_hashed) == (True, False)
    assert plain.find(SECRET) is not None
    assert plain.find(DIGEST) is None
    assert SECRET not in repr(plain)


def test_a_jobs_token_has_its_jobs() -> None:
    text = f"tokens: [{{name: a, sha256: '{DIGEST}', jobs: [ns/feed, default/x]}}]"
    tokens, _ = read_tokens(text.encode())
    found = tokens.find(SECRET)

    assert found is not None
    assert found.jobs == {("ns", "feed"), ("default", "x")}
    assert found.can_change("ns", "feed")
    assert not found.can_change("default", "feed")
    assert not found.can_change("ns", None)
    assert (found.can_read("ns"), found.can_read("*"), found.can_read("other")) == (
        True,
        False,
        False,
    )


def test_every_token_is_compared_once_in_constant_time_known_or_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries = [f"{{name: n{i}, token: token-of-sixteen-{i}, role: reader}}" for i in range(5)]
    tokens, _ = read_tokens(f"tokens: [{', '.join(entries)}]".encode())
    compared: list[tuple[int, int]] = []
    real = hmac.compare_digest

    def counting(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return real(one, other)

    monkeypatch.setattr("streambroker_operator.security.token_file.hmac.compare_digest", counting)
    found = [tokens.find(token) for token in ("token-of-sixteen-3", "token-of-sixteen-9", "")]

    assert [None if one is None else one.name for one in found] == ["n3", None, None]
    assert compared == [(32, 32)] * 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the document has to be an object, not null"),
        ("[]", "not a list"),
        ("tokens: {}", "list with at least one"),
        ("tokens: []", "list with at least one"),
        ("token: []", "token"),
        ("tokens: [x]", r"tokens\[0\] has to be an object"),
        ("tokens: [{token: T, role: admin}]", r"tokens\[0\].name"),
        ("tokens: [{name: 5, token: T, role: admin}]", r"tokens\[0\].name"),
        ("tokens: [{name: anonymous, token: T, role: admin}]", "must not be anonymous"),
        ("tokens: [{name: a, role: admin}]", "sha256 is needed"),
        ("tokens: [{name: a, token: T, sha256: D, role: admin}]", "sha256 is needed"),
        ("tokens: [{name: a, token: short, role: admin}]", "at least 16"),
        ("tokens: [{name: a, token: 12345678901234567890, role: admin}]", "in quotes"),
        ('tokens: [{name: a, token: "T with spaces in it", role: admin}]', "at least 16"),
        ("tokens: [{name: a, sha256: 0123, role: admin}]", "64 hexadecimal"),
        ("tokens: [{name: a, token: T}]", "jobs is needed"),
        ("tokens: [{name: a, token: T, role: admin, jobs: [d/x]}]", "jobs is needed"),
        ("tokens: [{name: a, token: T, role: root}]", "admin or reader"),
        ("tokens: [{name: a, token: T, jobs: []}]", "list of namespace/job"),
        ("tokens: [{name: a, token: T, jobs: d/x}]", "list of namespace/job"),
        ("tokens: [{name: a, token: T, jobs: [x]}]", "'x', which is not namespace/job"),
        ("tokens: [{name: a, token: T, jobs: ['*/x']}]", "not namespace/job"),
        ("tokens: [{name: a, token: T, jobs: [d/x/0]}]", "not namespace/job"),
        ("tokens: [{name: a, token: T, role: admin, more: 1}]", "more"),
        (
            "tokens: [{name: a, token: T, role: admin}, {name: a, token: T1, role: admin}]",
            r"tokens\[1\] has the same name as tokens\[0\]",
        ),
        (
            "tokens: [{name: a, token: T, role: admin}, {name: b, sha256: D, role: reader}]",
            r"tokens\[1\] has the same token as tokens\[0\]",
        ),
        ("tokens: [{name: a, token: T, role: admin}]\ntokens: []", "not YAML at line 1"),
        ("tokens: [{name: a, token: T, token: T, role: admin}]", "not YAML at line 1"),
        ("tokens: [{name: a, token: T", "not YAML at line"),
        ("tokens: &a [*a]", "tokens"),
        ("tokens: !!python/object/apply:os.system [T]", "not YAML"),
        ("\x00T", "not YAML"),
    ],
)
def test_a_file_that_is_none_is_refused_and_shows_no_token(text: str, message: str) -> None:
    raw = text.replace("T", SECRET).replace("D", f"'{DIGEST}'").encode()
    with pytest.raises(TokensError, match=message) as refused:
        read_tokens(raw)

    said = "".join(map(str, (refused.value, refused.value.__cause__)))
    assert SECRET not in said
    assert DIGEST not in said


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(TokensError, match="not YAML"):
        read_tokens(b"tokens: \xff\xfe\xfd")


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokens.yaml"
    path.write_bytes(b"#" * (auth.MAX_FILE + 1))
    with pytest.raises(TokensError, match="more than"):
        TokenFile(path)


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, True), (0o604, True)])
def test_a_file_of_plain_tokens_that_others_can_read_is_warned_of(
    tmp_path: Path, mode: int, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "tokens.yaml"
    path.write_text(f"tokens: [{{name: a, token: {SECRET}, role: admin}}]")
    path.chmod(mode)
    with caplog.at_level(logging.WARNING):
        TokenFile(path)

    assert ("can be read by other users" in caplog.text) == warned


@pytest.mark.parametrize(
    ("host", "alone"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("192.168.0.1", False),
        ("localhost.example.org", False),
    ],
)
def test_an_address_of_this_machine_alone_is_known(host: str, alone: bool) -> None:
    assert is_loopback(host) == alone
