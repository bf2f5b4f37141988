"""Assemble the pages of the documentation site and build it: ``python docs/build.py [--serve]``.

The site has the Markdown of ``docs/`` and the pages in `PAGES` from other folders. A link to a file
that is no page of the site loses its target and keeps its text. The files that the page of an
example or a tutorial links to are shown at its end, where the links lead. The result is in
``.site/html``.
"""

from __future__ import annotations

import argparse
import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path, PurePosixPath

import rest_reference

import streambroker

ROOT = Path(__file__).parents[1]
SITE = ROOT / ".site"
MERMAID = ROOT / "console/node_modules/mermaid/dist/mermaid.min.js"
PAGES = {
    "ARCHITECTURE.md": "explanation/architecture.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "benchmarks/README.md": "explanation/benchmarks.md",
    "charts/streambroker/README.md": "reference/chart.md",
    "console/README.md": "project/console.md",
    "examples/README.md": "examples/index.md",
}
"""Pages of other folders, by path; READMEs of the examples are pages, too."""
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".csv": "text"}
"""Languages of the files that are shown, by suffix."""
_SELECTOR = "extra: {version: {provider: mike}}\n"
"""Shows the list of versions in the folder above the site."""
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def find_pages() -> dict[PurePosixPath, PurePosixPath]:
    """Return the place of each page in the site, by its path in the repository."""
    pages = {path: place for path, place in PAGES.items() if (ROOT / path).exists()}
    for path in (ROOT / "docs").rglob("*.md"):
        place = path.relative_to(ROOT / "docs")
        if place.name == "README.md" and place.parent != Path():
            place = place.with_name("index.md")
        if str(place) != "README.md":
            pages[f"docs/{path.relative_to(ROOT / 'docs')}"] = str(place)
    for path in (ROOT / "examples").glob("*/README.md"):
        pages[str(path.relative_to(ROOT))] = f"examples/{path.parent.name}.md"
    pages["README.md"] = pages["docs/README.md"] = "index.md"
    return {PurePosixPath(path): PurePosixPath(place) for path, place in pages.items()}


def resolve(page: PurePosixPath, target: str) -> PurePosixPath:
    """Return the path in the repository of a link's target; a folder is its README."""
    path = Path((ROOT / page.parent / target).resolve()).relative_to(ROOT)
    return PurePosixPath(path / "README.md" if (ROOT / path).is_dir() else path)


def rewrite(text: str, page: PurePosixPath, pages: dict[PurePosixPath, PurePosixPath]) -> str:
    """Return a page with its links as they are in the site."""
    shown = shown_files(text, page)

    def link(found: re.Match[str]) -> str:
        mark, label, target = found.groups()
        path, _, anchor = target.partition("#")
        if not path or re.match(r"[a-z]+:", path):
            return found[0]
        repository_path = resolve(page, path)
        if mark:
            place = PurePosixPath(repository_path).relative_to("docs")
        elif repository_path in pages:
            place = pages[repository_path]
        elif repository_path in shown:
            return f"[{label}](#{anchor_of(repository_path)})"
        else:
            return label
        up = "../" * (len(pages[page].parts) - 1)
        return f"{mark}[{label}]({up}{place}{'#' + anchor if anchor else ''})"

    # Behind the language of a block may be a mark for the tests, which the site does not know.
    return "".join(
        re.sub(r"^```(\S+) \S+$", r"```\1", part, flags=re.MULTILINE)
        if n % 2
        else _LINK.sub(link, part)
        for n, part in enumerate(_FENCE.split(text))
    )


def shown_files(text: str, page: PurePosixPath) -> list[PurePosixPath]:
    """Return the files that the page of an example or a tutorial links to, and shows at its end."""
    if page.parts[0] != "examples" and page.parts[:2] != ("docs", "tutorials"):
        return []
    targets = dict.fromkeys(target for _, _, target in _LINK.findall(text))
    paths = [resolve(page, target) for target in targets if "://" not in target]
    return [path for path in paths if path.suffix in _LANGUAGES and path.parts[0] == "examples"]


def name_of(file: PurePosixPath) -> str:
    """Return the name of a file in its example."""
    return "/".join(file.parts[2:]) or file.name


def anchor_of(file: PurePosixPath) -> str:
    """Return the anchor of a file that a page shows."""
    return "file-" + re.sub(r"[^a-z0-9]+", "-", name_of(file).lower())


def files_of(text: str, page: PurePosixPath) -> str:
    """Return the section with the files that a page shows, under their names in its example."""
    files = shown_files(text, page)
    if not files:
        return ""
    parts = [
        f"### {name_of(path)} {{ #{anchor_of(path)} }}\n\n"
        f"```{_LANGUAGES[path.suffix]}\n{(ROOT / path).read_text().rstrip()}\n```\n"
        for path in files
    ]
    return "\n".join(["\n## Files\n", *parts])


def write_python_reference(folder: Path) -> None:
    """Write a page for each part of the Python interface, filled from docstrings."""
    for part in ("", *vars(streambroker)["_SUBMODULES"]):
        whole = importlib.import_module(f"streambroker.{part}".rstrip("."))
        modules: dict[str, list[str]] = vars(whole)["_MODULES"]
        listed = [(name, module) for module, names in modules.items() for name in names]
        constants = ", ".join(f"`{name}`" for name, _ in listed if name.isupper())
        found = [(name, module) for name, module in listed if not name.isupper()]
        found.sort(key=lambda one: (one[0].endswith("Error"), one[0][0].isupper(), one[0]))
        lines = [f"## {name}\n\n::: {module}.{name}\n" for name, module in found]
        if constants:
            lines.insert(0, f"Constants: {constants}.\n")
        text = "\n".join([f"# {whole.__name__}\n\n{whole.__doc__}\n", *lines])
        (folder / f"python-{part}.md".replace("-.", ".")).write_text(text)


def assemble() -> None:
    """Write all pages to ``.site/pages``."""
    target = SITE / "pages"
    shutil.rmtree(target, ignore_errors=True)
    pages = find_pages()
    for path, place in pages.items():
        if str(path) in ("README.md", "docs/README.md"):
            continue
        written = target / place
        written.parent.mkdir(parents=True, exist_ok=True)
        text = (ROOT / path).read_text()
        written.write_text(rewrite(text, path, pages) + files_of(text, path))
    shutil.copytree(ROOT / "docs/images", target / "images")
    (target / "assets").mkdir()
    shutil.copy(MERMAID, target / "assets")
    write_python_reference(target / "reference")
    rest_reference.write(target / "reference/rest.md")


def main() -> int:
    """Build the site, or serve it on loopback; return the exit code."""
    parser = argparse.ArgumentParser(description="Build the documentation site.")
    parser.add_argument("--serve", action="store_true", help="serve it on http://127.0.0.1:8000")
    parser.add_argument(
        "--selector", action="store_true", help="build .site/versioned, see versions.py"
    )
    arguments = parser.parse_args()
    assemble()
    settings = (ROOT / "docs/mkdocs.yml").read_text()
    version = (ROOT / "VERSION").read_text().strip()
    settings = settings.replace("VERSION", version)
    if arguments.selector:
        settings = settings.replace("site_dir: html", "site_dir: versioned") + _SELECTOR
    (SITE / "mkdocs.yml").write_text(settings)
    command = ["serve"] if arguments.serve else ["build", "--strict", "--clean"]
    return subprocess.run(
        [Path(sys.executable).with_name("zensical"), *command, "-f", SITE / "mkdocs.yml"],
        check=False,
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
