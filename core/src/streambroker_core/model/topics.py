"""Topic names and topic patterns, by the rules of MQTT.

Levels are separated by ``/`` and empty levels count. In a pattern ``+`` stands
for one whole level, and ``#``, last and alone in its level, for that level and
all below it, the parent level included: ``a/#`` matches ``a``.

Source: MQTT 5.0, section 4.7. The rule that wildcards skip names which begin
with ``$`` is left out: there are no such names here.
"""

from __future__ import annotations

from streambroker_core.errors import TopicError


def is_valid_topic(name: str) -> bool:
    """Tell whether a text may name a topic: not empty, no wildcard, no NUL."""
    return bool(name) and not any(mark in name for mark in "+#\0")


def is_valid_pattern(text: str) -> bool:
    """Tell whether a text may be a topic pattern."""
    if not text or "\0" in text:
        return False
    *above, last = text.split("/")
    if any("#" in level for level in above) or ("#" in last and last != "#"):
        return False
    return all(level == "+" or "+" not in level for level in (*above, last))


def topic_matches(pattern: str, topic: str) -> bool:
    """Tell whether a topic pattern covers a topic.

    The topic is compared level by level as it is; a name that MQTT would refuse
    is not an error here.

    Raises:
        TopicError: the pattern breaks the rules.

    >>> topic_matches("a/+/c", "a/b/c"), topic_matches("a/#", "a"), topic_matches("a/+", "a")
    (True, True, False)
    """
    if not is_valid_pattern(pattern):
        raise TopicError(
            f"`{pattern}` is not a topic pattern: `+` must be a whole level, "
            "`#` the whole last level, and the text must not be empty."
        )
    wanted = pattern.split("/")
    levels = topic.split("/")
    if wanted[-1] == "#":
        wanted.pop()
        if len(levels) < len(wanted):
            return False
        levels = levels[: len(wanted)]
    return len(wanted) == len(levels) and all(
        want in ("+", level) for want, level in zip(wanted, levels, strict=True)
    )
