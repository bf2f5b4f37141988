"""The tutorials run as a reader runs them, with the commands of the pages."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.processes.waiting import until

ROOT = Path(__file__).parents[2]
PAGES = {
    "rerouting": "06-rerouting",
    "fraud-rules": "07-fraud-rules",
    "enrichment": "08-enrichment",
}
BIN = Path(sys.executable).parent
pytestmark = pytest.mark.timeout(1500)
SECONDS = 300.0
"""How long a step may take on a busy machine; a whole tutorial takes less than a minute."""


class Reader:
    """Follows one page in a copy of its example.

    Args:
        name: name of the page.
        folder: an empty directory.
        url: address of the broker, if the page has one.
    """

    def __init__(self, name: str, folder: Path, url: str = "") -> None:
        self.page = (ROOT / f"docs/tutorials/{name}.md").read_text()
        self.folder = folder / name
        shutil.copytree(ROOT / "examples" / PAGES[name], self.folder)
        self._environment = {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            **({"STREAMBROKER_URL": url} if url else {}),
        }

    def run(self, command: str, code: int = 0) -> str:
        """Run a command that the page has; return its output and errors."""
        assert command in self.page, f"the page has no {command}"
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    @contextmanager
    def terminal(self, command: str, *options: str) -> Iterator[Path]:
        """Run a command of the page until the block ends, then press Ctrl-C; yield its output."""
        assert command in self.page, f"the page has no {command}"
        output = self.folder / f"{len(list(self.folder.glob('*.txt')))}.txt"
        with output.open("w") as file:
            process = subprocess.Popen(
                [*shlex.split(command), *options],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        try:
            yield output
            process.send_signal(signal.SIGINT)
            assert process.wait(SECONDS) == 0, output.read_text()[-2000:]
        finally:
            process.kill()
            process.wait()


def shows(output: Path, pattern: str, after: int = 0) -> int:
    """Wait until an output matches a pattern behind a place; return where the match ends."""

    def found() -> int:
        match = re.compile(pattern, re.MULTILINE).search(output.read_text(), after)
        return match.end() if match else 0

    try:
        return until(found, SECONDS, f"{pattern} in {output.name}")
    except AssertionError as error:
        error.add_note(output.read_text()[-3000:])
        raise


@pytest.mark.parametrize("name", PAGES)
def test_the_code_and_the_files_of_a_tutorial_are_those_of_its_example(name: str) -> None:
    page = (ROOT / f"docs/tutorials/{name}.md").read_text()
    folder = ROOT / "examples" / PAGES[name]
    files = [file.read_text() for file in folder.rglob("*") if file.suffix in (".py", ".yaml")]
    blocks = re.findall(r"^```(?:python|yaml)[^\n]*\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert blocks
    assert [block for block in blocks if not any(block in file for file in files)] == []


@pytest.mark.parametrize("name", PAGES)
def test_a_tutorial_has_each_file_that_its_reader_needs(name: str) -> None:
    page = (ROOT / f"docs/tutorials/{name}.md").read_text()
    folder = f"examples/{PAGES[name]}"
    files = [file for file in (ROOT / folder).rglob("*.*") if "__pycache__" not in file.parts]
    names = [str(file.relative_to(ROOT / folder)) for file in files]
    assert names
    assert [one for one in names if f"[{one}](../../{folder}/{one})" not in page] == []


@pytest.mark.slow
def test_two_jobs_reroute_a_stream_and_the_importer_loses_no_row(tmp_path: Path) -> None:
    command = [str(BIN / "streambroker"), "up", "--port", "0", "--db", str(tmp_path / "broker.db")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            reader = Reader("rerouting", tmp_path, url)
            broker = ("--broker", url)
            with reader.terminal("python airports.py", *broker, "--seconds", "1"):
                until(lambda: reader_has(reader, "airports-0-lga"), SECONDS, "both exports")
                _reroute(reader, broker)
        finally:
            process.terminate()


def reader_has(reader: Reader, text: str) -> bool:
    return text in reader.run("streambroker get exports")


def _reroute(reader: Reader, broker: tuple[str, ...]) -> None:
    with reader.terminal("python delays.py", *broker) as delays:
        shows(delays, r"^2013-\d\d-\d\d JFK: \d+ flights, (6[1-9]|[7-9]\d|\d{3,}) minutes")
        assert "LGA" not in delays.read_text()
        why = reader.run("streambroker explain delays/0/late airports/0/lga")
        assert "needs checked = true, has false" in why
        reader.run(
            "streambroker set-properties airports/0/lga kind=departures airport=LGA checked=true"
        )
        shows(delays, r" LGA: \d+ flights")
        assert "1 cut" in reader.run("streambroker whatif -f only-lga.yaml", code=3)
        refused = reader.run("streambroker set-filter delays/0/late 'delay > 30'", code=1)
        assert "did you mean `dep_delay`?" in refused
        reader.run("streambroker set-filter delays/0/late 'dep_delay > 30'")
        shows(delays, r"flights, (3[1-9]|4\d) minutes", after=len(delays.read_text()))
    days = len(list((reader.folder / "days/jfk").glob("*.parquet")))
    until(
        lambda: len(list((reader.folder / "days/jfk").glob("*.parquet"))) > days + 2,
        SECONDS,
        "days without the importer",
    )
    with reader.terminal("python delays.py", *broker) as delays:
        shows(delays, r" JFK: \d+ flights")
    checked = reader.run("python check.py")
    assert checked.count("days that differ: none") == 2, checked
    assert re.search(r"^JFK: \d+ flights; \S+ to \S+; days", checked, re.MULTILINE), checked


@pytest.mark.slow
def test_fraud_rules_change_while_the_job_runs(tmp_path: Path) -> None:
    reader = Reader("fraud-rules", tmp_path)
    with (
        reader.terminal("python payments.py", "--pause", "0.2"),
        reader.terminal("python find_fraud.py") as job,
    ):
        end = shows(job, r"^match tested-card 1 card-\d\d .*'large': \[9\d\d\.0\]")
        found = reader.run("python try_rule.py drafts/tested-card.yaml")
        assert re.search(r"^card-\d\d \{'small': \[1\.0, 1\.0\]", found, re.MULTILINE), found
        reader.run("mv drafts/tested-card.yaml rules/tested-card.yaml")
        end = shows(job, r"^match tested-card 2 card-\d\d .*'small': \[1\.0, 1\.0\]", end)
        reader.run("mv drafts/abroad.yaml rules/abroad.yaml")
        reader.run("mv drafts/broken.yaml rules/broken.yaml")
        end = shows(job, r"^rule large 1 refused FieldUnknown", end)
        end = shows(job, r"^match abroad 1 card", end)
        reader.run("sed -i 's/amount > 500/amount > 800/' rules/tested-card.yaml")
        end = shows(job, r"^rule tested-card 2 refused ContentDiffers", end)
        reader.run("sed -i 's/version: 2/version: 3/' rules/tested-card.yaml")
        end = shows(job, r"^match tested-card 3 card", end)
        shows(job, r"^waiting [1-9]\d* payments")


@pytest.mark.slow
def test_payments_wait_for_their_rate_and_see_the_table_of_their_time(tmp_path: Path) -> None:
    reader = Reader("enrichment", tmp_path)
    puts = re.findall(r"^python put\.py (?:.*\\\n)*.*$", reader.page, re.MULTILINE)
    first, francs, rates, changed, again, stopped = puts
    with reader.terminal("python with_table.py") as job:
        shows(job, r"merchants")
        reader.run(first)
        shows(job, r"\|3 +\|m3 +\|EUR +\|7\.0 +\|NULL")
        reader.run("mv drafts/second.csv merchants/second.csv")
        versions = reader.folder / "store/merchants/versions.json"
        until(lambda: '"v2-' in versions.read_text(), SECONDS, "the table's second version")
        reader.run(francs)
        shows(job, r"\|4 +\|m3 +\|CHF +\|30\.0 +\|City Bikes")
    with reader.terminal("python with_rates.py") as job:
        shows(job, r"rates")
        reader.run(rates)
        shows(job, r"^out 2 Green Grocer food USD 0\.9 36\.0")
        reader.run(changed)
        reader.run(again)
        shows(job, r"^out 5 Green Grocer food USD 0\.8 32\.0")
    reader.run(stopped)
    with reader.terminal("python with_rates.py") as job:
        shows(job, r"^out 7 Corner Books books USD 0\.8 80\.0")
        assert "out 2 " not in job.read_text()
