"""The page of resources has every field, default and status; the indexes have every page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from streambroker_core.wire.manifests.ports import OBJECTS, read_manifest, write_manifest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/resources.md").read_text()
SCHEMAS: dict[str, Any] = yaml.safe_load(
    (ROOT / "operator/src/streambroker_operator/rest/openapi.yaml").read_text()
)["components"]["schemas"]


def fields(heading: str) -> set[str]:
    """Return the words in code spans in the first column of the table under a heading."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| ([^|]*) \|", section, re.MULTILINE)
    return {word for cell in cells for word in re.findall(r"`([^`]+)`", cell)}


def documents(mark: str) -> list[Any]:
    found = re.search(rf"^```yaml {mark}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return list(yaml.safe_load_all(found[1]))


@pytest.mark.parametrize("kind", ["Export", "Import"])
def test_every_field_of_a_spec_is_documented_and_no_other(kind: str) -> None:
    described = set(SCHEMAS[f"{kind}Spec"]["properties"])
    reported = fields(kind)

    assert {name.partition(".")[0] for name in reported} == described
    assert {"application.name", "application.scope"} <= reported


def test_every_part_of_the_buffer_is_documented() -> None:
    reported = {name.partition(".")[2] for name in fields("Export") if name.startswith("buffer.")}

    assert reported == {"maxBytes", "maxAge", "grace", "waitLimit"}


def test_every_field_of_metadata_and_status_is_documented() -> None:
    assert set(SCHEMAS["Metadata"]["properties"]) <= fields("metadata")
    assert set(SCHEMAS["Status"]["properties"]) == fields("status")


def test_a_short_document_is_kept_with_the_documented_defaults() -> None:
    kept = [write_manifest(read_manifest(document)) for document in documents("short")]

    assert kept == documents("whole")


@pytest.mark.parametrize("folder", ["docs", "docs/decisions"])
def test_an_index_has_every_page_of_its_folder(folder: str) -> None:
    index = (ROOT / folder / "README.md").read_text()
    pages = {path.name for path in (ROOT / folder).glob("*.md")} - {"README.md", "index.md"}

    assert pages
    assert pages <= set(re.findall(r"\]\(([^)/#]+)\)", index))


def test_argo_cd_gets_a_health_check_for_every_kind() -> None:
    text = (ROOT / "docs/gitops.md").read_text()
    block = text.partition("```yaml\nresource.customizations")[2].partition("```")[0]
    checks = yaml.safe_load(f"resource.customizations{block}")
    key = "resource.customizations.health.streambroker.io_"
    assert set(checks) == {f"{key}{kind}" for kind in OBJECTS}
    for script in checks.values():
        assert all(name in script for name in ("Accepted", "Ready", "Ended", "observedGeneration"))
