"""Metadata of epochs and stages in the log.

A stage is the output of one task: data frames that name the stage, closed by one stage-end frame.
A manifest makes the stages of one batch an epoch. Both are JSON in the meta part of a frame.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pe_agent.log.frames import Address
from streambroker_core.control.tuples.window_bounds import ControlHead
from streambroker_core.errors import StreambrokerError

VERSION = 4
"""Version of manifests with blocks in objects. Those with control tuples are written as version 3,
all others as version 1, which every release reads. Version 2 was for blocks at several agents."""

Meta: TypeAlias = bytes
"""The meta part of a frame: JSON in UTF-8."""


class ManifestVersionError(StreambrokerError):
    """Another release wrote manifests in this log, which this one cannot read; nothing changes."""

    code = "FormatUnknown"


@dataclass(frozen=True, slots=True)
class Block:
    """One record batch in the log."""

    address: Address
    rows: int

    @property
    def bytes(self) -> int:
        """Bytes of the whole frame."""
        return self.address.length

    def encode(self) -> list[int]:
        """Encode for the log."""
        return [self.address.segment, self.address.offset, self.address.length, self.rows]

    @staticmethod
    def decode(data: list[int]) -> Block:
        """Decode from the log."""
        return Block(Address(data[0], data[1], data[2]), data[3])


@dataclass(frozen=True, slots=True)
class ObjectBlock:
    """One record batch in an object that a task has put into the stream's folder of the bucket."""

    key: str
    offset: int
    bytes: int
    rows: int
    crc: int

    def encode(self, places: Mapping[str, int]) -> list[int]:
        """Encode for the log: five numbers, where a block of the log has four.

        The first is the place of its key among those of the manifest.
        """
        return [places[self.key], self.offset, self.bytes, self.rows, self.crc]

    @staticmethod
    def decode(data: list[int], keys: Sequence[str]) -> ObjectBlock:
        """Decode from the log."""
        return ObjectBlock(keys[data[0]], data[1], data[2], data[3], data[4])


AnyBlock: TypeAlias = Block | ObjectBlock


@dataclass(slots=True)
class Stage:
    """Output of one task attempt; ``crc`` covers all its blocks, in order.

    Attributes:
        bytes: its size in the log, including the stage end.
        last_segment: segment of its last frame; while it grows, later segments are retained.
        end_address: address of its stage-end frame, None before.
        ddl: columns of its rows; empty after a restart, when nothing can be added.
    """

    id: str
    stream: str
    query: str
    run: str
    batch: int
    rows: int = 0
    bytes: int = 0
    crc: int = 0
    blocks: list[AnyBlock] = field(default_factory=list)
    complete: bool = False
    last_segment: int = 0
    end_address: Address | None = None
    ddl: str = ""

    def addresses(self) -> list[Address]:
        """Return the addresses of all its frames."""
        end = [] if self.end_address is None else [self.end_address]
        return [*(b.address for b in self.blocks if isinstance(b, Block)), *end]

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
        """Return the part of the task's commit message that describes the stage."""
        return {
            "stage": self.id,
            "stream": self.stream,
            "rows": self.rows,
            "bytes": self.bytes,
            "crc": self.crc,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestControl:
    """Control summary in a manifest; the tuples are the payload of the manifest frame.

    Attributes:
        head: summary by which readers' batches are cut.
        query_tuples: number of tuples from the publishing query's batch.
        emitted: id of a control log, and the number below which its tuples are in epochs up to
            this one; None if there are none.
    """

    head: ControlHead
    query_tuples: int = 0
    emitted: tuple[str, int] | None = None

    def encode(self) -> dict[str, Any]:
        """Encode for the log."""
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
        """Decode from the log."""
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
    """One epoch. An epoch opened by an external control tuple has no query and no rows.

    Attributes:
        rows_before: rows of the stream's earlier epochs.
        blocks: in the order of the partitions that wrote them.
        gap: number of batches missing before it; see the ledger's epoch.
        control: summary of its control tuples, None if there are none.
        traceparent: span that published it, as W3C writes it; None if traces are off.
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
    blocks: tuple[AnyBlock, ...]
    gap: int = 0
    control: ManifestControl | None = None
    traceparent: str | None = None

    def __post_init__(self) -> None:
        """Intern strings that all epochs of a run share."""
        for name in ("query", "run", "ddl"):
            object.__setattr__(self, name, sys.intern(getattr(self, name)))

    def encode(self) -> Meta:
        """Encode for the log."""
        gap = {"gap": self.gap} if self.gap else {}
        keys = sorted(self.object_keys())
        objects = {"objects": keys} if keys else {}
        trace = {"traceparent": self.traceparent} if self.traceparent else {}
        places = {key: place for place, key in enumerate(keys)}
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
                "blocks": [
                    b.encode() if isinstance(b, Block) else b.encode(places) for b in self.blocks
                ],
                **objects,
                **gap,
                **trace,
            }
        ).encode()

    def _version(self) -> int:
        """Return the lowest version that can represent this manifest."""
        if any(isinstance(b, ObjectBlock) for b in self.blocks):
            return 4
        return 1 if self.control is None else 3

    @staticmethod
    def decode(meta: Meta) -> Manifest:
        """Decode a manifest frame's meta.

        Raises:
            ManifestVersionError: another release wrote it.
        """
        data = json.loads(meta)
        if data["v"] > VERSION:
            raise ManifestVersionError(
                f"epoch {data.get('epoch')} has manifest version {data['v']}; this release reads up"
                f" to {VERSION}. Start the agent of the release that wrote it, or a newer one."
            )
        if data.get("agents"):
            raise ManifestVersionError(
                f"epoch {data['epoch']} has rows at other agents of the job, written with `agents=`"
                " of release 0.1.0. Start the agents of that release until all readers have"
                " finished these epochs, or remove the data directory."
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
                ObjectBlock.decode(b, data["objects"]) if len(b) == 5 else Block.decode(b)
                for b in data["blocks"]
            ),
            gap=data.get("gap", 0),
            control=ManifestControl.decode(data["epoch"], data["control"])
            if data["control"]
            else None,
            traceparent=data.get("traceparent"),
        )

    @property
    def rows_after(self) -> int:
        """Rows of the stream up to and including this epoch."""
        return self.rows_before + self.rows

    @property
    def log_blocks(self) -> tuple[Block, ...]:
        """Blocks in the same log as the manifest."""
        return tuple(b for b in self.blocks if isinstance(b, Block))

    def object_keys(self) -> set[str]:
        """Return the keys of the objects that have some of the blocks."""
        return {b.key for b in self.blocks if isinstance(b, ObjectBlock)}
