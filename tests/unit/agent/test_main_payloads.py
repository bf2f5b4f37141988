"""Payload types of a script: what another process makes of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
from __future__ import annotations

import sys
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from pyspark.serializers import CPickleSerializer

from streambroker.operators import TypedOperator, handles


@dataclass
class Change:
    since: datetime
    parts: list[Part]
    one: Part | None = None


class Changing(TypedOperator):
    strict = True

    @handles(Change)
    def change(self, port, payload, control):
        print(type(payload).__name__, payload.since.year, payload.parts[0].at.year, payload.one)
        return True

{later}

Path(sys.argv[1]).write_bytes(CPickleSerializer().dumps(Changing))
"""
LATER = """
@dataclass
class Part:
    at: datetime
"""
RECEIVER = """
import pickle, sys
from pathlib import Path

from streambroker_core.control.tuples import make_logged_tuple

made = pickle.loads(Path(sys.argv[1]).read_bytes())()
time = "2013-01-01T00:00:00+00:00"
text = f'{{"since":"{time}","parts":[{{"at":"{time}"}}],"one":null}}'
made.process_control("in", make_logged_tuple("log", 0, type_="Change", text=text))
"""


def run(script: Path, text: str, pickled: Path) -> subprocess.CompletedProcess[str]:
    script.write_text(text)
    command = [sys.executable, str(script), str(pickled)]
    return subprocess.run(
        command, capture_output=True, text=True, env={**os.environ}, check=False, timeout=120
    )


def test_types_of_fields_are_found_where_the_script_runs_and_not_in_the_worker(
    tmp_path: Path,
) -> None:
    pickled = tmp_path / "pickled"
    sent = run(tmp_path / "script.py", SCRIPT.format(later=LATER), pickled)
    assert sent.returncode == 0, sent.stderr
    received = run(tmp_path / "worker.py", RECEIVER, pickled)
    assert (received.returncode, received.stdout) == (0, "Change 2013 2013 None\n"), received.stderr


def test_a_type_that_the_script_does_not_have_is_refused_where_it_runs(tmp_path: Path) -> None:
    sent = run(tmp_path / "script.py", SCRIPT.format(later=""), tmp_path / "pickled")
    assert sent.returncode != 0
    assert "payload type Change names a type that cannot be found" in sent.stderr


FIELDS = """
from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pyspark.serializers import CPickleSerializer

from streambroker.operators import Operator
from streambroker_core.control.runtime.emitter import Stage
from streambroker_core.control.runtime.runner import AlignedRunner


@dataclass
class Keeping(Operator):
    step: Final[int] = 1
    parts: list[Part] = field(default_factory=list)

    def end_window(self):
        self.parts.append(Part(len(self.parts)))
        print(self.parts[-1].number)


@dataclass
class Part:
    number: int
    inner: Inner | None = None


@dataclass
class Inner:
    number: int


AlignedRunner(Keeping, Stage(query="q", operator="op", buckets=1))
Path(sys.argv[1]).write_bytes(CPickleSerializer().dumps(Keeping))
"""
RUNNING = """
import pickle, sys
from pathlib import Path

from streambroker_core.control.operators.operator import Window
from streambroker_core.control.runtime.emitter import Stage
from streambroker_core.control.runtime.runner import AlignedRunner

runner = AlignedRunner(
    pickle.loads(Path(sys.argv[1]).read_bytes()), Stage(query="q", operator="op", buckets=1)
)
blobs = {}
for number in (1, 2):
    window = Window(number=number, time=0, watermark=None, bucket=0, buckets=1)
    blobs.update(runner.run(window, [], blobs).changes)
"""


def test_types_of_declared_fields_are_found_in_the_script_and_not_in_the_worker(
    tmp_path: Path,
) -> None:
    pickled = tmp_path / "pickled"
    sent = run(tmp_path / "script.py", FIELDS, pickled)
    assert sent.returncode == 0, sent.stderr
    received = run(tmp_path / "worker.py", RUNNING, pickled)
    assert (received.returncode, received.stdout) == (0, "0\n1\n"), received.stderr
