"""Search for Exports by words in everything that people read about them."""

from __future__ import annotations

from collections.abc import Iterator

from streambroker_core.model import Export
from streambroker_core.model.properties import value_texts


def searched_text(export: Export) -> str:
    """Return what words are looked for in, in lower case and with a line for each part.

    These are name, job, port, application, stream id, properties, description, owner, tags, and
    the names and comments of columns.
    """
    return "\n".join(_parts(export)).lower()


def matches_words(text: str, words: str) -> bool:
    """Return whether each of the words, separated by blanks, is in the result of `searched_text`.

    Upper and lower case are the same.
    """
    return all(word in text for word in words.lower().split())


def _parts(export: Export) -> Iterator[str]:
    yield export.name
    yield f"{export.key.namespace}/{export.key.job}"
    yield export.key.port
    yield export.application.name or ""
    yield export.stream_id or ""
    for name, value in (export.properties or {}).items():
        yield name
        yield from value_texts(value)
    entry = export.catalog
    yield entry.description or ""
    yield entry.owner or ""
    yield from entry.tags
    yield from (column.name for column in export.schema or ())
    yield from entry.column_comments.values()
