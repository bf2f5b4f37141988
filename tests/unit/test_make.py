"""What a newcomer sees of `make setup` and `make test`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def loaded(path: str) -> Any:
    """Load a program of the repository that belongs to no package."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def printing(text: str, code: int = 0) -> list[str]:
    return [sys.executable, "-c", f"import sys; print({text!r}); sys.exit({code})"]


SKIPPED = "SKIPPED [{}] tests/x.py:18: .kube has no etcd; `make kube-assets` builds them once"


@pytest.mark.parametrize(("codes", "worst"), [((0, 0), 0), ((0, 5), 5)])
def test_the_last_line_says_how_many_tests_need_an_api_server(
    codes: tuple[int, int],
    worst: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = loaded("tests/run.py")
    groups = [
        run.Group(name=str(count), commands=[printing(SKIPPED.format(count), code)])
        for count, code in zip((3, 40), codes, strict=True)
    ]
    monkeypatch.setattr(run, "groups", lambda _: groups)

    assert run.main([]) == worst
    assert (
        capsys.readouterr()
        .out.splitlines()[-1]
        .startswith(
            "43 tests need a Kubernetes API server and did not run. `make test-all` builds one"
        )
    )


@pytest.mark.parametrize(
    ("codes", "some", "worst"),
    [((0, 5), True, 0), ((1, 5), True, 1), ((5, 5), True, 5), ((0, 5), False, 5)],
)
def test_a_selection_may_leave_a_group_without_tests_but_not_all(
    codes: tuple[int, int], some: bool, worst: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = loaded("tests/run.py")
    made = [run.Group(name=f"g{code}", commands=[printing("", code)]) for code in codes]
    monkeypatch.setattr(run, "groups", lambda _: made)

    assert run.main([], some=some) == worst


def test_failures_of_all_groups_stand_at_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = loaded("tests/run.py")
    failed = "E       assert {0}\n\nFAILED tests/x.py::test_{0} - assert {0}\n1 failed"
    made = [run.Group(name=n, commands=[printing(failed.format(n), 1)]) for n in ("a", "b")]
    monkeypatch.setattr(run, "groups", lambda _: [*made, run.Group(name="c", commands=[])])
    run.main([])

    last = capsys.readouterr().out.partition("--- what failed, of all groups:\n")[2].splitlines()
    expected = [(f"E       assert {n}", f"FAILED tests/x.py::test_{n} - assert {n}") for n in "ab"]
    assert sorted(last) == sorted(line for pair in expected for line in pair)


def test_a_group_ends_at_the_first_command_that_fails() -> None:
    run = loaded("tests/run.py")
    code, output = run.run(run.Group(name="g", commands=[printing("a", 3), printing("b")]))

    assert code == 3
    assert "\na\n" in output
    assert "\nb\n" not in output


def test_the_setup_shows_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install = loaded("requirements/install.py")
    monkeypatch.setattr(install, "EVERY_SECONDS", 0.0)
    progress = install.Progress(94)
    for line in ("Collecting lark==1.3.0", "  Using cached", "Collecting kopf==1.45.2 (from -r x)"):
        progress.take(line)
    progress.show()
    progress.take("Installing collected packages: lark, kopf")
    progress.show()

    shown = capsys.readouterr().out.splitlines()
    assert shown[0].endswith("2 of 94 packages fetched, now kopf")
    assert shown[1].endswith("installing 2 packages")
