"""The charts of the documentation show the committed figures."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("charts_of_docs", ROOT / "docs/charts.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


CHARTS = loaded()
RESULTS = json.loads(CHARTS.MEASURED.read_text())
PAGES = "\n".join(
    path.read_text() for path in (*ROOT.glob("docs/**/*.md"), ROOT / "benchmarks/README.md")
)


@pytest.mark.parametrize("name", CHARTS.CHARTS)
def test_a_chart_is_drawn_from_the_committed_figures(name: str) -> None:
    mark = CHARTS.mark_of(CHARTS.spec_of(CHARTS.CHARTS[name], RESULTS))
    drawn = (CHARTS.IMAGES / f"chart-{name}.svg").read_text().splitlines()[0]
    assert drawn == mark, "run `make charts`"


@pytest.mark.parametrize("name", CHARTS.CHARTS)
def test_a_chart_is_shown_on_a_page(name: str) -> None:
    assert f"images/chart-{name}.svg" in PAGES


def test_there_is_no_drawing_without_a_chart() -> None:
    drawn = {path.stem for path in CHARTS.IMAGES.glob("chart-*.svg")}
    assert drawn == {f"chart-{name}" for name in CHARTS.CHARTS}


def test_other_figures_make_another_mark() -> None:
    name, chart = next(iter(CHARTS.CHARTS.items()))
    changed = json.loads(json.dumps(RESULTS))
    figure = changed["benchmarks"][chart.benchmark]["figures"][next(iter(chart.ours.values()))]
    figure["median"] *= 2
    assert CHARTS.mark_of(CHARTS.spec_of(chart, changed)) != CHARTS.mark_of(
        CHARTS.spec_of(CHARTS.CHARTS[name], RESULTS)
    )
