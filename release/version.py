"""Write the version of the file ``VERSION`` to all files that state it: ``python version.py``.

Packages have to state their version themselves, because each is built alone, and so do manifests,
which users apply as they are. With ``--check`` nothing is written, and the exit code is 1 if a file
states another version. Texts about a former release are not changed.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
NUMBER = r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?"
PACKAGES = ("core", "operator", "pe_agent", "pe_agent/streambroker")
STATED = {
    **{
        f"{package}/pyproject.toml": (
            r'^version = "({})"$',
            r'"(?:streambroker|pe-agent)[a-z-]*(?:\[[a-z,]+\])?==({})"',
        )
        for package in PACKAGES
    },
    "charts/streambroker/Chart.yaml": (r"^version: ({})$", r"^appVersion: ({})$"),
    "CONTRIBUTING.md": (r"streambroker/(?:broker|spark):({})",),
    "docs/how-to/*.md": (r"streambroker/(?:broker|spark):({})",),
    "examples/kubernetes/**/*": (r"streambroker/(?:broker|spark):({})",),
    "tests/cluster/images.sh": (r"streambroker/\$one:({})",),
    "tests/support/clusters/bucket.py": (r"streambroker/spark:({})",),
}
"""Expressions for the version, by pattern of paths; ``{}`` is its place."""


def read_version(root: Path = ROOT) -> str:
    """Return the version.

    Raises:
        ValueError: the file has something else.
    """
    version = (root / "VERSION").read_text().strip()
    if not re.fullmatch(NUMBER, version):
        raise ValueError(f'VERSION has "{version}"; write a version such as 1.2.0 or 1.2.0rc1.')
    return version


def find_versions(root: Path = ROOT) -> Iterator[tuple[Path, re.Match[str]]]:
    """Yield each place that states the version; its first group is the version."""
    for pattern, expressions in STATED.items():
        for path in sorted(root.glob(pattern)):
            if path.is_file():
                text = path.read_text()
                for expression in expressions:
                    whole = expression.replace("{}", NUMBER)
                    yield from ((path, found) for found in re.finditer(whole, text, re.MULTILINE))


def write_version(root: Path = ROOT) -> None:
    """Write the version to each place."""
    version = read_version(root)
    places: dict[Path, list[tuple[int, int]]] = {}
    for path, found in find_versions(root):
        places.setdefault(path, []).append(found.span(1))
    for path, spans in places.items():
        text = path.read_text()
        for start, end in sorted(spans, reverse=True):
            text = text[:start] + version + text[end:]
        path.write_text(text)


def main() -> int:
    """Write or check; return the exit code."""
    parser = argparse.ArgumentParser(description="write the version to all files that state it")
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if one differs")
    if not parser.parse_args().check:
        write_version()
        return 0
    version = read_version()
    wrong = [(path, found) for path, found in find_versions() if found[1] != version]
    for path, found in wrong:
        sys.stdout.write(f"{path.relative_to(ROOT)} has {found[0].strip()}, VERSION {version}\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
