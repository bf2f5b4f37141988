"""Old methods of streams, for one more release; each warns and keeps its old behaviour.

Their receivers are untyped: `stream` imports this module, so it cannot import `stream`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pe_agent.aligned.options import OperatorOptions
from streambroker_core.deprecation import warn_deprecated

_NOT_OPTIONS = ("name", "schema", "schemas")


def split_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], OperatorOptions]:
    """Return the arguments of ``apply`` in old settings of an operator, for old checkpoints."""
    arguments = {name: settings[name] for name in _NOT_OPTIONS if name in settings}
    options = {k: v for k, v in settings.items() if k not in arguments and v is not None}
    return arguments, OperatorOptions(**options, groups="buckets")


def control_aware_method(self: Any, operator: Callable[[], Any], **settings: Any) -> Any:
    """Deprecated: use ``apply``."""
    warn_deprecated("Stream.control_aware", "Stream.apply")
    arguments, options = split_settings(settings)
    return self.apply(operator, **arguments, options=options)


def through(self: Any, function: Callable[[Any], Any], *, immediate: str = "end") -> Any:
    """Deprecated: use ``transform``."""
    warn_deprecated("Stream.through", "Stream.transform")
    return self.transform(function, immediate=immediate)


def with_side_inputs(self: Any, **inputs: Any) -> Any:
    """Deprecated: use ``join_side``."""
    warn_deprecated("Stream.with_side_inputs", "Stream.join_side")
    return replace(self.join_side(**inputs), groups="buckets")


def ignore_again(again: bool | None) -> None:
    """Deprecated: every stream may run in several queries."""
    if again is not None:
        warn_deprecated("again=", "the stream in several queries without it", stacklevel=4)


def output(self: Any, tag: str) -> Any:
    """Deprecated: use ``outputs``."""
    warn_deprecated(f"stream[{tag!r}]", f"stream.outputs[{tag!r}]")
    return self.outputs[tag]


def for_each_window(
    self: Any,
    function: Callable[[int, dict[str, Any]], None],
    **settings: Any,
) -> Any:
    """Deprecated: use ``foreach_batch``, whose function takes the rows first."""
    warn_deprecated("for_each_window(f(id, rows))", "foreach_batch(f(rows, id))")
    return self.foreach_batch(lambda rows, window: function(window, rows), **settings)


@property  # type: ignore[misc]
def processors(self: Any) -> Any:
    """Deprecated: use ``rules``."""
    warn_deprecated("PatternStream.processors", "PatternStream.rules")
    return self.rules
