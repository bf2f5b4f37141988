"""Exit codes, and error messages with code, description and remedy."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Mapping

from streambroker_client.errors import BrokerError, with_members
from streambroker_core.errors import StreambrokerError, pointer_lines
from streambroker_operator.cli.io.terminal import paint, sanitise

OK = 0
REFUSED = 1
USAGE = 2
WOULD_CUT = 3
UNREACHABLE = 4
INTERRUPTED = 130

_CODES = {
    "Usage": USAGE,
    "UrlInvalid": USAGE,
    "BrokerUnavailable": UNREACHABLE,
    "NotSynced": UNREACHABLE,
    "AgentAway": UNREACHABLE,
    "KubectlFailed": UNREACHABLE,
    "WouldCut": WOULD_CUT,
}
_REMEDIES = {
    "TokenMissing": "Give --token-file, or set STREAMBROKER_TOKEN.",
    "TokenWrong": "Check --token-file and STREAMBROKER_TOKEN.",
    "ListExpired": "The resources change faster than they are listed; try again.",
}


class UsageError(StreambrokerError):
    """Invalid command line; nothing was sent."""

    code = "Usage"


def exit_code(error: StreambrokerError) -> int:
    """Return the exit code for an error."""
    return _CODES.get(error.code, REFUSED)


def print_error(error: StreambrokerError) -> None:
    """Write an error to standard error, with a pointer into an invalid expression."""
    remedy = _REMEDIES.get(error.code)
    text = str(error) if remedy is None or remedy in str(error) else f"{error} {remedy}"
    text = text.replace("choose it with ?namespace=", "choose it with -n")
    code = paint(error.code, "red", sys.stderr)
    lines = [f"streambroker: {code}: {sanitise(' '.join(text.split()))}"]
    if isinstance(error, BrokerError):
        lines += pointer_lines(error.problem.get("text"), error.problem.get("position"))
    sys.stderr.write("\n".join(lines) + "\n")


def print_notes(lines: Iterable[str]) -> None:
    """Write notes to standard error: no failures, but possibly unintended."""
    for line in lines:
        sys.stderr.write(f"streambroker: note: {sanitise(' '.join(line.split()))}\n")


def print_tally(verb: str, done: int, total: int, *, refused: int, how: str = "refused") -> None:
    """Write the counts of a partly refused set of changes to standard error."""
    if total > 1:
        untried = total - done - refused
        counts = f"{done} of {total} {verb}, {refused} {how}, {untried} not tried"
        sys.stderr.write(f"streambroker: {counts}\n")


def with_expression(error: BrokerError, texts: Mapping[str, object]) -> BrokerError:
    """Return the error with the invalid one of the expressions sent, to show its position."""
    name = {"SubscriptionInvalid": "subscription", "FilterInvalid": "filter"}.get(error.code)
    if name is None or texts.get(name) is None:
        return error
    return with_members(error, text=texts[name])


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """Return ``Did you mean 'x'?`` with a leading space, or nothing."""
    near = difflib.get_close_matches(word, sorted(set(candidates)), n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""
