"""The two jobs of examples/kubernetes as pods, changed so far that their rows can be counted."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.clusters.node import Cluster
from support.kubernetes.charts import ROOT
from support.processes.waiting import until

NAMESPACE = "jobs"
CLAIMS = ("feed-0", "alerts-0")
ROWS_PER_SECOND = 500
HOME = "/var/lib/streambroker"

Row = tuple[int, str, int]
"""Number, symbol, price."""
Filter = Callable[[Row], bool]

_SYMBOLS = ("IBM", "GOOG", "AAPL")
_SUBMIT_SECONDS = 120.0
_START_SECONDS = 180.0
_PAUSE_SECONDS = 1.0
_SMALL = {
    # Four pods of Spark share the processors of one small machine.
    "spark.kubernetes.driver.request.cores": "0.1",
    "spark.kubernetes.executor.request.cores": "0.1",
    "spark.kubernetes.submission.waitAppCompletion": "false",
    "spark.ui.enabled": "false",
}

_FEED_ENDS = f"""\
# Export until it is told to end; then what is due, in whole batches, and tell how much it was.
while not os.path.exists(f"{{HOME}}/end"):
    if query.awaitTermination(1):
        raise SystemExit("the query ended")
query.stop()
whole = {{"availableNow": True}}
pe.publish(trades, "trades", checkpoint=f"{{HOME}}/checkpoint", trigger=whole).awaitTermination()
batch = max((x for x in os.listdir(f"{{HOME}}/checkpoint/offsets") if x.isdigit()), key=int)
with open(f"{{HOME}}/checkpoint/offsets/{{batch}}") as offsets:
    seconds = int(offsets.read().split()[-1])
with open(f"{{HOME}}/exported.new", "w") as file:
    file.write(str(seconds * {ROWS_PER_SECOND}))
os.rename(f"{{HOME}}/exported.new", f"{{HOME}}/exported")
threading.Event().wait()  # its agent serves on
"""
_ALERTS_KEEPS = """\
def keep(rows, batch):
    os.makedirs(f"{HOME}/rows", exist_ok=True)
    # A batch that Spark repeats takes the place of its first try.
    with open(f"{HOME}/rows/{batch}.new", "w") as file:
        json.dump([[row.number, row.symbol, row.price] for row in rows.collect()], file)
    os.rename(f"{HOME}/rows/{batch}.new", f"{HOME}/rows/{batch}")


# No settings"""
_SHOW = f"""
import json, pathlib, sys
for file in pathlib.Path("{HOME}/rows").glob("*"):
    for row in json.loads(file.read_text()) if file.name.isdigit() else ():
        if row[0] >= int(sys.argv[1]):
            print(json.dumps(row))
"""


_EXPORTED = f"""
import pathlib
home = pathlib.Path("{HOME}/checkpoint")
batch = max(int(file.name) for file in home.glob("commits/*") if file.name.isdigit())
print(int((home / "offsets" / str(batch)).read_text().split()[-1]) * {ROWS_PER_SECOND})
"""
_KEPT_MOUNT = f"        - {{name: kept, mountPath: {HOME}}}"
_KEPT = "    - {name: kept, persistentVolumeClaim: {claimName: feed-0}}\n"
_GAP_ROWS = 10 * ROWS_PER_SECOND


def row(number: int) -> Row:
    """Return the row of a number, as feed.py makes it."""
    return number, _SYMBOLS[number % 3], number * 37 % 100


@dataclass(frozen=True)
class Jobs:
    """The jobs feed and alerts on a cluster; with a bucket, feed's agent has no volume."""

    cluster: Cluster
    folder: Path
    tls: bool = False
    bucket: bool = False

    def kubectl(self, *arguments: str, stdin: str = "", **environment: str) -> str:
        return self.cluster.kubectl(
            f"--namespace={NAMESPACE}", *arguments, stdin=stdin, **environment
        )

    def pods(self, job: str) -> list[Any]:
        labels = f"spark-role=driver,streambroker.io/job={job}"
        found: list[Any] = self.cluster.get(
            "pods", f"--namespace={NAMESPACE}", f"--selector={labels}"
        )["items"]
        return found

    def submit(self, job: str, *, sidecar: bool = False) -> None:
        """Run submit.sh; the driver pod is made when it returns."""
        kind = "-bucket" if self.bucket and job == "feed" else "-sidecar" if sidecar else ""
        names = {"DRIVER": f"{job}-driver{kind}", "EXECUTOR": "executor"}
        pods = {key: f"{'tls/' if self.tls else ''}{name}.yaml" for key, name in names.items()}
        settings = [
            word for name, value in _SMALL.items() for word in ("--conf", f"{name}={value}")
        ]
        done = subprocess.run(
            [str(self.folder / "submit.sh"), job, *settings],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SUBMIT_SECONDS,
            check=False,
            env={**self.cluster.environment, "API": self.cluster.url, **pods},
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def driver(self, job: str) -> str:
        """Return the name of the job's driver pod, once it is the only one and runs."""

        def running() -> str | None:
            found = self.pods(job)
            for each in found:
                ended = each["status"]["phase"] in ("Failed", "Succeeded")
                deleted = "deletionTimestamp" in each["metadata"]
                assert deleted or not ended, self.kubectl(
                    "logs", "--tail=60", each["metadata"]["name"]
                )
            if len(found) == 1 and found[0]["status"]["phase"] == "Running":
                return str(found[0]["metadata"]["name"])
            return None

        return until(running, _START_SECONDS, f"one driver of {job} runs", pause_s=_PAUSE_SECONDS)

    def ask(self, job: str, *command: str) -> str:
        return self.kubectl("exec", self.driver(job), "--", *command)

    # ---- rows ----------------------------------------------------------------

    def rows(self, first: int = 0) -> list[Row]:
        """Return what alerts has got, from a number on, in the order of the numbers."""
        lines = self.ask("alerts", "python3", "-c", _SHOW, str(first)).splitlines()
        return sorted((number, symbol, price) for number, symbol, price in map(json.loads, lines))

    def await_row(self, what: str, fits: Filter, seconds: float = 120.0) -> Row:
        """Return the first new row that alerts gets and that fits."""
        last = max(self.rows(), default=(-1, "", 0))[0]

        def found() -> Row | None:
            return next((each for each in self.rows(last + 1) if fits(each)), None)

        return until(found, seconds, what, pause_s=_PAUSE_SECONDS)

    def await_gap(self) -> None:
        """Wait until much has been exported after the last row that alerts has got."""

        def gap() -> bool:
            exported = int(self.ask("feed", "python3", "-c", _EXPORTED))
            return not self.rows(exported - _GAP_ROWS)

        until(gap, 120.0, f"{_GAP_ROWS} rows that alerts does not get", pause_s=_PAUSE_SECONDS)

    def end_feed(self) -> int:
        """Let feed export what is due and nothing more; return how many rows that makes."""
        self.ask("feed", "touch", f"{HOME}/end")
        printed = until(
            lambda: self.ask("feed", "sh", "-c", f"cat {HOME}/exported || true"),
            120.0,
            "feed tells how much it has exported",
            pause_s=_PAUSE_SECONDS,
        )
        return int(printed)


def prepared(folder: Path) -> Path:
    """Copy the example, with programs that export faster, end when told, and keep what they get."""
    shutil.copytree(ROOT / "examples/kubernetes", folder)
    _change(
        folder / "feed.py",
        ("import os\n", "import os\nimport threading\n"),
        ('"rowsPerSecond", 10)', f'"rowsPerSecond", {ROWS_PER_SECOND})'),
        ("query.awaitTermination()\n", _FEED_ENDS),
    )
    _change(
        folder / "alerts.py",
        ("import os\n", "import json\nimport os\n"),
        ("# No settings", _ALERTS_KEEPS),
        ('.format("console")', ".foreachBatch(keep)"),
    )
    return folder


def with_bucket(folder: Path) -> None:
    """Change the example so that feed's log is in a bucket, and its checkpoint on its volume."""
    _change(
        folder / "feed-driver-bucket.yaml",
        ("- name: CHECKPOINT\n", ""),
        ("          value: s3a://rows/checkpoints/jobs/feed\n", ""),
        (f"mountPath: {HOME}}}", f"mountPath: {HOME}/agent}}\n{_KEPT_MOUNT}"),
        ("emptyDir: {sizeLimit: 4Gi}\n", f"emptyDir: {{sizeLimit: 4Gi}}\n{_KEPT}"),
    )
    _change(folder / "streams.yaml", ("  buffer: {max", "  durability: stored\n  buffer: {max"))


def _change(path: Path, *changes: tuple[str, str]) -> None:
    text = path.read_text()
    for old, new in changes:
        assert text.count(old) == 1, (path.name, old)
        text = text.replace(old, new)
    path.write_text(text)


def explained(
    rows: Iterable[Row], filters: Sequence[Filter | None], exported: int
) -> tuple[bool, str]:
    """Tell whether rows are exactly what filters let through that held one after the other.

    Where each change came to hold is not known, only their order: all places are tried at the
    same time.
    """
    came = {each[0]: each for each in rows}
    possible = {0}
    for number in range(exported):
        whole = row(number)
        if number in came and came[number] != whole:
            return False, f"{came[number]} came for {whole}"
        # The same filter as before, or the next one.
        reached = possible | {place + 1 for place in possible if place + 1 < len(filters)}
        here = {x for x in reached if _passes(filters[x], whole) == (number in came)}
        if not here:
            word = "came" if number in came else "did not come"
            return False, f"{whole} {word}; one of filters {sorted(possible)} held"
        possible = here
    if len(filters) - 1 not in possible:
        return False, f"at the end filter {sorted(possible)} held, not the last"
    beyond = [number for number in came if number >= exported]
    return not beyond, f"{beyond[:5]} were never exported" if beyond else ""


def _passes(condition: Filter | None, each: Row) -> bool:
    return condition is not None and condition(each)
