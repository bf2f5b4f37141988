"""Where the processor time goes: seconds by kind of process, below one process."""

from __future__ import annotations

import os
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
KINDS = {
    "pe_agent.agent": "agent",
    "java": "JVM",
    "pyspark/daemon": "Python workers",
    "pyspark.daemon": "Python workers",
}
KAFKA = "kafka.Kafka"

Used = dict[int, tuple[str, float]]
"""Kind of process and seconds so far, by process id."""


def used(root: int) -> Used:
    """Return the processor seconds used so far by a process and those below it.

    Kinds are ``JVM``, ``Kafka``, ``agent``, ``Python workers`` and ``driver`` (Spark's other Python
    processes, among them those that hold sources and sinks).
    """
    children: dict[int, list[int]] = {}
    ticks: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            found = _stat(entry)
            if found is not None:
                children.setdefault(found[0], []).append(int(entry.name))
                ticks[int(entry.name)] = found[1]
    result: Used = {}
    todo = [root]
    while todo:
        pid = todo.pop()
        todo += children.get(pid, [])
        result[pid] = (_kind(pid), ticks.get(pid, 0.0))
    return result


def seconds(pid: int) -> float:
    """Return the processor seconds that one process has used so far.

    Raises:
        ProcessLookupError: it has ended.
    """
    found = _stat(Path(f"/proc/{pid}"))
    if found is None:
        raise ProcessLookupError(f"process {pid} has ended")
    return found[1]


def resident(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def proportional(root: int, kind: str) -> float:
    """Return the memory of the processes of a kind below one process, in MiB.

    What several have in common counts once.
    """
    total = 0
    for pid, (found, _) in used(root).items():
        total += _share(pid) if found == kind else 0
    return total / 1024


def between(before: Used, after: Used) -> dict[str, float]:
    """Return the seconds used by kind; processes that ended meanwhile are not in it."""
    result: dict[str, float] = {}
    for pid, (kind, seconds) in after.items():
        old = before.get(pid, (kind, 0.0))[1]
        result[kind] = result.get(kind, 0.0) + seconds - old
    return result


def _stat(entry: Path) -> tuple[int, float] | None:
    """Return parent and seconds of a process."""
    try:
        fields = (entry / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[1]), sum(map(int, fields[11:13])) / TICKS


def _share(pid: int) -> int:
    """Return the proportional memory of a process in KiB; 0 if it has ended."""
    try:
        reported = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in reported.splitlines() if line.startswith("Pss:"))


def _kind(pid: int) -> str:
    try:
        line = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return "driver"
    program = line.partition(" ")[0]
    if program.endswith("java"):
        return "Kafka" if line.rstrip().rpartition(" ")[0].endswith(KAFKA) else "JVM"
    return next((kind for mark, kind in KINDS.items() if mark in line and mark != "java"), "driver")
