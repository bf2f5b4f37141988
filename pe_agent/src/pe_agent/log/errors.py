# ruff: noqa: N818 - these names are states of the log and equal the codes that status shows
"""Errors of a stream's log, with their causes."""

from pathlib import Path

from streambroker_core.errors import StreambrokerError

_RESTORE_FILE = (
    "restore this file from a copy, or move the log's directory away so that the export opens a"
    " successor stream"
)


class LogError(StreambrokerError):
    """Base class of the errors of a stream's log."""

    code = "LogError"


class LogFull(LogError):
    """There is no room for a frame; nothing was appended and the log stays usable."""

    code = "LogFull"

    def __init__(self, path: Path, *, needed: int, free: int, reason: str, remedy: str) -> None:
        self.path = path
        self.needed = needed
        self.free = free
        super().__init__(
            f"{path}: no room for a frame of {needed} bytes ({reason}; {free} bytes free): {remedy}"
        )


class LogFailed(LogError):
    """A write or an fsync failed; the state on disk is unknown, and the log is unusable."""

    code = "LogFailed"

    def __init__(self, path: Path, *, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(
            f"{path}: the log has failed and takes no more frames ({reason}): check the disk and "
            "restart the agent, which recovers what had been acknowledged"
        )


class Superseded(LogError):
    """Another agent has taken over the stream in object storage; this one appends no more."""

    code = "Superseded"


class LogCorrupt(LogError):
    """An acknowledged frame is damaged."""

    code = "LogCorrupt"

    def __init__(
        self, path: Path, *, offset: int, reason: str, remedy: str = _RESTORE_FILE
    ) -> None:
        self.path = path
        self.offset = offset
        self.reason = reason
        super().__init__(f"{path}: damaged at offset {offset} ({reason}): {remedy}")


class LogVersionUnknown(LogError):
    """A newer release wrote the file in an unknown format."""

    code = "LogVersionUnknown"

    def __init__(self, path: Path, *, version: int, supported: int) -> None:
        self.path = path
        self.version = version
        super().__init__(
            f"{path}: log format version {version}, this release reads up to {supported}: start"
            " the release that wrote it, or a newer one; nothing was changed"
        )


class LogClosed(LogError):
    """The log was closed."""

    code = "LogClosed"

    def __init__(self, path: Path) -> None:
        self.path = path
        super().__init__(f"{path}: the log is closed: open it again to use it")


class AddressGone(LogError):
    """An address names no frame of this log (any more)."""

    code = "AddressGone"

    def __init__(self, path: Path, *, offset: int, reason: str) -> None:
        self.path = path
        self.offset = offset
        super().__init__(
            f"{path}: no frame at offset {offset} ({reason}): ask the log for its frames again"
        )


class FrameTooLarge(LogError):
    """A frame exceeds the limits of the format."""

    code = "FrameTooLarge"

    def __init__(self, what: str, *, size: int, limit: int) -> None:
        self.size = size
        self.limit = limit
        super().__init__(f"{what} of {size} bytes, at most {limit}: cut it into several frames")


class ObjectCorrupt(LogCorrupt):
    """Rows that a task has put into object storage are damaged or missing there."""

    def __init__(self, url: str, *, offset: int, reason: str) -> None:
        self.path = Path(url)
        self.offset = offset
        self.reason = reason
        LogError.__init__(
            self,
            f"{url}: cannot be read at offset {offset} ({reason}): restore the object, if the"
            " bucket has versions, and check its lifecycle rules.",
        )
