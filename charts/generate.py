"""Write what is made from other files of the chart, or check that it is up to date.

==============================================  =============================================
made                                            from
==============================================  =============================================
``streambroker/templates/crd-*.yaml``           ``crds/*.yaml``
descriptions in ``streambroker/values.schema.json``  comments in ``streambroker/values.yaml``
``streambroker/README.md``                      both
``deploy/base/streambroker.yaml``               the chart, with a key that the broker makes
==============================================  =============================================

Run by ``make chart``; ``--check`` writes nothing and ends with 1 if something is not up to date.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import helm_python
import yaml

ROOT = Path(__file__).parents[1]
CHART = ROOT / "charts/streambroker"
NAMESPACE = "streambroker"
HEAD = """\
# Made from charts/streambroker by `make chart`. The Secret streambroker-key is not here: the broker
# makes it if it is missing, because a key in a public file is none. The image has a registry that
# cannot exist: overlays name yours under `images`.
"""
ONE_FILE = {
    "image": {"registry": "registry.invalid"},
    "key": {"create": False, "byBroker": True},
    "agentTls": {"mode": "off"},
}
"""Values of the rendered file, which is public: no keys, and a registry that cannot exist."""

_LINE = re.compile(r"^( *)([A-Za-z]+):(.*)$")


class Plain(yaml.SafeDumper):
    """Write block style with lists indented, and texts of several lines as such."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Indent lists below their key."""
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: object) -> bool:
        """Write what two keys share at both."""
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


Plain.add_representer(str, _text)


def dump(document: object) -> str:
    """Return a document as YAML, in the order that it has."""
    text: str = yaml.dump(document, Dumper=Plain, sort_keys=False, allow_unicode=True, width=100)
    return text


# ---- custom resource definitions -------------------------------------------------------------


def crd_template(source: Path) -> str:
    """Return the template of a CRD: as it is, with the chart's labels, and kept on uninstall."""
    document = yaml.safe_load(source.read_text())
    metadata = document.pop("metadata")
    annotations = {**metadata.get("annotations", {}), "helm.sh/resource-policy": "keep"}
    head = {"apiVersion": document.pop("apiVersion"), "kind": document.pop("kind")}
    labels = "".join(
        f"    {key}: {json.dumps(v)}\n" for key, v in metadata.get("labels", {}).items()
    )
    return (
        f"{{{{- /* Made from crds/{source.name} by `make chart`. */ -}}}}\n"
        "{{- if .Values.crds.create }}\n"
        f"{dump(head)}metadata:\n  name: {metadata['name']}\n"
        '  labels:\n    {{- include "streambroker.labels" . | nindent 4 }}\n'
        f"{labels}  annotations:\n{_indented(dump(annotations), 4)}"
        f"{_escaped(dump(document))}"
        "{{- end }}\n"
    )


def _indented(text: str, by: int) -> str:
    return "".join(" " * by + line for line in text.splitlines(keepends=True))


def _escaped(text: str) -> str:
    """Return a text of which a template makes the text itself."""
    return text.replace("{{", '{{ "{{" }}')


# ---- values ----------------------------------------------------------------------------------


def described(text: str) -> dict[tuple[str, ...], str]:
    """Return the comment above each key of a YAML file, by its path."""
    found: dict[tuple[str, ...], str] = {}
    path: list[str] = []
    comment: list[str] = []
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            comment.append(line.strip(" #"))
        elif match := _LINE.match(line):
            path[len(match[1]) // 2 :] = [match[2]]
            if comment:
                found[tuple(path)] = " ".join(comment)
            comment = []
        else:
            comment = []
    return found


def schema_text(schema: Mapping[str, Any], comments: Mapping[tuple[str, ...], str]) -> str:
    """Return the schema with the comments as descriptions."""
    made = json.loads(json.dumps(schema))
    for path, comment in comments.items():
        node = made
        for key in path:
            node = node["properties"][key]
        node["description"] = comment
    return json.dumps(made, indent=2, ensure_ascii=False) + "\n"


def leaves(values: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield each value with its path; maps that users fill are values."""
    for key, value in values.items():
        if isinstance(value, dict) and value and key not in ("labels", "selector"):
            yield from leaves(value, (*path, key))
        else:
            yield ".".join((*path, key)), value


def readme(values: Mapping[str, Any], comments: Mapping[tuple[str, ...], str]) -> str:
    """Return the chart's README: how to use it, and a table of its values."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    rows = "".join(
        f"| `{name}` | `{json.dumps(value)}` | {comments[tuple(name.split('.'))]} |\n"
        for name, value in leaves(values)
    )
    head = (CHART / "README.head.md").read_text().replace("VERSION", chart["version"])
    return f"{head}\n| value | default | meaning |\n|---|---|---|\n{rows}"


# ---- one file for kubectl --------------------------------------------------------------------


def rendered(values: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """Return the objects that an install makes, those of tests apart."""
    with helm_python.Chart.load(CHART) as chart:
        files = chart.render(dict(values or {}), name="streambroker", namespace=NAMESPACE)
    documents = [
        document
        for name in sorted(files)
        if name.endswith(".yaml")
        for document in yaml.safe_load_all(files[name])
        if document is not None
    ]
    return [each for each in documents if "helm.sh/hook" not in _annotations(each)]


def _annotations(document: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = document["metadata"].get("annotations") or {}
    return found


ORDER = ("CustomResourceDefinition", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role")
"""What others need comes first; the rest follows by kind and name."""


def one_file() -> str:
    """Return all objects as one file, without the key, which every broker makes for itself."""
    objects = rendered(ONE_FILE)
    kinds = {kind: number for number, kind in enumerate(ORDER)}
    objects.sort(key=lambda o: (kinds.get(o["kind"], len(ORDER)), o["kind"], o["metadata"]["name"]))
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    return HEAD + "---\n" + "---\n".join(dump(each) for each in [namespace, *objects])


# ---- all of it -------------------------------------------------------------------------------


def sources() -> Iterator[tuple[Path, str]]:
    """Yield each file that is made, with its text; the rendered file sees those before it."""
    for source in sorted((ROOT / "crds").glob("*.yaml")):
        yield CHART / f"templates/crd-{source.stem}.yaml", crd_template(source)
    text = (CHART / "values.yaml").read_text()
    comments = described(text)
    schema = json.loads((CHART / "values.schema.json").read_text())
    yield CHART / "values.schema.json", schema_text(schema, comments)
    yield CHART / "README.md", readme(yaml.safe_load(text), comments)
    yield ROOT / "deploy/base/streambroker.yaml", one_file()


def main() -> int:
    """Write, or check, every file; return the exit code."""
    parser = argparse.ArgumentParser(description="write what is made from other files of the chart")
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if not up to date")
    check = parser.parse_args().check
    stale = []
    for path, text in sources():
        if path.exists() and path.read_text() == text:
            continue
        stale.append(str(path.relative_to(ROOT)))
        if not check:
            path.write_text(text)
    for name in stale:
        sys.stdout.write(f"{name} {'is not up to date: make chart' if check else 'written'}\n")
    return int(check and bool(stale))


if __name__ == "__main__":
    raise SystemExit(main())
