"""The prose of the documents: short lines, short sentences, and few words at the entrance."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAX_COLUMNS = 120
MAX_GRADE = 8.0
MAX_WORDS = {"README.md": 900, "docs/index.md": 350}
PAGES = [
    ROOT / "README.md",
    *(ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "benchmarks/README.md")),
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "decisions"),
    *sorted((ROOT / "examples").rglob("*.md")),
]
_FENCE = re.compile(r"^\s*```.*?^\s*```$", re.MULTILINE | re.DOTALL)
_NO_PROSE = re.compile(r"\s*(\||#|!\[|\[!\[)")
_WHOLE = re.compile(r"\[[^\]]*\]\([^)]*\)|`[^`]*`")
_AVOIDED = re.compile(
    r"\b(tell|tells|told|whoever|whatever|somebody|nobody|everybody|anew|likewise|whence"
    r"|errands?|fellows?|by and by|once more)\b",
    re.IGNORECASE,
)
"""Words of CONTRIBUTING's list that a page can always replace; a format is in a code span."""
_VOWELS = re.compile(r"[aeiouy]+")


def prose_lines(path: Path) -> list[str]:
    """Return the lines of a page without code, tables, headings and pictures."""
    lines = _FENCE.sub("", path.read_text()).splitlines()
    return [line for line in lines if not _NO_PROSE.match(line)]


def sentences(path: Path) -> list[list[str]]:
    """Return the words of each sentence; code spans and the targets of links are none."""
    text = "\n".join(prose_lines(path))
    text = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "it", text))
    parts = re.split(r"[.!?:;](?=\s)|\n\s*\n|\n\s*[-*\d]+[.)]?\s", text)
    found = (re.findall(r"[A-Za-z][A-Za-z'-]*", part) for part in parts)
    return [words for words in found if words]


def syllables(word: str) -> int:
    """Estimate the syllables of a word: its groups of vowels, without a silent e."""
    plain = re.sub(r"e$", "", word.lower())
    return max(1, len(_VOWELS.findall(plain)))


def grade(found: list[list[str]]) -> float:
    """Return the Flesch-Kincaid grade: the years of school that a reader needs."""
    words = [word for sentence in found for word in sentence]
    return 0.39 * len(words) / len(found) + 11.8 * sum(map(syllables, words)) / len(words) - 15.59


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", PAGES, ids=named)
def test_no_line_of_prose_is_long(path: Path) -> None:
    # A line that is one link or one code span cannot be broken.
    long = [line for line in prose_lines(path) if len(line) > MAX_COLUMNS]
    assert [line for line in long if len(_WHOLE.sub("", line)) > 40] == []


@pytest.mark.parametrize("path", PAGES, ids=named)
def test_the_prose_is_easy_to_read(path: Path) -> None:
    found = sentences(path)
    assert not found or grade(found) <= MAX_GRADE


@pytest.mark.parametrize("path", PAGES, ids=named)
def test_no_word_to_avoid_is_in_a_page(path: Path) -> None:
    if path.name == "CONTRIBUTING.md":  # has the list
        return
    text = re.sub(r"`[^`]*`", "", _FENCE.sub("", path.read_text()))
    assert _AVOIDED.findall(text) == []


@pytest.mark.parametrize(("name", "most"), MAX_WORDS.items())
def test_the_entrance_is_short(name: str, most: int) -> None:
    assert len((ROOT / name).read_text().split()) <= most


def test_a_hard_text_has_a_high_grade() -> None:
    hard = (
        "Interoperability considerations necessitate comprehensive organisational reconfiguration"
    )
    assert grade([hard.split()]) > MAX_GRADE
    assert grade([["The", "cat", "sat", "on", "the", "mat"]]) < 2
