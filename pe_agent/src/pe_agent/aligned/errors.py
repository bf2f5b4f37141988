"""Errors in the use of the aligned runtime; nothing was started."""

from __future__ import annotations

from streambroker_core.errors import StreambrokerError


class AlignedError(StreambrokerError):
    """A graph of aligned operators that cannot be built or run."""

    code = "AlignedInvalid"
