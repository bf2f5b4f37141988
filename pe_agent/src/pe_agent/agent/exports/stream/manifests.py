"""What the log says about epochs and stages, beside their rows.

A stage is what one task wrote: data frames that name the stage, closed by one stage-end frame.
A manifest makes the stages of one batch an epoch. Both are JSON in the meta part of a frame.

Stages may lie on several agents of a job. The manifest that makes them an epoch is at the home of
the export; each other agent that holds some of it, a *fellow*, has a manifest of its own *part*.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from pe_agent.log.log import Address
from streambroker_core.control.tuples.window_bounds import ControlHead
from streambroker_core.errors import StreambrokerError

VERSION = 3
"""Of manifests with control tuples; those that name fellows are written as version 2, all others as
version 1, which any release reads."""

Meta: TypeAlias = bytes
"""The meta part of a frame: JSON in UTF-8."""


class ManifestVersionError(StreambrokerError):
    """The log holds manifests of a newer release; it is left as it is."""

    code = "FormatUnknown"


@dataclass(frozen=True, slots=True)
class Block:
    """One record batch in the log. ``bytes`` is the size of its frame."""

    address: Address
    rows: int

    @property
    def bytes(self) -> int:
        """Bytes of the block in the log, its frame included."""
        return self.address.length

    def encode(self) -> list[int]:
        """Return its form in the log."""
        return [self.address.segment, self.address.offset, self.address.length, self.rows]

    @staticmethod
    def decode(data: list[int]) -> Block:
        """Read its form in the log."""
        return Block(Address(data[0], data[1], data[2]), data[3])


@dataclass(frozen=True, slots=True)
class RemoteBlock:
    """One record batch in the log of a fellow; ``agent`` counts the manifest's agents from 1.

    Where it lies the fellow knows alone, and may change: its part has its blocks in this order.
    """

    agent: int
    bytes: int
    rows: int

    def encode(self) -> list[int]:
        """Return its form in the log: three numbers, where a block of one's own has four."""
        return [self.agent, self.bytes, self.rows]

    @staticmethod
    def decode(data: list[int]) -> RemoteBlock:
        """Read its form in the log."""
        return RemoteBlock(data[0], data[1], data[2])


@dataclass(slots=True)
class Stage:
    """What one task attempt wrote; ``crc`` runs over all its blocks, in order.

    Attributes:
        bytes: what it takes in the log, its end included.
        last_segment: the log segment of its last frame; while it grows, all from there on are kept.
        end_address: where its stage-end frame is, None before.
    """

    id: str
    stream: str
    query: str
    run: str
    batch: int
    rows: int = 0
    bytes: int = 0
    crc: int = 0
    blocks: list[Block] = field(default_factory=list)
    complete: bool = False
    last_segment: int = 0
    end_address: Address | None = None

    def addresses(self) -> list[Address]:
        """Return where all of it lies."""
        end = [] if self.end_address is None else [self.end_address]
        return [*(b.address for b in self.blocks), *end]

    def encode_end(self) -> Meta:
        """Return the meta of the stage-end frame."""
        return json.dumps(
            {
                "v": 1,
                "stage": self.id,
                "query": self.query,
                "run": self.run,
                "batch": self.batch,
                "rows": self.rows,
                "crc": self.crc,
                "blocks": len(self.blocks),
            }
        ).encode()

    def summary(self) -> dict[str, Any]:
        """Return what the task's commit message carries about it."""
        return {
            "stage": self.id,
            "stream": self.stream,
            "rows": self.rows,
            "bytes": self.bytes,
            "crc": self.crc,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestControl:
    """What a manifest says of its control tuples; they themselves are its frame's payload.

    Attributes:
        head: what a reader's batches are cut by.
        query_tuples: how many of them the publishing query gave with the batch.
        emitted: id of a control log, and the sequence below which its tuples are in epochs up to
            this one; None if it has none of them.
    """

    head: ControlHead
    query_tuples: int = 0
    emitted: tuple[str, int] | None = None

    def encode(self) -> dict[str, Any]:
        """Return its form in the log."""
        return {
            "tuples": self.head.tuples,
            "bytes": self.head.bytes,
            "begin": sorted(self.head.begin),
            "end": sorted(self.head.end),
            "own": self.query_tuples,
            "emitted": self.emitted,
        }

    @staticmethod
    def decode(epoch: int, data: Mapping[str, Any]) -> ManifestControl:
        """Read its form in the log."""
        emitted = data["emitted"]
        return ManifestControl(
            head=ControlHead(
                number=epoch,
                begin=frozenset(data["begin"]),
                end=frozenset(data["end"]),
                tuples=data["tuples"],
                bytes=data["bytes"],
            ),
            query_tuples=data["own"],
            emitted=None if emitted is None else (emitted[0], emitted[1]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One epoch: whole, once. One that a tuple from outside opened has no query and no rows.

    Attributes:
        rows_before: the rows of the stream's earlier epochs.
        blocks: in the order of the partitions that wrote them.
        agents: the PEs of the fellows that hold some of the blocks.
        gap: how many batches are missing before it; see the ledger's epoch.
        control: what it says of its control tuples, None if it has none.
    """

    epoch: int
    query: str
    run: str
    batch: int
    rows: int
    bytes: int
    published: float
    ddl: str
    rows_before: int
    blocks: tuple[Block | RemoteBlock, ...]
    agents: tuple[str, ...] = ()
    gap: int = 0
    control: ManifestControl | None = None

    def __post_init__(self) -> None:
        """Keep once in memory what all epochs of a run have in common."""
        for name in ("query", "run", "ddl"):
            object.__setattr__(self, name, sys.intern(getattr(self, name)))

    def encode(self) -> Meta:
        """Return its form in the log."""
        fellows = {"agents": list(self.agents)} if self.agents else {}
        gap = {"gap": self.gap} if self.gap else {}
        return json.dumps(
            {
                "v": self._version(),
                "epoch": self.epoch,
                "query": self.query,
                "run": self.run,
                "batch": self.batch,
                "rows": self.rows,
                "bytes": self.bytes,
                "at": self.published,
                "ddl": self.ddl,
                "before": self.rows_before,
                "control": [] if self.control is None else self.control.encode(),
                "blocks": [b.encode() for b in self.blocks],
                **fellows,
                **gap,
            }
        ).encode()

    def _version(self) -> int:
        """Return the first version that can say all of it."""
        if self.control is not None:
            return 3
        return 2 if self.agents else 1

    @staticmethod
    def decode(meta: Meta) -> Manifest:
        """Read a manifest frame's meta.

        Raises:
            ManifestVersionError: it was written by a newer release.
        """
        data = json.loads(meta)
        if data["v"] > VERSION:
            raise ManifestVersionError(
                f"epoch {data.get('epoch')} has manifest version {data['v']}; this release reads up"
                f" to {VERSION}. Start the agent of the release that wrote it, or a newer one."
            )
        return Manifest(
            epoch=data["epoch"],
            query=data["query"],
            run=data["run"],
            batch=data["batch"],
            rows=data["rows"],
            bytes=data["bytes"],
            published=data["at"],
            ddl=data["ddl"],
            rows_before=data["before"],
            blocks=tuple(
                RemoteBlock.decode(b) if len(b) == 3 else Block.decode(b) for b in data["blocks"]
            ),
            agents=tuple(data.get("agents", ())),
            gap=data.get("gap", 0),
            control=ManifestControl.decode(data["epoch"], data["control"])
            if data["control"]
            else None,
        )

    @property
    def rows_after(self) -> int:
        """Rows of the stream up to and with this epoch."""
        return self.rows_before + self.rows

    @property
    def local_blocks(self) -> tuple[Block, ...]:
        """The blocks in the log that has the manifest; what is read there counts these."""
        if not self.agents:
            return cast("tuple[Block, ...]", self.blocks)
        return tuple(b for b in self.blocks if isinstance(b, Block))

    def blocks_at(self, pe: str) -> tuple[RemoteBlock, ...]:
        """Return the blocks in the log of a fellow; what is read there counts these."""
        if pe not in self.agents:
            return ()
        number = self.agents.index(pe) + 1
        return tuple(b for b in self.blocks if isinstance(b, RemoteBlock) and b.agent == number)


def shard_identity(shard: Manifest) -> dict[str, Any]:
    """Return what tells a fellow's part of an epoch from another one, as the fellow has it."""
    return {"run": shard.run, "batch": shard.batch, "rows": [b.rows for b in shard.local_blocks]}


def expected_shard_identity(manifest: Manifest, pe: str) -> dict[str, Any]:
    """Return the same, as the home has it of the part that a fellow was left with."""
    rows = [b.rows for b in manifest.blocks_at(pe)]
    return {"run": manifest.run, "batch": manifest.batch, "rows": rows}
