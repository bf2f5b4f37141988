"""Actions by which a query of the job publishes to an export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from streambroker_core.wire.agent_rpc.codec import Request, optional


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A task may stage rows.

    With ``direct`` it puts many rows into the object storage itself, see `PublisherUpload`.
    """

    admitted: bool
    direct: bool = optional(False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherLease:
    """Query that holds the export, its number of renewals, and the seconds that are left."""

    holder: str
    renewed: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupied:
    """Another query publishes to the export."""

    occupied: PublisherLease


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Readers have not finished the epochs that fill the log; for messages."""

    waiting: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherAdmit(Request[Admitted | Occupied | Waiting]):
    """Ask whether a task may stage rows now.

    ``renewed`` is from the last `Occupied` response.
    """

    action: ClassVar[str] = "publisher.admit"
    export: str
    query: str
    run: str
    batch: int
    ddl: str
    renewed: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadTarget:
    """Where a task writes an object: signed URL, key, stream, and its Arrow schema in base64."""

    url: str
    key: str
    stream: str
    arrow: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherUpload(Request[UploadTarget]):
    """Ask for the URL of a new object, or of one whose URL has expired.

    ``arrow`` is the schema of the rows in base64. The summary of the stage then has ``objects``:
    by key the blocks ``[bytes, rows, crc32]``, one behind the other.
    """

    action: ClassVar[str] = "publisher.upload"
    export: str
    query: str
    run: str
    batch: int
    ddl: str
    arrow: str
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishResult:
    """Epoch and stream of a batch; ``published`` is false if it was published before."""

    published: bool
    epoch: int | None
    stream: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherPublish(Request[PublishResult]):
    """Publish the stages of a batch as one epoch.

    ``control`` has its control tuples with their indexes, and ``arrow`` the schema in base64 of a
    batch that has only these.
    """

    action: ClassVar[str] = "publisher.publish"
    export: str
    query: str
    run: str
    batch: int
    stages: list[dict[str, Any]]
    ddl: str | None
    control: Sequence[Any] = optional(())
    arrow: str | None = optional()


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherAbort(Request[None]):
    """Discard stages of a batch by their ids."""

    action: ClassVar[str] = "publisher.abort"
    export: str
    query: str
    run: str
    batch: int
    stages: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherRenew(Request[None]):
    """Renew the lease of a running query."""

    action: ClassVar[str] = "publisher.renew"
    export: str
    query: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherRenounce(Request[None]):
    """End the lease of a query."""

    action: ClassVar[str] = "publisher.renounce"
    export: str
    query: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherFinish(Request[None]):
    """Mark an export as ended, by the query and run that published last if they are known."""

    action: ClassVar[str] = "publisher.finish"
    export: str
    query: str | None = None
    run: str | None = None
