"""The workflows of a public host: what they run can be run on any machine, and is fixed."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
VERSION = re.findall(
    r"^appVersion: (\S+)$", (ROOT / "charts/streambroker/Chart.yaml").read_text(), re.MULTILINE
)[0]


def jobs(path: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(path.read_text())["jobs"]
    return found


def steps(path: Path) -> Iterator[dict[str, Any]]:
    for job in jobs(path).values():
        yield from job["steps"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_targets_of_the_makefile_only(path: Path) -> None:
    for command in [step["run"] for step in steps(path) if "run" in step]:
        program, *targets = command.split()
        assert program == "make"
        assert targets
        assert set(targets) <= TARGETS


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_takes_actions_by_their_commit(path: Path) -> None:
    uses = [step["uses"] for step in steps(path) if "uses" in step]
    assert uses
    for one in uses:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", one)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_has_no_right_that_a_job_does_not_name(path: Path) -> None:
    assert yaml.safe_load(path.read_text())["permissions"] == {}
    for job in jobs(path).values():
        assert job["permissions"]
        assert job["timeout-minutes"] <= 120


def check_tag(tag: str, output: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / ".ci/tag.sh", tag],
        env={"PATH": os.environ["PATH"], "GITHUB_OUTPUT": str(output)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_tag_of_another_version_is_no_release(tmp_path: Path) -> None:
    refused = check_tag("v99.0.0", tmp_path / "output")
    assert refused.returncode == 1
    assert f'The tag is "v99.0.0", and this is version {VERSION}.' in refused.stderr
    assert not (tmp_path / "output").exists()


@pytest.mark.parametrize("name", ["REGISTRY", "REPOSITORY", "BROKER_BASE", "SPARK_BASE"])
def test_images_are_not_pushed_without_a_setting(name: str, tmp_path: Path) -> None:
    settings = {
        "REGISTRY": "registry.example.com/streams",
        "REPOSITORY": "https://git.example.com/streams",
        "BROKER_BASE": "python@sha256:1",
        "SPARK_BASE": "python@sha256:1",
    }
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\nexit 9\n")
    docker.chmod(0o755)
    del settings[name]
    refused = subprocess.run(
        [ROOT / "docker/push.sh"],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 2
    assert f"Set {name} to" in refused.stderr
