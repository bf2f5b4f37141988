"""Token file: authenticates callers and defines what they may do.

- A token is stored as its SHA-256 only, and compared in constant time.
- If a changed file is invalid, the tokens read before stay valid.
- Messages and log lines never contain any part of a token.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import os
import re
import stat
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import yaml

from streambroker_core.errors import ManifestError
from streambroker_core.model import PeKey, is_label
from streambroker_core.wire.encoding.fields import Fields
from streambroker_operator.errors import TokensError

Role: TypeAlias = Literal["admin", "reader", "job"]
Job: TypeAlias = tuple[str, str]
"""Namespace and name of a job."""

MAX_FILE = 1 << 20
"""Maximum size of a token file, in bytes."""
MIN_TOKEN = 16
"""Minimum length of a token, in characters; 32 random hexadecimal digits are better."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,62}")
_TOKEN = re.compile(rf"[A-Za-z0-9._~+/=-]{{{MIN_TOKEN},4096}}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_ROLES: Mapping[str, Role] = {"admin": "admin", "reader": "reader"}

_log = logging.getLogger("streambroker.auth")


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Identity and permissions of a caller.

    Attributes:
        name: as in the token file; identifies the caller for audit and limits.
        role: ``admin`` may do everything, ``reader`` changes nothing, ``job`` changes its jobs.
        jobs: of a job's token, (namespace, job).
        namespace_scope: namespaces of an admin's or a reader's rights; None for all.
    """

    name: str
    role: Role
    jobs: frozenset[Job] = frozenset()
    namespace_scope: frozenset[str] | None = None

    def can_change(self, namespace: str, job: str | None) -> bool:
        """Return whether this caller may change the ports and agents of a job."""
        is_admin = self.role == "admin" and (
            self.namespace_scope is None or namespace in self.namespace_scope
        )
        return is_admin or (namespace, job) in self.jobs

    @property
    def namespaces(self) -> frozenset[str] | None:
        """Namespaces that this caller may read; None for all."""
        return (
            frozenset(namespace for namespace, _ in self.jobs)
            if self.role == "job"
            else self.namespace_scope
        )

    def can_read(self, namespace: str) -> bool:
        """Return whether this caller may read a namespace; ``*`` means all."""
        readable = self.namespaces
        return readable is None or namespace in readable


ANONYMOUS = Principal(name="anonymous", role="admin")
"""The caller of a broker without tokens."""


_NO_ENTRY = (bytes(hashlib.sha256().digest_size), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """The tokens of one file.

    Attributes:
        entries: SHA-256 of the token again, and its principal, by SHA-256 of the token.
        names: of all principals.
    """

    entries: Mapping[bytes, tuple[bytes, Principal]]
    names: frozenset[str]

    def find(self, token: str) -> Principal | None:
        """Return the principal of a token; None if it is unknown.

        The duration reveals nothing about the tokens. The table is keyed by SHA-256, which Python
        hashes with a random key of this process, and the entry is compared in constant time. A scan
        of ten thousand tokens would take a millisecond per request.
        """
        presented = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        digest, principal = self.entries.get(presented, _NO_ENTRY)
        return principal if hmac.compare_digest(digest, presented) else None


def can_register(
    caller: Principal, owner: str | None, *, is_registered: bool, tokens: Tokens
) -> bool:
    """Return whether a caller may register an agent for a PE that it may change.

    Args:
        caller: principal of the request.
        owner: name of the token that the PE's agent was registered with; None without an agent.
        is_registered: whether the same agent is registered now.
        tokens: the valid tokens; an agent bound to any other token is free.
    """
    bound = owner is not None and owner in tokens.names and owner != caller.name
    return is_registered or not bound or caller.role == "admin"


def token_mismatch_message(pe: PeKey, owner: str) -> str:
    """Return the message for an agent that is bound to another token."""
    return (
        f"The agent of {pe} was registered with the token {owner!r}, and this is another agent with"
        " another token. Use that token, let an admin register it, or withdraw the PE first"
        " (DELETE by an admin, once it has no ports)."
    )


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached only from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class TokenFile:
    """A YAML file with a list ``tokens``, reloaded when it changes.

    Raises:
        TokensError: it cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._signature = file_signature(path)
        try:
            self._tokens = self._read()
        except (OSError, TokensError) as error:
            raise self._token_error(error) from error

    def current(self) -> Tokens:
        """Return the tokens; reload a changed file, and keep the old ones if it is invalid."""
        state = file_signature(self._path)
        if state != self._signature:
            self._signature = state
            try:
                self._tokens = self._read()
                _log.info("%s: %d tokens read again", self._path, len(self._tokens.entries))
            except (OSError, TokensError) as error:
                _log.error("%s The previous tokens stay.", self._token_error(error))
        return self._tokens

    def _read(self) -> Tokens:
        with self._path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            raw = file.read(MAX_FILE + 1)
        if len(raw) > MAX_FILE:
            raise TokensError(f"has more than {MAX_FILE} bytes")
        tokens, plain = read_tokens(raw)
        if plain and mode & (stat.S_IRWXG | stat.S_IRWXO):
            _log.warning(
                "%s contains tokens and can be read by other users; `chmod 600` it, or write"
                " sha256",
                self._path,
            )
        return tokens

    def _token_error(self, error: Exception) -> TokensError:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return TokensError(f"The token file {self._path} cannot be used: {reason}.")


def file_signature(*paths: Path) -> tuple[int, ...]:
    """Return inodes, sizes and times of files, to detect changes; empty if one does not exist."""
    try:
        found = [path.stat() for path in paths]
    except OSError:
        return ()
    return tuple(
        number
        for one in found
        for number in (one.st_ino, one.st_size, one.st_mtime_ns, one.st_ctime_ns)
    )


def read_tokens(raw: bytes) -> tuple[Tokens, bool]:
    """Parse a token file.

    Returns:
        The tokens, and whether any token is in plain text.

    Raises:
        TokensError: invalid file; the message is a sentence fragment without any token.
    """
    try:
        fields = Fields(_load_yaml(raw))
        fields.allow_only(("tokens",))
        items = fields.get("tokens")
        if not isinstance(items, list) or not items:
            raise fields.error_at("tokens", "has to be a list with at least one token")
        parsed = [_read_entry(Fields(item, f"tokens[{n}]")) for n, item in enumerate(items)]
    except ManifestError as error:
        raise TokensError(f"{error.path or 'the document'} {error.reason}") from error
    _check_unique("name", (principal.name for _, principal, _ in parsed))
    _check_unique("token", (digest for digest, _, _ in parsed))
    return (
        Tokens(
            entries={digest: (digest, principal) for digest, principal, _ in parsed},
            names=frozenset(principal.name for _, principal, _ in parsed),
        ),
        any(plain for _, _, plain in parsed),
    )


def _check_unique(what: str, values: Iterable[Hashable]) -> None:
    seen: dict[Hashable, int] = {}
    for number, value in enumerate(values):
        if value in seen:
            raise TokensError(f"tokens[{number}] has the same {what} as tokens[{seen[value]}]")
        seen[value] = number


def _read_entry(fields: Fields) -> tuple[bytes, Principal, bool]:
    fields.allow_only(("name", "token", "sha256", "role", "jobs"))
    name = _read_text(fields, "name", _NAME, "a name of letters, digits and . _ @ -")
    if name == ANONYMOUS.name:
        raise fields.error_at(
            "name", f"must not be {name}: that name is reserved for callers without a token"
        )
    if fields.has("token") == fields.has("sha256"):
        raise fields.error_at("token", "or sha256 is needed, one of them")
    if fields.has("role") == fields.has("jobs"):
        raise fields.error_at("role", "or jobs is needed, one of them")
    plain = fields.has("token")
    if plain:
        expected = f"at least {MIN_TOKEN} letters, digits and . _ ~ + / = -, in quotes"
        digest = hashlib.sha256(_read_text(fields, "token", _TOKEN, expected).encode()).digest()
    else:
        digest = bytes.fromhex(
            _read_text(fields, "sha256", _DIGEST, "64 hexadecimal digits, in quotes")
        )
    if fields.has("jobs"):
        return digest, Principal(name=name, role="job", jobs=_read_jobs(fields)), plain
    role = _ROLES.get(str(fields.get("role")))
    if role is None:
        raise fields.error_at(
            "role", f"has to be {' or '.join(_ROLES)}; a job's token has jobs instead"
        )
    return digest, Principal(name=name, role=role), plain


def _read_text(fields: Fields, key: str, form: re.Pattern[str], what: str) -> str:
    """Return a text; unlike `Fields.text`, never quote the value in an error."""
    value = fields.get(key)
    if not isinstance(value, str) or form.fullmatch(value) is None:
        raise fields.error_at(key, f"has to be {what}")
    return value


def _read_jobs(fields: Fields) -> frozenset[Job]:
    items = fields.get("jobs")
    if not isinstance(items, list) or not items:
        raise fields.error_at("jobs", "has to be a list of namespace/job")
    jobs = set()
    for item in items:
        namespace, _, job = str(item).partition("/")
        if not is_label(namespace) or not is_label(job):
            raise fields.error_at("jobs", f"has {str(item)[:130]!r}, which is not namespace/job")
        jobs.add((namespace, job))
    return frozenset(jobs)


class _Loader(yaml.SafeLoader):
    """YAML loader that refuses duplicate keys: the first value would be lost silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Return a mapping; refuse a duplicate key."""
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if len({str(key) for key in keys}) < len(keys):
            raise yaml.constructor.ConstructorError(
                None, None, "a key occurs twice", node.start_mark
            )
        return super().construct_mapping(node, deep=deep)


def _load_yaml(raw: bytes) -> Any:
    try:
        return yaml.load(raw, Loader=_Loader)  # noqa: S506 - a safe loader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        position = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise TokensError(f"it is not YAML{position}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
        raise TokensError("it is not YAML") from None
