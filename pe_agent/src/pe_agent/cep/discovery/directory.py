"""Rules in a directory: each file has a rule, or a list of rules, as JSON or YAML."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, TypeAlias

from pe_agent.cep.discovery.discoverer import DiscoveryError, Fetched
from streambroker_core.cep.rules.rule_set import UnreadableRule
from streambroker_core.model import RULE
from streambroker_core.wire.manifests.rules import RESOURCE_FIELDS

log = logging.getLogger("pe_agent.cep")

SUFFIXES = (".json", ".yaml", ".yml")
FileStamp: TypeAlias = "tuple[int, int, int]"
"""Changes whenever a file is written: time in nanoseconds, size, inode."""


class DirectorySource:
    """Reads the rules of a directory's files; a file that cannot be read keeps its rules."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._last_rules: dict[str, list[Any]] = {}

    def fetch(self, known: str | None) -> Fetched | None:
        """Return the rules of all files, by file name, if a file was added, removed or written."""
        stamps = self._read_stamps()
        version = str(sorted(stamps.items()))
        if version == known:
            return None
        problems: list[UnreadableRule] = []
        rules_by_file: dict[str, list[Any]] = {}
        for name in sorted(stamps):
            try:
                rules_by_file[name] = read_rules(self._path / name)
            except Exception as error:  # a problem with one file does not affect the others
                problems.append(UnreadableRule(rule=name, problem=str(error).rstrip(".")))
                rules_by_file[name] = self._last_rules.get(name, [])
                log.warning("cannot read rules of %s, keeping the current ones: %s", name, error)
        self._last_rules = rules_by_file
        rules = [rule for each in rules_by_file.values() for rule in each]
        return Fetched([*rules, *problems], version)

    def _read_stamps(self) -> dict[str, FileStamp]:
        stamps: dict[str, FileStamp] = {}
        try:
            for file in self._path.iterdir():
                if file.suffix in SUFFIXES and not file.name.startswith("."):
                    stamps[file.name] = _file_stamp(file)
        except OSError as error:
            raise DiscoveryError(f"directory {self._path} cannot be read: {error}") from error
        return stamps


def _file_stamp(file: Path) -> FileStamp:
    """Return the stamp of a file; zeros if it cannot be accessed, so that only it is refused."""
    try:
        stat = file.stat()
    except OSError:
        return 0, 0, 0
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def read_rules(file: Path) -> list[Any]:
    """Return the rule documents of a file.

    Raises:
        DiscoveryError: it is no JSON or YAML, or has something other than rules.
        OSError: it cannot be read.
    """
    documents = read_documents(
        file.read_text("utf-8"), f"file {file.name}", yaml=file.suffix != ".json"
    )
    for rule in documents:
        if not isinstance(rule, dict):
            raise DiscoveryError(
                f"file {file.name} has {rule!r} where a rule is expected: write a mapping with"
                " `id`, `version` and `pattern`, or a list of them."
            )
    return documents


def read_documents(text: str, what: str, *, yaml: bool) -> list[Any]:
    """Return a text's documents, lists replaced by items; raise DiscoveryError if unreadable."""
    try:
        documents = _parse_yaml(text) if yaml else [json.loads(text)]
    except (ValueError, RecursionError) as error:
        raise DiscoveryError(f"{what} cannot be read: {error}") from error
    items: list[Any] = []
    for document in documents:
        items += document if isinstance(document, list) else [document]
    return [unwrap_rule(each) for each in items]


def unwrap_rule(document: Any) -> Any:
    """Return the rule of a `PatternProcessor` manifest; return anything else unchanged.

    Job and enable count are fields of the manifest only, not of the rule.
    """
    if not isinstance(document, dict) or document.get("kind") != RULE:
        return document
    spec, metadata = document.get("spec"), document.get("metadata")
    if not isinstance(spec, dict):
        return document
    named = {"id": metadata["name"]} if isinstance(metadata, dict) and "name" in metadata else {}
    return {**named, **{name: value for name, value in spec.items() if name not in RESOURCE_FIELDS}}


def _parse_yaml(text: str) -> list[Any]:
    try:
        import yaml
    except ImportError as error:
        raise DiscoveryError("YAML needs PyYAML: install it, or write JSON.") from error
    try:
        return [document for document in yaml.safe_load_all(text) if document is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        cause = ", ".join(filter(None, (error.problem, error.context)))
        raise ValueError(where + cause) from error
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
