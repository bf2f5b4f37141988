"""Token of a job for its broker: from an argument, a file, or the environment.

It is never on a command line, where every user of the machine could read it.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

from pe_agent.log.atomic_file import file_state, replace_file
from streambroker_core.errors import StreambrokerError

VARIABLE = "STREAMBROKER_TOKEN"

_FORM = re.compile(r"[A-Za-z0-9._~+/=-]{1,4096}")

log = logging.getLogger("pe_agent")


class TokenError(StreambrokerError):
    """The token is unusable and is not sent."""

    code = "ArgumentInvalid"


class Token:
    """A token, or a file with only the token (reloaded on change), or neither for no token."""

    def __init__(self, value: str | None = None, path: Path | None = None) -> None:
        self.value, self.path = value, path
        self._loaded_state: tuple[int, ...] | None = None

    def check(self) -> Token:
        """Return itself if there is a valid token, or none is configured.

        Raises:
            TokenError: the file cannot be read, or the token is malformed.
        """
        if self.path is not None:
            try:
                self._read(self.path)
            except (OSError, UnicodeDecodeError) as error:
                reason = getattr(error, "strerror", None) or "it is not text"
                raise TokenError(f"the token file {self.path} cannot be read: {reason}.") from error
        wanted = self.path is not None or self.value is not None
        if wanted and _FORM.fullmatch(self.value or "") is None:
            where = f"in {self.path} " if self.path else ""
            raise TokenError(
                f"the token {where}has to be one word of letters, digits and . _ ~ + / = -."
            )
        return self

    def current(self) -> str | None:
        """Return the current token; the previous one while its file cannot be read."""
        if self.path is not None:
            try:
                self._read(self.path)
            except FileNotFoundError:
                self._loaded_state = None
            except (OSError, UnicodeDecodeError) as error:
                if self._loaded_state != ():
                    log.warning("the token file %s cannot be read: %s", self.path, error)
                self._loaded_state = ()
        return self.value

    def _read(self, path: Path) -> None:
        state = file_state(path)
        if state != self._loaded_state:
            text = path.read_text().strip()
            self._loaded_state = state
            # An empty or malformed file is being written.
            self.value = text if _FORM.fullmatch(text) else self.value


def resolve_token(token: str | None, file: str | Path | None) -> Token:
    """Return the token from the arguments, else from the environment.

    Raises:
        TokenError: both are passed, the file cannot be read, or the token is malformed.
    """
    if token is not None and file is not None:
        raise TokenError("token and token_file exclude each other; pass one of them.")
    if file is not None:
        return Token(path=Path(file).absolute()).check()
    return Token(token if token is not None else os.environ.get(VARIABLE) or None).check()


def write(token: Token, path: Path) -> Path:
    """Return the token file; write a token value to ``path``, readable by its user only."""
    if token.path is not None:
        return token.path
    if token.value is None:
        path.unlink(missing_ok=True)
        return path
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(path, token.value, private=True)
    return path
