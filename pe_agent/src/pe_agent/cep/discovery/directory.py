"""Rules in a directory: each file has a rule, or a list of rules, as JSON or YAML."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, TypeAlias

from pe_agent.cep.discovery.discoverer import (
    DiscoveryError,
    PeriodicPatternProcessorDiscoverer,
    Wanted,
)
from streambroker_core.cep.rules.rule_set import UnreadableRule
from streambroker_core.model import RULE
from streambroker_core.wire.manifests.rules import RESOURCE_FIELDS

log = logging.getLogger("pe_agent.cep")

SUFFIXES = (".json", ".yaml", ".yml")
FileStamp: TypeAlias = "tuple[int, int, int]"
"""What changes when a file is written: time in nanoseconds, size, inode."""


class DirectoryDiscoverer(PeriodicPatternProcessorDiscoverer):
    """Reads the files of a directory whose names end with ``.json``, ``.yaml`` or ``.yml``.

    A file that cannot be read keeps the rules that it had, and is told as a rule that is refused.
    Write files under another name and rename them, so that no half of one is read. YAML needs
    PyYAML.
    """

    def __init__(self, path: str | Path, interval: float = 10.0) -> None:
        """Define where.

        Args:
            path: the directory; names that begin with a dot are left out.
            interval: seconds between two looks.
        """
        super().__init__(interval)
        self._path = Path(path)
        self._last_stamps: dict[str, FileStamp] | None = None
        self._last_rules: dict[str, list[Any]] = {}

    def check_pattern_processor_update(self) -> bool:
        """Tell whether a file came, went or was written."""
        return self._read_stamps() != self._last_stamps

    def latest_pattern_processors(self) -> Wanted:
        """Return the rules of all files, in the order of their names.

        Raises:
            DiscoveryError: the directory cannot be read.
        """
        marks = self._read_stamps()
        problems: list[UnreadableRule] = []
        good: dict[str, list[Any]] = {}
        for name in sorted(marks):
            try:
                good[name] = read_rules(self._path / name)
            except Exception as error:  # whatever is wrong with a file concerns that one alone
                problems.append(UnreadableRule(rule=name, problem=str(error).rstrip(".")))
                good[name] = self._last_rules.get(name, [])
                log.warning("rules of %s stay as they were: %s", name, error)
        self._last_stamps, self._last_rules = marks, good
        return [*(rule for each in good.values() for rule in each), *problems]

    def _read_stamps(self) -> dict[str, FileStamp]:
        marks: dict[str, FileStamp] = {}
        try:
            for file in self._path.iterdir():
                if file.suffix in SUFFIXES and not file.name.startswith("."):
                    marks[file.name] = _file_stamp(file)
        except OSError as error:
            raise DiscoveryError(f"directory {self._path} cannot be read: {error}") from error
        return marks


def _file_stamp(file: Path) -> FileStamp:
    """Return the mark of a file; zeros for one that cannot be looked at, which is refused alone."""
    try:
        found = file.stat()
    except OSError:
        return 0, 0, 0
    return found.st_mtime_ns, found.st_size, found.st_ino


def read_rules(file: Path) -> list[Any]:
    """Return the documents of a file.

    Raises:
        DiscoveryError: it is no JSON or YAML, or has something else than rules.
        OSError: it cannot be read.
    """
    found = read_documents(
        file.read_text("utf-8"), f"file {file.name}", yaml=file.suffix != ".json"
    )
    for rule in found:
        if not isinstance(rule, dict):
            raise DiscoveryError(
                f"file {file.name} has {rule!r} where a rule is expected: write a mapping with"
                " `id`, `version` and `pattern`, or a list of them."
            )
    return found


def read_documents(text: str, what: str, *, yaml: bool) -> list[Any]:
    """Return what a text has: one thing, or the items of its lists.

    Raises:
        DiscoveryError: it is no JSON or YAML.
    """
    try:
        documents = _parse_yaml(text) if yaml else [json.loads(text)]
    except (ValueError, RecursionError) as error:
        raise DiscoveryError(f"{what} cannot be read: {error}") from error
    found: list[Any] = []
    for document in documents:
        found += document if isinstance(document, list) else [document]
    return [unwrap_rule(each) for each in found]


def unwrap_rule(document: Any) -> Any:
    """Return the rule of a `PatternProcessor` manifest; anything else as it is.

    Whose rule it is, and how often it was enabled, says the manifest and not the rule.
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
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
