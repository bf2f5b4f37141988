"""What is published: one version everywhere, complete metadata, and builds that can be repeated."""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import dry_run
import matrix
import packages
import pytest
import version
import yaml

ROOT = Path(__file__).parents[2]
PROJECTS = {
    name: tomllib.loads((ROOT / name / "pyproject.toml").read_text())["project"]
    for name in version.PACKAGES
}
TOOLS: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
ADDRESS = "https://host.example/owner/name"


# ---- one version -----------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", version.STATED)
def test_each_file_states_the_version_of_the_file_version(pattern: str) -> None:
    paths = set(ROOT.glob(pattern))
    found = {found[1] for path, found in version.find_versions() if path in paths}

    assert found == {version.read_version()}, "make version"


def test_what_is_rendered_from_the_chart_has_the_version() -> None:
    made = yaml.safe_load_all((ROOT / "deploy/base/streambroker.yaml").read_text())
    labels = [each["metadata"].get("labels", {}) for each in made]
    name = "app.kubernetes.io/version"

    assert {each[name] for each in labels if name in each} == {version.read_version()}


def test_a_new_version_is_written_to_all_places_and_nothing_else_changes(tmp_path: Path) -> None:
    before = {}
    for path, _ in version.find_versions():
        target = tmp_path / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
        before[target] = path.read_text()
    (tmp_path / "VERSION").write_text("9.8.7rc1\n")
    version.write_version(tmp_path)

    assert {found[1] for _, found in version.find_versions(tmp_path)} == {"9.8.7rc1"}
    for path, text in before.items():
        assert path.read_text().replace("9.8.7rc1", version.read_version()) == text


def test_a_file_without_a_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "VERSION").write_text("latest\n")

    with pytest.raises(ValueError, match='VERSION has "latest"; write a version such as'):
        version.read_version(tmp_path)


# ---- metadata --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", version.PACKAGES)
def test_metadata_are_complete_and_name_the_tested_pythons(name: str) -> None:
    project = PROJECTS[name]
    pythons = [
        classifier.rsplit(" ", 1)[1]
        for classifier in project["classifiers"]
        if re.search(r":: 3\.\d+$", classifier)
    ]

    assert project["readme"] == "README.md"
    assert (project["license"], project["license-files"]) == ("Apache-2.0", ["LICENSE"])
    assert project["description"]
    assert project["authors"]
    assert project["keywords"]
    assert "Typing :: Typed" in project["classifiers"]
    assert tuple(pythons) == matrix.PYTHONS
    assert project["requires-python"] == f">={matrix.PYTHONS[0]}"


def test_linter_and_type_checker_assume_the_oldest_python() -> None:
    oldest = matrix.PYTHONS[0]

    assert TOOLS["ruff"]["target-version"] == "py" + oldest.replace(".", "")
    assert TOOLS["mypy"]["python_version"] == oldest


def test_each_import_package_has_types() -> None:
    roots = [path for name in version.PACKAGES for path in (ROOT / name / "src").iterdir()]
    named = [path for path in roots if (path / "__init__.py").exists()]
    assert len(named) == 7
    assert [path.name for path in named if not (path / "py.typed").exists()] == []


# ---- builds ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", version.PACKAGES)
def test_a_published_readme_has_no_relative_link(name: str, tmp_path: Path) -> None:
    packages.stage(name, tmp_path, "")
    without = (tmp_path / "README.md").read_text()
    shutil.rmtree(tmp_path / "src")
    packages.stage(name, tmp_path, ADDRESS)
    links = re.findall(r"\]\(([^)]+)\)", (tmp_path / "README.md").read_text())

    assert "](" not in without
    assert links
    assert [link for link in links if not link.startswith(f"{ADDRESS}/blob/v")] == []
    assert (tmp_path / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


@pytest.mark.parametrize("repository", ["", ADDRESS])
def test_addresses_are_in_the_metadata_only_if_the_release_has_one(
    repository: str, tmp_path: Path
) -> None:
    packages.stage("core", tmp_path, repository)
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]

    assert project.get("urls", {}).get("Source", "") == repository


@pytest.mark.parametrize("repeatable", [True, False])
def test_a_build_that_cannot_be_repeated_is_not_released(
    repeatable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = packages.build

    def build(source: Path, target: Path) -> None:
        real(source, target)
        if target.name == "second" and not repeatable:
            (wheel,) = target.glob("*.whl")
            wheel.write_bytes(wheel.read_bytes() + b"0")

    monkeypatch.setattr(packages, "build", build)
    monkeypatch.setattr(packages, "PACKAGES", ("pe_agent/streambroker",))
    monkeypatch.setattr(packages, "DIST", tmp_path / "dist")

    assert packages.main() == (0 if repeatable else 1)
    assert (tmp_path / "dist").exists() == repeatable


# ---- tests of the packages -------------------------------------------------------------------


@pytest.mark.parametrize(("passed", "code"), [(True, 0), (False, 1)])
def test_the_matrix_names_each_case_and_the_pythons_that_are_missing(
    passed: bool, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    present = {"3.11": "/python3.11", "3.13": "/python3.13"}
    monkeypatch.setattr(matrix, "find_python", present.get)
    monkeypatch.setattr(matrix, "install", lambda case, program: None)
    monkeypatch.setattr(matrix, "test", lambda case: passed or case.python != "3.13")

    assert matrix.main(["3.11", "3.13", "3.14"]) == code
    assert capsys.readouterr().out.splitlines()[-4:] == [
        "passed: Python 3.11, lowest dependencies",
        "passed: Python 3.11, newest dependencies",
        f"{'passed' if passed else 'FAILED'}: Python 3.13, newest dependencies",
        "skipped: Python 3.14, which this machine does not have",
    ]


def test_a_matrix_without_any_python_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "find_python", lambda version: None)

    assert matrix.main(["3.14"]) == 1


def test_the_tests_of_the_matrix_exist() -> None:
    assert [path for path in matrix.TESTS if not (ROOT / path).exists()] == []


def test_the_first_stream_has_the_code_that_the_dry_run_types() -> None:
    code = dry_run.find_code()

    assert ["publish(" in each for each in code] == [True, False, False]
    assert ["subscribe(" in each for each in code] == [False, True, False]
    assert 'set_filter("price > 20")' in code[2]
