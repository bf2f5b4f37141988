"""Read and check manifest files."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from streambroker_client.errors import broker_error
from streambroker_core.errors import ManifestError, PropertyError, StreambrokerError
from streambroker_core.model import RULE, Resource, kind_of
from streambroker_core.wire.manifests.ports import read_manifest
from streambroker_operator.cli.io.errors import UsageError, print_error
from streambroker_operator.cli.io.yaml_format import load_all

SUFFIXES = (".yaml", ".yml", ".json")
"""Suffixes of the files read in a directory."""
READ_ONLY_KINDS = ("PE", "Route")
"""Kinds that ``get`` prints and ``apply`` ignores."""
IGNORED_METADATA = ("labels", "annotations")


@dataclass(frozen=True, slots=True)
class Documents:
    """Resources in file order, and notes about ignored content."""

    resources: list[Resource] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_value(text: str) -> Any:
    """Return one YAML value; an empty text is an empty string.

    Raises:
        ManifestError: the text is not YAML.
    """
    documents = _load_yaml(text, text)
    return documents[0] if documents else ""


def read_resources(files: Sequence[str], namespace: str) -> Documents:
    """Read and check all resources of files and directories; ``-`` is standard input.

    Raises:
        UsageError: a file cannot be read.
        ManifestError: a field is invalid, or two documents have the same port or name.
        BrokerError: a property is invalid.
    """
    documents = list(read_documents(files))
    read_only = [location for location, document in documents if _is_read_only(document)]
    parsed = _read_all([pair for pair in documents if not _is_read_only(pair[1])], namespace)
    if not parsed:
        raise ManifestError(path=", ".join(files), reason="holds no resource")
    _check_duplicates(parsed)
    with_ignored = [location for location, document in documents if _has_ignored_metadata(document)]
    result = Documents(resources=[resource for _, resource in parsed])
    if with_ignored:
        result.notes.append(f"labels and annotations are not kept ({_summarise(with_ignored)})")
    if read_only:
        result.notes.append(f"PEs and Routes are skipped ({_summarise(read_only)})")
    return result


def _is_read_only(document: Any) -> bool:
    return isinstance(document, Mapping) and document.get("kind") in READ_ONLY_KINDS


def _has_ignored_metadata(document: Any) -> bool:
    return any((document.get("metadata") or {}).get(name) for name in IGNORED_METADATA)


def _read_all(documents: Sequence[tuple[str, Any]], namespace: str) -> list[tuple[str, Resource]]:
    """Return resources with their locations; print all errors but the last, and raise that one."""
    resources: list[tuple[str, Resource]] = []
    errors: list[StreambrokerError] = []
    for location, document in documents:
        try:
            resources.append((location, _read(document, location, namespace)))
        except StreambrokerError as error:
            errors.append(error)
    for failure in errors[:-1]:
        print_error(failure)
    if errors:
        raise errors[-1]
    return resources


def _check_duplicates(read: Sequence[tuple[str, Resource]]) -> None:
    locations: dict[tuple[str, ...], str] = {}
    for location, resource in read:
        for what, key in _unique_keys(resource):
            first = locations.setdefault(key, location)
            if first != location:
                reason = (
                    f"is {what}, which {_relative_location(first, location)} also declares; leave"
                    " one out"
                )
                raise ManifestError(path=location, reason=reason)


def _summarise(locations: Sequence[str]) -> str:
    more = f" and {len(locations) - 1} more" if len(locations) > 1 else ""
    return f"{locations[0]}{more}"


def _relative_location(first: str, location: str) -> str:
    """Return the text for a document's location, without the file name if the file is the same."""
    file, comma, rest = first.rpartition(", document ")
    return f"document {rest}" if location.startswith(file + comma) else first


def _unique_keys(resource: Resource) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the keys that must be unique among documents, each with a description."""
    kind, key = kind_of(resource), resource.key
    yield f"for port {key}", (kind, str(key))
    if resource.name:
        yield f"for the name {resource.name!r}", (kind, key.namespace, resource.name, "")


def read_documents(files: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield each non-empty document of files, with the text for its location."""
    for file in _files(files):
        for number, document in enumerate(_load_yaml(_text(file), file), start=1):
            location = f"{file}, document {number}"
            if isinstance(document, Mapping) and _is_list(document):
                for at, item in enumerate(document["items"], start=1):
                    yield f"{location}, item {at}", item
            elif document is not None:
                yield location, document


def _is_list(document: Mapping[str, Any]) -> bool:
    """Return whether a document is a list of resources, as in ``get -o json``."""
    kind = document.get("kind", "List")
    return isinstance(document.get("items"), list) and str(kind).endswith("List")


def _files(files: Sequence[str]) -> Iterator[str]:
    for number, file in enumerate(files):
        if file in files[:number]:
            raise UsageError(f"-f {file} is repeated; leave one out.")
        if file != "-" and Path(file).is_dir():
            paths = sorted(x for x in Path(file).iterdir() if x.suffix in SUFFIXES)
            if not paths:
                raise UsageError(f"The directory {file} has no *.yaml, *.yml or *.json.")
            yield from map(str, paths)
        else:
            yield file


def _text(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} cannot be read: it is not UTF-8 text.") from error


def _is_rule(document: Any) -> bool:
    """Return whether a document is a pattern rule, as a resource or alone."""
    if not isinstance(document, Mapping):
        return False
    return document.get("kind") == RULE or ("kind" not in document and "pattern" in document)


def _read(document: Any, location: str, namespace: str) -> Resource:
    if _is_rule(document):
        reason = (
            "is a pattern rule, not an Export or Import: `streambroker patterns put JOB -f FILE`"
            " takes it, `streambroker patterns delete JOB/ID` deletes it"
        )
        raise ManifestError(path=location, reason=reason)
    try:
        resource = read_manifest(document, namespace=namespace)
        _check_properties(document["spec"].get("properties") or {})
        return resource
    except ManifestError as error:
        path = f"{location}: {error.path}"
        raise ManifestError(path=path.rstrip(": "), reason=error.reason) from error
    except PropertyError as error:
        raise broker_error(422, error.code, f"{location}: {error}") from error


def _check_properties(properties: Mapping[str, Any]) -> None:
    for name, value in properties.items():
        check_not_null(name, value)


def check_not_null(name: str, value: Any) -> None:
    """Refuse null as a property's value; to remove a property, it is left out.

    Raises:
        PropertyError: the value is null.
    """
    if value is None:
        raise PropertyError(name, "it is null; leave it out to remove it, or put it in quotes")


def _load_yaml(text: str, where: str) -> list[Any]:
    try:
        return load_all(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        position = "" if mark is None else f" at line {mark.line + 1}, column {mark.column + 1}"
        reason = f"is not YAML{position}: {error.problem or error.context}"
        raise ManifestError(path=where, reason=reason) from error
    except (yaml.YAMLError, ValueError) as error:
        flat = " ".join(str(error).split())
        raise ManifestError(path=where, reason=f"is not YAML: {flat}") from error
    except RecursionError as error:
        raise ManifestError(path=where, reason="is nested too deeply") from error
