"""Who calls, and what they may do: the token file and its rules.

Rule 1: a token is kept as its SHA-256 only, and compared in constant time.
Rule 2: a file that cannot be used takes nothing away and adds nothing: the tokens before it stay.
Rule 3: no message, and no line of the log, shows anything of a token.
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
"""Bytes of a token file."""
MIN_TOKEN = 16
"""Characters of a token; 32 random hexadecimal digits are better."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,62}")
_TOKEN = re.compile(rf"[A-Za-z0-9._~+/=-]{{{MIN_TOKEN},4096}}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_ROLES: Mapping[str, Role] = {"admin": "admin", "reader": "reader"}

_log = logging.getLogger("streambroker.auth")


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who calls.

    Attributes:
        name: as the token file has it; what audit and limits know the caller by.
        role: ``admin`` may do everything, ``reader`` changes nothing, ``job`` changes its jobs.
        jobs: of a job's token, (namespace, job).
        namespace_scope: the namespaces that an admin's or a reader's rights are for; None for all.
    """

    name: str
    role: Role
    jobs: frozenset[Job] = frozenset()
    namespace_scope: frozenset[str] | None = None

    def can_change(self, namespace: str, job: str | None) -> bool:
        """Say whether this caller may change the ports and the agents of a job."""
        everything = self.role == "admin" and (
            self.namespace_scope is None or namespace in self.namespace_scope
        )
        return everything or (namespace, job) in self.jobs

    @property
    def namespaces(self) -> frozenset[str] | None:
        """The namespaces that this caller may read; None for all."""
        return (
            frozenset(found for found, _ in self.jobs)
            if self.role == "job"
            else self.namespace_scope
        )

    def can_read(self, namespace: str) -> bool:
        """Say whether this caller may read what is in a namespace; ``*`` stands for all."""
        found = self.namespaces
        return found is None or namespace in found


ANONYMOUS = Principal(name="anonymous", role="admin")
"""The caller of a broker without tokens."""


_NO_ENTRY = (bytes(hashlib.sha256().digest_size), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """The tokens of one file.

    Attributes:
        entries: by the SHA-256 of a token: that again, and whose it is.
        names: of all principals.
    """

    entries: Mapping[bytes, tuple[bytes, Principal]]
    names: frozenset[str]

    def find(self, token: str) -> Principal | None:
        """Return whose token it is; None for nobody's.

        The time it takes tells nothing of the tokens: the table is keyed by SHA-256, hashed once
        more with a random key of this process, and what it finds is compared in constant time.
        With ten thousand tokens, going through all of them would take a millisecond a request.
        """
        shown = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        digest, principal = self.entries.get(shown, _NO_ENTRY)
        return principal if hmac.compare_digest(digest, shown) else None


def can_register(
    caller: Principal, owner: str | None, *, is_registered: bool, tokens: Tokens
) -> bool:
    """Say whether a caller may register an agent for a PE that it may change.

    Args:
        caller: whose token was shown.
        owner: name of the token that the PE's agent was registered with; None if no agent was.
        is_registered: whether that agent is registered now, just as it says.
        tokens: those that are valid; what was bound to another token is free.
    """
    bound = owner is not None and owner in tokens.names and owner != caller.name
    return is_registered or not bound or caller.role == "admin"


def token_mismatch_message(pe: PeKey, owner: str) -> str:
    """Return why an agent is not registered."""
    return (
        f"The agent of {pe} was registered with the token {owner!r}, and this is another agent with"
        " another token. Use that token, let an admin register it, or withdraw the PE first"
        " (DELETE by an admin, once it has no ports)."
    )


def is_loopback(host: str) -> bool:
    """Say whether an address can be reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class TokenFile:
    """A token file, read again when it changes.

    Args:
        path: YAML with a list ``tokens``.

    Raises:
        TokensError: it cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._signature = _file_signature(path)
        try:
            self._tokens = self._read()
        except (OSError, TokensError) as error:
            raise self._token_error(error) from error

    def current(self) -> Tokens:
        """Return the tokens as the file has them; those before, where it cannot be used."""
        state = _file_signature(self._path)
        if state != self._signature:
            self._signature = state
            try:
                self._tokens = self._read()
                _log.info("%s: %d tokens read again", self._path, len(self._tokens.entries))
            except (OSError, TokensError) as error:
                _log.error("%s The tokens read before stay.", self._token_error(error))
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
                "%s holds tokens and is open to other users; `chmod 600` it, or write sha256",
                self._path,
            )
        return tokens

    def _token_error(self, error: Exception) -> TokensError:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return TokensError(f"The token file {self._path} cannot be used: {reason}.")


def _file_signature(path: Path) -> tuple[int, ...]:
    """Return what changes when a file does; nothing for a file that is not there."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def read_tokens(raw: bytes) -> tuple[Tokens, bool]:
    """Read a token file.

    Returns:
        The tokens, and whether any of them stands there in plain text.

    Raises:
        TokensError: it is not one; the message is a part of a sentence and shows no token.
    """
    try:
        fields = Fields(_load_yaml(raw))
        fields.allow_only(("tokens",))
        items = fields.get("tokens")
        if not isinstance(items, list) or not items:
            raise fields.error_at("tokens", "has to be a list with at least one token")
        read = [_read_entry(Fields(item, f"tokens[{n}]")) for n, item in enumerate(items)]
    except ManifestError as error:
        raise TokensError(f"{error.path or 'the document'} {error.reason}") from error
    _check_unique("name", (principal.name for _, principal, _ in read))
    _check_unique("token", (digest for digest, _, _ in read))
    return (
        Tokens(
            entries={digest: (digest, principal) for digest, principal, _ in read},
            names=frozenset(principal.name for _, principal, _ in read),
        ),
        any(plain for _, _, plain in read),
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
        raise fields.error_at("name", f"must not be {name}: that is who calls without a token")
    if fields.has("token") == fields.has("sha256"):
        raise fields.error_at("token", "or sha256 is needed, one of them")
    if fields.has("role") == fields.has("jobs"):
        raise fields.error_at("role", "or jobs is needed, one of them")
    plain = fields.has("token")
    if plain:
        what = f"at least {MIN_TOKEN} letters, digits and . _ ~ + / = -, in quotes"
        digest = hashlib.sha256(_read_text(fields, "token", _TOKEN, what).encode()).digest()
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
    """Return a text; unlike `Fields.text`, do not repeat it where it is wrong."""
    value = fields.get(key)
    if not isinstance(value, str) or form.fullmatch(value) is None:
        raise fields.error_at(key, f"has to be {what}")
    return value


def _read_jobs(fields: Fields) -> frozenset[Job]:
    items = fields.get("jobs")
    if not isinstance(items, list) or not items:
        raise fields.error_at("jobs", "has to be a list of namespace/job")
    found = set()
    for item in items:
        namespace, _, job = str(item).partition("/")
        if not is_label(namespace) or not is_label(job):
            raise fields.error_at("jobs", f"has {str(item)[:130]!r}, which is not namespace/job")
        found.add((namespace, job))
    return frozenset(found)


class _Loader(yaml.SafeLoader):
    """YAML in which no key may stand twice: the first of two lists would be lost silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Return a mapping; refuse a key that stands there twice."""
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if len({str(key) for key in keys}) < len(keys):
            raise yaml.constructor.ConstructorError(
                None, None, "a key stands there twice", node.start_mark
            )
        return super().construct_mapping(node, deep=deep)


def _load_yaml(raw: bytes) -> Any:
    try:
        return yaml.load(raw, Loader=_Loader)  # noqa: S506 - a safe loader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise TokensError(f"it is not YAML{place}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
        raise TokensError("it is not YAML") from None
