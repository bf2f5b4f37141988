"""The samples beside the CRDs: documents that are accepted, and documents that are refused.

A file may hold several documents of one resource. All but the last are applied first and are
accepted. The last of an invalid file has annotations: ``streambroker.io/refused`` is a part of
the message, and ``streambroker.io/refused-by: broker`` says that the API server cannot see it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streambroker_core.board.rule_index import rule_problem
from streambroker_core.errors import StreambrokerError
from streambroker_core.expression import parse
from streambroker_core.model import RULE, Import, Resource, Rule
from streambroker_core.wire.manifests.ports import OBJECTS, read_manifest, size_problem
from streambroker_core.wire.manifests.rules import read_rule_manifest
from streambroker_operator.cli.io.yaml_format import load_all

_FOLDER = Path(__file__).parents[3] / "crds" / "samples"
_REFUSED = "streambroker.io/refused"
_BY = "streambroker.io/refused-by"


@dataclass(frozen=True)
class Sample:
    """One file."""

    name: str
    texts: tuple[str, ...]
    documents: tuple[dict[str, Any], ...]

    @property
    def refused(self) -> str:
        """A part of the message that refuses the last document."""
        return str(self.documents[-1]["metadata"]["annotations"][_REFUSED])

    @property
    def only_by_broker(self) -> bool:
        """Whether the API server takes the last document."""
        return bool(self.documents[-1]["metadata"]["annotations"].get(_BY) == "broker")

    @property
    def plural(self) -> str:
        return next(word for kind, word in OBJECTS.items() if kind == self.documents[0]["kind"])


def samples(folder: str) -> list[Sample]:
    """Return the samples of ``valid`` or ``invalid``, by name."""
    found = []
    for path in sorted((_FOLDER / folder).glob("*.yaml")):
        text = path.read_text()
        texts = tuple(text.split("\n---\n"))
        documents = load_all(text)
        assert len(texts) == len(documents), path
        found.append(Sample(path.stem, texts, tuple(documents)))
    return found


def accepted(document: object) -> Resource | Rule:
    """Read a document and check all that the broker checks of it alone."""
    found: Resource | Rule
    problem: StreambrokerError | None
    if isinstance(document, dict) and document.get("kind") == RULE:
        found = rule = read_rule_manifest(document)
        problem = rule_problem(rule)
    else:
        found = resource = read_manifest(document)
        problem = size_problem(resource)
    if problem is not None:
        raise problem
    if isinstance(found, Import):
        parse(found.subscription or "", "subscription")
        parse(found.filter or "", "filter")
    return found
