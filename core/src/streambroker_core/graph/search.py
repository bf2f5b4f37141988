"""Search for jobs: by a text in names, by the value of a property, or by an expression."""

from __future__ import annotations

import re
from collections.abc import Callable

from streambroker_core.catalog.search import matches_words, searched_text
from streambroker_core.expression import parse
from streambroker_core.graph.job_graph import Job
from streambroker_core.model.properties import value_texts

_NAME_TEXT = re.compile(r"[-A-Za-z0-9_./ ]+")
_PROPERTY = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\s*=(?!=)\s*(.+)", re.DOTALL)


def read_match(text: str) -> Callable[[Job], bool]:
    """Return the test of jobs that a search text describes.

    - Letters, digits, blanks and ``- _ . /`` alone: a text in ``namespace/job`` or in the name of a
      port, in any case; or words in what `catalog.search.searched_text` returns of an export.
    - ``name=value``: an export with this value of a property, or with a list that has it.
    - Everything else is a subscription that the properties of an export satisfy.

    Raises:
        SubscriptionError: the subscription is invalid.
    """
    if _NAME_TEXT.fullmatch(text) and text.strip():
        return _match_names(text.strip().lower())
    of_property = _PROPERTY.fullmatch(text.strip())
    if of_property is not None:
        return _match_property(of_property[1], of_property[2])
    expression = parse(text)
    return lambda job: any(expression.test(offer) is True for offer in job.offers)


def _match_names(text: str) -> Callable[[Job], bool]:
    def test(job: Job) -> bool:
        return (
            text in str(job.key).lower()
            or any(text in name.lower() for name in (*job.exports, *job.imports))
            or any(matches_words(searched_text(export), text) for export in job.described)
        )

    return test


def _match_property(name: str, text: str) -> Callable[[Job], bool]:
    wanted = text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text
    return lambda job: any(wanted in value_texts(offer.get(name)) for offer in job.offers)
