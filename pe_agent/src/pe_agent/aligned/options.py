"""Settings of an operator that do not change its rows' meaning."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from pe_agent.job.arguments import check_keywords
from streambroker_core.control.operators.dead_letters import DEAD_LETTERS
from streambroker_core.control.tuples import Limits
from streambroker_core.deprecation import warn_deprecated
from streambroker_core.errors import AlignedError

APPLIED, COUNTS = "applied", "counts"
"""Tags of the outputs that ``report`` and ``counts`` add."""
_OLD_NAMES = {"figures": "metrics"}


@dataclass(frozen=True, kw_only=True)
class OperatorOptions:
    """Settings of one operator.

    Attributes:
        buckets: number of buckets; fixed for a checkpoint. None for 64, or 1 for patterns
            without a key.
        order_by: column by which the rows of all inputs are merged; None for input after input.
        null_keys: send rows with a null in their key to bucket 0, else they are refused. None:
            patterns and side inputs take them, other operators refuse.
        limits: limits of control tuples in one window.
        report: add the output ``applied``: a row for each control tuple that was delivered. A text
            is another tag for it.
        counts: add the output ``counts``: a row for each bucket, window and delivery with the
            numbers of control tuples received, dropped as copies, delivered, emitted and waiting.
            A row without a delivery counts rows. A text is another tag for it.
        dead_letters: what the operator refuses does not stop the query, also if a policy is to
            fail, and the output ``dead_letters`` has it: rows on which a rule fails, refused rows
            of side inputs, and refused control tuples.
        metrics: add the output ``figures`` of side inputs: sizes, versions, and what rows wait for.
        groups: how buckets are grouped in Spark's state; fixed for a checkpoint. ``slots``: one
            group for each partition of the state. ``buckets``: one for each bucket, as in
            checkpoints of release 0.1.0.
        on_invalid: what happens to a control tuple that the operator cannot receive, because a
            strict operator does not know its type, or because of its payload or address: ``fail``
            fails the window, ``pass`` forwards the tuple with a warning in the log.
    """

    buckets: int | None = None
    order_by: str | None = None
    null_keys: bool | None = None
    limits: Limits | None = None
    report: bool | str = False
    counts: bool | str = False
    dead_letters: bool = False
    metrics: bool = False
    groups: Literal["slots", "buckets"] | str = "slots"
    on_invalid: Literal["fail", "pass"] | str = "fail"

    def __post_init__(self) -> None:
        if not isinstance(self.buckets, int | None) or isinstance(self.buckets, bool):
            raise AlignedError(f"buckets is {self.buckets!r}: it has to be a number of buckets.")
        if not isinstance(self.limits, Limits | None):
            raise AlignedError(f"limits is {self.limits!r}: it has to be Limits(…).")
        if not isinstance(self.dead_letters, bool):
            raise AlignedError(
                f"dead_letters is {self.dead_letters!r}: it has to be True or False."
            )
        if self.groups not in ("slots", "buckets"):
            raise AlignedError(f"groups is {self.groups!r}: it has to be 'slots' or 'buckets'.")
        if self.on_invalid not in ("fail", "pass"):
            raise AlignedError(f"on_invalid is {self.on_invalid!r}: it has to be 'fail' or 'pass'.")

    def changed(self) -> dict[str, Any]:
        """Return the settings that are not those by default."""
        default = OperatorOptions()
        return {
            one.name: value
            for one in fields(self)
            if (value := getattr(self, one.name)) != getattr(default, one.name)
        }

    def report_tags(self) -> dict[str, str | None]:
        """Return the tags of the outputs that options add, None for no output."""
        chosen = {
            "report": (self.report, APPLIED),
            "counts": (self.counts, COUNTS),
            "dead_letters": (self.dead_letters, DEAD_LETTERS),
        }
        return {
            option: default if tag is True else tag or None
            for option, (tag, default) in chosen.items()
        }


def with_old_settings(
    options: OperatorOptions | None, settings: dict[str, Any], method: str
) -> OperatorOptions:
    """Return options with settings that were keywords of ``method`` before, with a warning.

    Raises:
        TypeError: there is no such setting.
    """
    options = options or OperatorOptions()
    if not settings:
        return options
    new = {_OLD_NAMES.get(name, name): value for name, value in settings.items()}
    check_keywords(method, new, ["name", "options", *(one.name for one in fields(OperatorOptions))])
    names = ", ".join(f"{name}=" for name in settings)
    warn_deprecated(f"{names} of {method}", "options=OperatorOptions(…)", stacklevel=4)
    return replace(options, **{k: v for k, v in new.items() if v is not None})
