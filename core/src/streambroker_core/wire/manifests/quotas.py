"""Quotas of namespaces, as the setting of a broker declares them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from streambroker_core.errors import StreambrokerError
from streambroker_core.model import Export, Resource, is_label
from streambroker_core.wire.encoding.fields import Fields
from streambroker_core.wire.manifests.ports import read_size

OTHERS = "*"
"""Name of the quota of all namespaces without one of their own."""
WARNED_SHARE = 0.8
"""Share of a quota from which on what is new comes with a warning."""
MAX_PORTS = 1_000_000


class QuotaExceededError(StreambrokerError):
    """A change needs more than the quota of its namespace has left; nothing was changed."""

    code = "QuotaExceeded"


class Usage(NamedTuple):
    """What resources use of a quota: ports, and the bytes that their logs may have."""

    ports: int = 0
    bytes: int = 0

    @staticmethod
    def of(resource: Resource | None) -> Usage:
        """Return what a resource uses; nothing for None."""
        if not isinstance(resource, Export):
            return Usage(ports=int(resource is not None))
        archived = 0 if resource.archive is None else resource.archive.max_bytes or 0
        return Usage(1, resource.buffer.max_bytes + archived)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Quota of one namespace; None is no limit.

    Attributes:
        ports: Exports and Imports together.
        bytes: sum of ``buffer.maxBytes`` and ``archive.maxBytes`` of all Exports.
        reader_rate: bytes per second that an agent of the namespace sends to one reader.
        job_rate: the same, to all readers of one importing job.
    """

    ports: int | None = None
    bytes: int | None = None
    reader_rate: int | None = None
    job_rate: int | None = None

    def _limits(self, used: Usage) -> list[tuple[str, int, int]]:
        """Return name, use and limit of what is limited."""
        limits = {"ports": self.ports, "bytes": self.bytes}
        uses = used._asdict()
        return [(name, uses[name], one) for name, one in limits.items() if one is not None]

    @property
    def limits_ports(self) -> bool:
        """Whether it limits what is declared."""
        return bool(self._limits(Usage()))

    def find_problem(
        self, used: Usage, old: Resource | None, new: Resource
    ) -> QuotaExceededError | None:
        """Return why a resource cannot replace ``old``; None if it can, or needs no more.

        ``used`` is what the namespace uses with ``old``.
        """
        namespace, before, after = new.key.namespace, Usage.of(old)._asdict(), Usage.of(new)
        if self.bytes is not None and _is_unbounded(new) and not _is_unbounded(old):
            return QuotaExceededError(
                f"The namespace {namespace!r} has a quota of bytes, and the archive of {new.key}"
                " has no limit in bytes. Set archive.maxBytes."
            )
        for name, use, limit in self._limits(used):
            more = after._asdict()[name] - before[name]
            if more > 0 and use + more > limit:
                return QuotaExceededError(
                    f"The namespace {namespace!r} uses {use:,} of the {limit:,} {name} of its"
                    f" quota, and {new.key} needs {more:,} more. Delete Exports or Imports that no"
                    " job needs, make buffers smaller, or have the quota of the broker raised."
                )
        return None

    def warnings(self, namespace: str, used: Usage) -> tuple[str, ...]:
        """Return a warning for each quota of which a namespace uses the most."""
        return tuple(
            f"The namespace {namespace!r} uses {use:,} of the {limit:,} {name} of its quota; the"
            " broker refuses what needs more."
            for name, use, limit in self._limits(used)
            if use >= WARNED_SHARE * limit
        )


def _is_unbounded(resource: Resource | None) -> bool:
    archive = resource.archive if isinstance(resource, Export) else None
    return archive is not None and archive.max_bytes is None


NO_QUOTA = Quota()


@dataclass(frozen=True, slots=True)
class Quotas:
    """Quotas of all namespaces."""

    by_namespace: Mapping[str, Quota] = field(default_factory=dict)

    def find(self, namespace: str) -> Quota:
        """Return the quota of a namespace: its own, else that of the others."""
        known = self.by_namespace
        return known.get(namespace) or known.get(OTHERS, NO_QUOTA)


def read_quotas(document: object) -> Quotas:
    """Read quotas by namespace, ``*`` for all others.

    Raises:
        ManifestError: a field is wrong; the error names it.
    """
    fields = Fields(document)
    quotas: dict[str, Quota] = {}
    for namespace in fields.names():
        if namespace != OTHERS and not is_label(namespace):
            raise fields.error_at(namespace, "is neither a namespace nor `*`")
        one = fields.child(namespace)
        one.allow_only(("ports", "bytes", "readerBytesPerSecond", "jobBytesPerSecond"))
        quotas[namespace] = Quota(
            ports=one.optional_integer("ports", low=0, high=MAX_PORTS),
            bytes=read_size(one, "bytes"),
            reader_rate=read_size(one, "readerBytesPerSecond"),
            job_rate=read_size(one, "jobBytesPerSecond"),
        )
    return Quotas(quotas)
