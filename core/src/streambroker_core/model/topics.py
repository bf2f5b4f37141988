"""Topic names and topic patterns, by the rules of MQTT 5.0, section 4.7.

``/`` separates levels, and empty levels count. In a pattern, ``+`` is one whole level. ``#``, alone
in the last level, is that level and all below it, including the parent: ``a/#`` matches ``a``.
The MQTT rule that wildcards skip names beginning with ``$`` does not apply.
"""

from __future__ import annotations

from streambroker_core.errors import TopicError


def is_valid_topic(name: str) -> bool:
    """Return whether a text is a valid topic: not empty, no wildcard, no NUL."""
    return bool(name) and not any(char in name for char in "+#\0")


def is_valid_pattern(text: str) -> bool:
    """Return whether a text is a valid topic pattern."""
    if not text or "\0" in text:
        return False
    *above, last = text.split("/")
    if any("#" in level for level in above) or ("#" in last and last != "#"):
        return False
    return all(level == "+" or "+" not in level for level in (*above, last))


def topic_matches(pattern: str, topic: str) -> bool:
    """Return whether a topic pattern matches a topic.

    The topic is compared level by level and not validated.

    Raises:
        TopicError: the pattern is invalid.

    >>> topic_matches("a/+/c", "a/b/c"), topic_matches("a/#", "a"), topic_matches("a/+", "a")
    (True, True, False)
    """
    if not is_valid_pattern(pattern):
        raise TopicError(
            f"`{pattern}` is not a topic pattern: `+` must be a whole level, "
            "`#` the whole last level, and the text must not be empty."
        )
    expected = pattern.split("/")
    levels = topic.split("/")
    if expected[-1] == "#":
        expected.pop()
        if len(levels) < len(expected):
            return False
        levels = levels[: len(expected)]
    return len(expected) == len(levels) and all(
        expected_level in ("+", level)
        for expected_level, level in zip(expected, levels, strict=True)
    )
