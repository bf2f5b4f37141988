"""Read files of resources: which documents there are, and what is wrong with them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from streambroker_core.errors import ManifestError, PropertyError, StreambrokerError
from streambroker_core.model import Resource, kind_of
from streambroker_core.wire.manifests.ports import read_manifest
from streambroker_operator.cli.io.errors import UsageError, print_error
from streambroker_operator.cli.io.yaml_format import load_all
from streambroker_operator.errors import RequestError

SUFFIXES = (".yaml", ".yml", ".json")
"""Files of a directory that are read."""
READ_ONLY_KINDS = ("PE", "Route")
"""Kinds that ``get`` shows and nobody applies."""
IGNORED_METADATA = ("labels", "annotations")


@dataclass(frozen=True, slots=True)
class Documents:
    """Resources in the order of their files, and what a person should know of the rest."""

    resources: list[Resource] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_value(text: str) -> Any:
    """Return one YAML value; an empty text is an empty text.

    Raises:
        ManifestError: the text is not YAML.
    """
    found = _load_yaml(text, text)
    return found[0] if found else ""


def read_resources(files: Sequence[str], namespace: str) -> Documents:
    """Return every resource of some files, all of them checked.

    Args:
        files: paths of files and directories, or ``-`` for the standard input.
        namespace: where resources go that name none.

    Raises:
        UsageError: a file cannot be read.
        ManifestError: a field is wrong, or two documents are for one port or
            of one name; nothing has been sent yet.
        RequestError: a property cannot be kept.
    """
    documents = list(read_documents(files))
    passed_over = [place for place, document in documents if _is_read_only(document)]
    read = _read_all([pair for pair in documents if not _is_read_only(pair[1])], namespace)
    if not read:
        raise ManifestError(path=", ".join(files), reason="holds no resource")
    _check_duplicates(read)
    not_kept = [place for place, document in documents if _has_ignored_metadata(document)]
    found = Documents(resources=[resource for _, resource in read])
    if not_kept:
        found.notes.append(f"labels and annotations are not kept ({_summarise(not_kept)})")
    if passed_over:
        found.notes.append(f"PEs and Routes are passed over ({_summarise(passed_over)})")
    return found


def _is_read_only(document: Any) -> bool:
    return isinstance(document, Mapping) and document.get("kind") in READ_ONLY_KINDS


def _has_ignored_metadata(document: Any) -> bool:
    return any((document.get("metadata") or {}).get(name) for name in IGNORED_METADATA)


def _read_all(documents: Sequence[tuple[str, Any]], namespace: str) -> list[tuple[str, Resource]]:
    """Return the resources with their places; tell all faults but the last, and raise that."""
    found: list[tuple[str, Resource]] = []
    faults: list[StreambrokerError] = []
    for place, document in documents:
        try:
            found.append((place, _read(document, place, namespace)))
        except StreambrokerError as error:
            faults.append(error)
    for fault in faults[:-1]:
        print_error(fault)
    if faults:
        raise faults[-1]
    return found


def _check_duplicates(read: Sequence[tuple[str, Resource]]) -> None:
    """Refuse two documents for one port, or of one kind and name."""
    places: dict[tuple[str, ...], str] = {}
    for place, resource in read:
        for what, same in _unique_keys(resource):
            first = places.setdefault(same, place)
            if first != place:
                reason = f"is {what}, which {_relative_location(first, place)} has; leave one out"
                raise ManifestError(path=place, reason=reason)


def _summarise(locations: Sequence[str]) -> str:
    more = f" and {len(locations) - 1} more" if len(locations) > 1 else ""
    return f"{locations[0]}{more}"


def _relative_location(first: str, location: str) -> str:
    """Return the words for a document, without its file if another one is in the same."""
    file, comma, rest = first.rpartition(", document ")
    return f"document {rest}" if location.startswith(file + comma) else first


def _unique_keys(resource: Resource) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield what no two documents may both be for."""
    kind, key = kind_of(resource), resource.key
    yield f"for port {key}", (kind, str(key))
    if resource.name:
        yield f"for the name {resource.name!r}", (kind, key.namespace, resource.name, "")


def read_documents(files: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield each document of files that holds something, with the words for its place."""
    for file in _files(files):
        for number, document in enumerate(_load_yaml(_text(file), file), start=1):
            place = f"{file}, document {number}"
            if isinstance(document, Mapping) and _is_list(document):
                for at, item in enumerate(document["items"], start=1):
                    yield f"{place}, item {at}", item
            elif document is not None:
                yield place, document


def _is_list(document: Mapping[str, Any]) -> bool:
    """Say whether a document is a list of resources, as ``get -o json`` answers it."""
    kind = document.get("kind", "List")
    return isinstance(document.get("items"), list) and str(kind).endswith("List")


def _files(files: Sequence[str]) -> Iterator[str]:
    for number, file in enumerate(files):
        if file in files[:number]:
            raise UsageError(f"-f {file} stands there twice; leave one out.")
        if file != "-" and Path(file).is_dir():
            inside = sorted(x for x in Path(file).iterdir() if x.suffix in SUFFIXES)
            if not inside:
                raise UsageError(f"The directory {file} has no *.yaml, *.yml or *.json.")
            yield from map(str, inside)
        else:
            yield file


def _text(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} cannot be read: it is no text in UTF-8.") from error


def _read(document: Any, location: str, namespace: str) -> Resource:
    try:
        resource = read_manifest(document, namespace=namespace)
        _check_properties(document["spec"].get("properties") or {})
        return resource
    except ManifestError as error:
        path = f"{location}: {error.path}"
        raise ManifestError(path=path.rstrip(": "), reason=error.reason) from error
    except PropertyError as error:
        raise RequestError(0, error.code, f"{location}: {error}") from error


def _check_properties(properties: Mapping[str, Any]) -> None:
    for name, value in properties.items():
        check_not_null(name, value)


def check_not_null(name: str, value: Any) -> None:
    """Refuse null as a property's value: nobody who writes one means to remove it.

    Raises:
        PropertyError: it is null.
    """
    if value is None:
        raise PropertyError(name, "it is null; leave it out to remove it, or put it in quotes")


def _load_yaml(text: str, where: str) -> list[Any]:
    try:
        return load_all(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = "" if mark is None else f" at line {mark.line + 1}, column {mark.column + 1}"
        reason = f"is not YAML{place}: {error.problem or error.context}"
        raise ManifestError(path=where, reason=reason) from error
    except (yaml.YAMLError, ValueError) as error:
        flat = " ".join(str(error).split())
        raise ManifestError(path=where, reason=f"is not YAML: {flat}") from error
    except RecursionError as error:
        raise ManifestError(path=where, reason="is nested too deeply") from error
