"""A home and two fellows in this process, and what can go wrong between them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from pe_agent.agent.exports.export import AgentExport
from pe_agent.agent.exports.reader_plans import RegisteredPlan
from pe_agent.agent.exports.stream.block_reader import BlockReader, ReadRequest
from pe_agent.agent.shards import read_grant as grants
from pe_agent.agent.shards.read_grant import Grant
from pe_agent.agent.shards.shard_store import ShardStore
from pe_agent.agent.state.store import Store
from pe_agent.log.commit import Committer
from pe_agent.transport.flight_errors import AgentUnreachableError
from streambroker_core.wire.agent_rpc.codec import to_json
from streambroker_core.wire.agent_rpc.publisher import AgentAddress
from streambroker_core.wire.agent_rpc.stages import SealedBlocks, StageSeal, StageVerify
from support.agents.exports import PUBLISHER, SCHEMA, Bench, rows
from support.agents.rpc import ask

HOME = "default/feed/0"
ONE, TWO = "default/feed/1", "default/feed/2"


class Job:
    def __init__(self, directory: Path, home: Bench) -> None:
        self.directory, self.home = directory, home
        self.stores: dict[str, Store] = {}
        self.hosts: dict[str, ShardStore] = {}
        self.committer = Committer(threads=1)
        self.after_seal: Callable[[], None] = lambda: None
        self.away: set[str] = set()
        self.asked: list[str] = []
        for pe in (ONE, TWO):
            self.open(pe)
        self.connect()

    def open(self, pe: str) -> None:
        at = self.directory / pe[-1]
        at.mkdir(exist_ok=True)
        self.stores[pe] = Store(at / "state.sqlite")
        self.stores[pe].set("token", pe)
        self.hosts[pe] = ShardStore(pe, at / "kept", self.stores[pe], self.committer)

    def connect(self) -> AgentExport:
        self.home.export.shards.agents = self
        return self.home.export

    def lose(self, pe: str) -> None:
        self.shut(pe)
        shutil.rmtree(self.directory / pe[-1])
        self.open(pe)

    def shut(self, pe: str) -> None:
        self.hosts[pe].close()
        self.stores[pe].close()

    def take_back(self, pe: str, copy: Path) -> None:
        shutil.rmtree(self.directory / pe[-1])
        copy.rename(self.directory / pe[-1])
        self.open(pe)

    def damage(self, pe: str, epoch: int) -> None:
        """Turn a bit of the last block of a fellow's part; done once more it is as it was."""
        stream = self.hosts[pe]._stored[self.home.stream].stream
        address = stream.manifests[epoch].local_blocks[-1].address
        with (stream.log.directory / f"{address.segment:010d}.segment").open("r+b") as file:
            file.seek(address.offset + address.length - 1)
            (last,) = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([last ^ 1]))

    def cut(self, first: int, next_: int, **more: Any) -> RegisteredPlan:
        """Register a plan of these epochs again, for a reader that goes on over loss."""
        return self.home.replan({self.home.stream: (first, next_)}, **{"skip_lost": True, **more})

    def close(self) -> None:
        for pe in self.hosts:
            self.shut(pe)
        self.committer.close()

    def reopen_home(self) -> AgentExport:
        self.home.reopen()
        return self.connect()

    def staging_agents(self) -> list[AgentAddress]:
        return [AgentAddress(pe=pe, location="", token="") for pe in (ONE, TWO)]

    def seal(self, requests: Mapping[str, StageSeal]) -> dict[str, Sequence[SealedBlocks]]:
        self._reach(requests)
        reported = {pe: self.hosts[pe].seal(one).stages for pe, one in requests.items()}
        self.after_seal()
        return reported

    def find_broken(
        self, requests: Mapping[str, StageVerify]
    ) -> dict[str, Mapping[str, Mapping[str, str]]]:
        self._reach(requests)
        self.asked += [*requests]
        return {pe: self.hosts[pe].verify(one).broken for pe, one in requests.items()}

    def _reach(self, agents: Iterable[str]) -> None:
        for pe in agents:
            if pe in self.away:
                raise AgentUnreachableError(f"{pe} does not answer")

    def admit(self, batch: int) -> dict[str, Any]:
        admitted = self.home.export.publisher.admit(
            **PUBLISHER, batch=batch, renewed=None, schema=SCHEMA
        )
        return dict(to_json(admitted))

    def stage(self, at: str, batch: int, *batches: pa.RecordBatch) -> dict[str, Any]:
        if at == HOME:
            return self.home.stage(batch, *batches)
        command = {"home": self.home.export.key, "stream": self.home.stream, "limit": 1 << 30}
        command |= {**PUBLISHER, "batch": batch}
        return self.hosts[at].stage(command, SCHEMA, batches)

    def publish(self, batch: int, *at: str) -> dict[str, Any]:
        """Publish two blocks of five rows at each of these agents, as one partition each."""
        self.admit(batch)
        stages = []
        for partition, pe in enumerate(at):
            first = 100 * batch + 10 * partition
            stages.append(self.stage(pe, batch, rows(first, 5), rows(first + 5, 5)))
        return self.home.commit(batch, *stages)

    def release(self) -> None:
        export = self.home.export
        for pe, host in self.hosts.items():
            for owed in export.shards.pending_counts(pe):
                body = {"export": export.key, "stream": owed.stream, "epochs": [owed.epoch]}
                counted = ask(host.count, {**body, "filter": owed.filter})
                export.shards.settle_count(owed, counted["rows"][str(owed.epoch)])
            known = ask(host.release, {"home": HOME, "exports": {}})["streams"].get(export.key, [])
            levels = export.shards.retained_levels(pe, known)
            ask(host.release, {"home": HOME, "exports": {export.key: levels}})

    def read(self, epoch: int, filter_: str | None = None) -> dict[str, list[int]]:
        """Return column ``n`` of a planned epoch, by the agent that has it."""
        stream = self.home.stream
        reported = self.home.replan({stream: (epoch, epoch + 1)}, filter_=filter_)
        agents = [HOME, *reported.agents]
        blocks = [(b[2] if len(b) > 2 else 0) for b in reported.blocks[stream][epoch]]
        given = Grant(
            export=self.home.export.key,
            reader="reader",
            ranges={stream: (epoch, epoch + 1)},
            filter=filter_,
            columns=None,
        )
        result = {}
        for number in sorted(set(blocks)):
            pe = agents[number]
            piece = (epoch, 0, blocks.count(number))
            ticket: dict[str, Any] = {"export": given.export, "stream": stream, "pieces": [piece]}
            ticket["grant"] = grants.sign(pe, given)
            source = self.home.export.plans if pe == HOME else self.hosts[pe].open_read(ticket)
            asked = ReadRequest(
                reader="reader", stream=stream, pieces=(piece,), filter=filter_, columns=None
            )
            found = BlockReader().read_batches(source, asked)
            result[pe] = [n for batch, _ in found for n in batch.column("n").to_pylist()]
        return result

    def epochs(self, pe: str) -> int:
        streams = self.hosts[pe].status().get(self.home.export.key, {}).values()
        return sum(s["epochs"] for s in streams)

    @property
    def reported(self) -> dict[str, Any]:
        """What the home says of the reader."""
        found: dict[str, Any] = self.home.export.status()["readers"]["reader"]
        return found

    def figures(self) -> list[int]:
        return [self.reported[name] for name in ("delivered", "filtered", "counting")]
