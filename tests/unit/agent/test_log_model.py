import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from pe_agent.log import index
from pe_agent.log.commit import Committer
from pe_agent.log.errors import AddressGone
from pe_agent.log.frames import Address, Kind
from pe_agent.log.log import StreamLog
from support.agents.logs import frames_of, size_of

SEGMENT_BYTES = 700
kinds = st.sampled_from(Kind)
metas = st.binary(max_size=20)
payloads = st.one_of(
    st.binary(max_size=300),
    st.lists(st.binary(max_size=100), max_size=4),
    st.integers(600, 2000).map(bytes),
    st.just(b"SBLF" * 40),
)


class LogMachine(RuleBasedStateMachine):
    """A log against a list of frames: appends, syncs, drops, reopening, crashes."""

    addresses = Bundle("addresses")

    def __init__(self) -> None:
        super().__init__()
        self.place = Path(tempfile.mkdtemp())
        self.committer = Committer(threads=1)
        self.number = 0
        self.model: dict[Address, tuple[Kind, bytes, bytes]] = {}
        self.log = self.open()

    @property
    def directory(self) -> Path:
        return self.place / str(self.number)

    def open(self) -> StreamLog:
        log = StreamLog.open(
            self.directory,
            segment_bytes=SEGMENT_BYTES,
            committer=self.committer,
            flush_bytes=1000,
        )
        assert list(log.recovered_frames(set(Kind))) == list(frames_of(log))
        return log

    @rule(target=addresses, kind=kinds, meta=metas, payload=payloads)
    def append(self, kind: Kind, meta: bytes, payload: bytes | list[bytes]) -> Address:
        address = self.log.append(kind, meta, payload)
        assert address > max(self.model, default=Address(0, 0, 0))
        self.model[address] = (
            kind,
            meta,
            b"".join(payload) if isinstance(payload, list) else payload,
        )
        return address

    @rule()
    def sync(self) -> None:
        self.log.sync()

    @rule(address=addresses)
    def read(self, address: Address) -> None:
        if address in self.model:
            assert bytes(self.log.read(address)) == self.model[address][2]
        else:
            with pytest.raises(AddressGone):
                self.log.read(address)

    @rule(position=st.integers(0, 5))
    def drop(self, position: int) -> None:
        older = self.log.segments()[:-1]
        if position < len(older):
            number = older[position].number
            dropped = self.log.drop(lambda other: other != number)
            gone = [address for address in self.model if address.segment == number]
            assert sum(info.bytes for info in dropped) == sum(address.length for address in gone)
            for address in gone:
                del self.model[address]

    @rule()
    def reopen(self) -> None:
        self.log.close()
        self.log = self.open()
        self.nothing_was_cut()

    @rule(position=st.integers(0, 5), damage=st.sampled_from(("gone", "torn")))
    def reopen_with_a_damaged_index(self, position: int, damage: str) -> None:
        self.log.close()
        indexes = sorted(self.directory.glob("*.index"))
        if position < len(indexes):
            data = indexes[position].read_bytes()
            indexes[position].write_bytes(data[: len(data) // 2] if damage == "torn" else b"")
        self.log = self.open()
        self.nothing_was_cut()

    @rule()
    def crash(self) -> None:
        before, old = self.directory, self.log
        self.number += 1
        shutil.copytree(before, self.directory)
        old.close()
        self.log = self.open()
        self.nothing_was_cut()

    @rule(junk=st.binary(min_size=1, max_size=100).filter(lambda junk: bool(junk.strip(b"\0"))))
    def crash_with_a_torn_tail(self, junk: bytes) -> None:
        active = self.log.segments()[-1]
        self.log.close()
        path = self.directory / f"{active.number:010d}.segment"
        with path.open("ab") as file:
            file.write(junk)
        self.log = self.open()
        assert self.log.recovered.cut_bytes == len(junk.rstrip(b"\0"))
        assert self.log.recovered.lost_bytes == 0

    def nothing_was_cut(self) -> None:
        assert self.log.recovered.cut_bytes == 0
        assert self.log.recovered.frames == len(self.model)

    @invariant()
    def the_log_is_the_model(self) -> None:
        listed = [(address, kind, meta) for address, kind, meta in frames_of(self.log)]
        assert listed == [(address, kind, meta) for address, (kind, meta, _) in self.model.items()]
        assert size_of(self.log) == sum(address.length for address in self.model)

    def teardown(self) -> None:
        self.log.close()
        self.committer.close()
        shutil.rmtree(self.place)


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Index a growing segment every two frames."""
    monkeypatch.setattr(index, "RUN_FRAMES", 2)


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
