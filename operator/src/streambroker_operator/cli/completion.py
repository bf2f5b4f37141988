"""``completion``: shell scripts for bash, zsh and fish, and the candidates they request."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from streambroker_core.errors import StreambrokerError
from streambroker_operator.cli.io.errors import OK
from streambroker_operator.cli.io.options import DEFAULT_URL, Parser, add_shared, client_for
from streambroker_operator.cli.io.targets import KIND_ALIASES, SINGULAR, item_names
from streambroker_operator.cli.io.terminal import print_text

TIMEOUT_S = 0.5
"""How long the broker may take to return names, in seconds."""
MAX_CANDIDATES = 200

SHELLS = {
    "bash": """\
# streambroker completion for bash: source <(streambroker completion bash)
_streambroker() {
    local words=("${COMP_WORDS[@]:1:COMP_CWORD}") line
    COMPREPLY=()
    while IFS= read -r line; do COMPREPLY+=("$line"); done \\
        < <(streambroker __complete "${words[@]}" 2>/dev/null)
}
complete -o default -F _streambroker streambroker
""",
    "zsh": """\
#compdef streambroker
# streambroker completion for zsh: source <(streambroker completion zsh)
_streambroker() {
    local -a found
    found=("${(@f)$(streambroker __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    found=("${(@)found:#}")
    if (( ${#found} )); then compadd -Q -- "${found[@]}"; else _files; fi
}
if [ "$funcstack[1]" = "_streambroker" ]; then
    _streambroker
else
    compdef _streambroker streambroker
fi
""",
    "fish": """\
# streambroker completion for fish: streambroker completion fish | source
function __streambroker_complete
    set -l words (commandline -opc) (commandline -ct)
    streambroker __complete $words[2..-1] 2>/dev/null
end
complete -c streambroker -f -a '(__streambroker_complete)'
complete -c streambroker -s f -l file -r -F
complete -c streambroker -l token-file -r -F
complete -c streambroker -l ca -r -F
""",
}

_KINDS = ("exports", "imports", "pes", "routes", "all")
_ANY_KIND_COMMANDS = ("get", "describe", "watch")
_KIND_BY_COMMAND = {
    "set-filter": "imports",
    "set-subscription": "imports",
    "set-properties": "exports",
}
_WITH_VALUE = (
    *("--url", "-n", "--namespace", "-o", "--output", "--request-timeout", "--delete"),
    *("--delivery", "--at", "--operator", "--bucket", "--key", "--timeout", "--request-id"),
)
_FILES = ("-f", "--file", "--filename", "--token-file", "--ca", "--db", "--tokens")


def add(commands: Any) -> None:
    """Add the command."""
    command = commands.add_parser("completion", help="print the completion of a shell")
    shells = command.add_subparsers(required=True, metavar="bash|zsh|fish", parser_class=Parser)
    for shell in SHELLS:
        shells.add_parser(shell).set_defaults(run=_completion, shell=shell)


def _completion(options: argparse.Namespace) -> int:
    print_text(SHELLS[options.shell])
    return OK


def complete(parser: argparse.ArgumentParser, words: Sequence[str]) -> int:
    """Print the candidates for the last word (may be empty), one per line; errors print nothing."""
    current = words[-1] if words else ""
    try:
        found = candidates(parser, list(words[:-1]), current)
        matches = [word for word in found if word.startswith(current)]
    except StreambrokerError:
        matches = []
    print_text("".join(f"{word}\n" for word in matches[:MAX_CANDIDATES]))
    return OK


def candidates(
    parser: argparse.ArgumentParser, before: Sequence[str], current: str
) -> Iterable[str]:
    """Return the candidates for the next word; the caller filters them by the typed prefix."""
    parsers: dict[str, argparse.ArgumentParser] = _subparsers(parser)
    plain = _positional(before)
    if before and (before[-1] in _FILES):
        return []
    if not plain:
        option_values = _values(parser, before)
        if option_values is not None:
            return option_values
        return _flags(parser) if current.startswith("-") else sorted(parsers)
    command = plain[0]
    if command not in parsers:
        return []
    if before[-1] == "--delete":
        return _kind_names(("exports", "imports"), before)
    values = _values(parsers[command], before)
    if values is not None:
        return values
    if current.startswith("-"):
        return _flags(parsers[command])
    return _arguments(command, plain[1:], current, before)


def _arguments(
    command: str, typed: Sequence[str], current: str, before: Sequence[str]
) -> Iterable[str]:
    if command in ("completion", "patterns"):
        return [] if typed else _fixed_arguments(command)
    if command in _KIND_BY_COMMAND:
        return _names(_KIND_BY_COMMAND[command], before, index=1) if not typed else []
    if command == "explain":
        if typed and KIND_ALIASES.get(typed[-1], ())[:1] in (("exports",), ("imports",)):
            return _names(KIND_ALIASES[typed[-1]][0], before, index=1)
        return [*_names("exports" if typed else "imports", before, index=1), "export", "import"]
    if command == "emit":
        return (
            [*_names("exports", before, index=1), *_names("pes", before, index=0)]
            if not typed
            else []
        )
    if command == "top":
        return [*_names("exports", before, index=1), *_names("imports", before, index=1)]
    if command not in (*_ANY_KIND_COMMANDS, "delete"):
        return []
    kinds = KIND_ALIASES.get(typed[0], ()) if typed else ()
    if kinds:
        return [name for kind in kinds for name in _names(kind, before, index=0)]
    first, slash, _ = current.partition("/")
    if slash and len(KIND_ALIASES.get(first, ())) == 1:
        return [f"{first}/{name}" for name in _names(KIND_ALIASES[first][0], before, index=0)]
    words = SINGULAR.values() if command == "delete" else _KINDS
    return [word for word in words if not (command == "delete" and word == "route")]


def _fixed_arguments(command: str) -> Iterable[str]:
    from streambroker_operator.cli.commands.patterns import ACTIONS

    return SHELLS if command == "completion" else ACTIONS


def _kind_names(kinds: Sequence[str], before: Sequence[str]) -> list[str]:
    return [f"{SINGULAR[k]}/{name}" for k in kinds for name in _names(k, before, index=0)]


def _names(kind: str, before: Sequence[str], *, index: int) -> list[str]:
    """Return the names of a kind; `index` 0 is a resource's own name, 1 its port.

    `before` has the words typed, with ``--url`` and ``-n``.
    """
    parser = Parser(add_help=False)
    add_shared(parser, root=True)
    options, _ = parser.parse_known_args(list(before))
    options.request_timeout = TIMEOUT_S
    broker = client_for(options)
    answer = broker.connection.call(
        "GET", f"/{kind}", namespace=options.namespace, limit=str(MAX_CANDIDATES)
    )
    if kind == "routes":
        ends = {end for item in answer["items"] for end in item_names(kind, item)[-2:]}
        return sorted(ends)
    return [item_names(kind, item)[index] for item in answer["items"]]


def _values(parser: argparse.ArgumentParser, before: Sequence[str]) -> Iterable[str] | None:
    """Return the values for the last option; None if no option needs a value."""
    last = before[-1] if before else ""
    for action in parser._actions:
        if last in action.option_strings and action.nargs != 0:
            words = str(action.metavar or "")
            if last in ("-n", "--namespace"):
                return ["default"]
            return words.split("|") if "|" in words else ([DEFAULT_URL] if last == "--url" else [])
    return None


def _positional(before: Sequence[str]) -> list[str]:
    words: list[str] = []
    rest = iter(before)
    for word in rest:
        if word in (*_WITH_VALUE, *_FILES):
            next(rest, None)
        elif not word.startswith("-"):
            words.append(word)
    return words


def _flags(parser: argparse.ArgumentParser) -> list[str]:
    return sorted(flag for action in parser._actions for flag in action.option_strings)


def _subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}
