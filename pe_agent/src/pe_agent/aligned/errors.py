"""What a user of the aligned runtime did wrong; nothing was started."""

from __future__ import annotations

from streambroker_core.errors import StreambrokerError


class AlignedError(StreambrokerError):
    """A graph of aligned operators that cannot be built or run."""

    code = "AlignedInvalid"
