"""Policies of an Export as JSON-like data, in manifests and in views."""

from __future__ import annotations

from collections.abc import Mapping

from streambroker_core.errors import ExpressionError, ManifestError
from streambroker_core.model import is_label
from streambroker_core.model.policies import ExportPolicy, Mask, MaskKind, Policies, mask_problem
from streambroker_core.model.schema import Schema
from streambroker_core.wire.encoding.canonical import JsonObject, without_none
from streambroker_core.wire.encoding.fields import Fields, json_type

MAX_POLICIES = 64
MAX_COLUMNS = 1024
MAX_FILTER = 64 * 1024
MAX_CONSTANT = 1024
MASKS: Mapping[str, MaskKind] = {"null": "null", "hash": "hash", "constant": "constant"}
_DEFAULTS = {"allow": False, "deny": True}


def read_policies(fields: Fields, schema: Schema | None) -> Policies:
    """Read ``policies`` and ``policyDefault`` of an Export with these columns, if known.

    Raises:
        ManifestError: one is wrong, or does not fit the columns; the error names it.
    """
    items = tuple(
        _read_policy(entry, schema) for entry in fields.entries("policies", max_items=MAX_POLICIES)
    )
    return Policies(items, fields.word("policyDefault", _DEFAULTS, False))


def _read_policy(entry: Fields, schema: Schema | None) -> ExportPolicy:
    fields = Fields(entry.raw(), entry.path)  # never loose: an unknown field may withhold rows
    fields.allow_only(("for", "filter", "columns", "mask"))
    if not any(map(fields.has, ("filter", "columns", "mask"))):
        raise ManifestError(path=fields.path, reason="needs filter, columns or mask")
    importer = fields.child("for")
    importer.allow_only(("namespace", "job"))
    names = {
        key: importer.text(key, check=is_label, expected="a DNS label")
        for key in ("namespace", "job")
        if importer.has(key)
    }
    types = None if schema is None else {column.name: column.type for column in schema}
    return ExportPolicy(
        **names,
        filter=_read_filter(fields, schema),
        columns=_read_columns(fields, types),
        masks=_read_masks(fields, types),
    )


def _read_filter(fields: Fields, schema: Schema | None) -> str | None:
    if not fields.has("filter"):
        return None
    from streambroker_core.expression import check_filter, parse  # the command line loads no parser

    text = fields.text("filter", longest=MAX_FILTER)
    try:
        expression = parse(text, "filter")
        if expression.tree is None:
            raise fields.error_at("filter", "is blank; leave it out for all rows")
        if schema is not None:
            check_filter(expression, schema)
    except ExpressionError as error:
        raise fields.error_at("filter", f"is wrong: {error}") from error
    return str(expression)


def _read_columns(fields: Fields, types: Mapping[str, str] | None) -> tuple[str, ...] | None:
    if not fields.has("columns"):
        return None
    names = fields.items("columns", max_items=MAX_COLUMNS)
    for name in names:
        if not isinstance(name, str) or not name:
            what = "an empty text" if isinstance(name, str) else json_type(name)
            raise fields.error_at("columns", f"holds {what}, which is no column")
        _check_known(fields, "columns", name, types)
    return tuple(sorted(set(names)))


def _read_masks(fields: Fields, types: Mapping[str, str] | None) -> tuple[tuple[str, Mask], ...]:
    masks: dict[str, Mask] = {}
    for entry in fields.entries("mask", max_items=MAX_COLUMNS):
        entry.allow_only(("column", "with", "value"))
        name = entry.text("column", longest=255)
        if name in masks:
            raise entry.error_at("column", f"is {name!r}, which has a mask already")
        if not entry.has("with"):
            raise entry.error_at("with", 'is required: "null" (in quotes), hash or constant')
        kind = entry.word("with", MASKS, "null")
        if entry.has("value") != (kind == "constant"):
            raise entry.error_at("value", "is the text of a constant, and for that alone")
        value = entry.get("value")
        if value is not None and not isinstance(value, str):
            raise entry.error_at("value", f'has to be a text, such as "0", not {json_type(value)}')
        if value is not None and len(value) > MAX_CONSTANT:
            raise entry.error_at("value", f"has more than {MAX_CONSTANT} characters")
        masks[name] = Mask(kind=kind, value=value)
        _check_known(entry, "column", name, types)
        problem = None if types is None else mask_problem(masks[name], types[name])
        if problem is not None:
            raise entry.error_at("column", f"`{name}` {problem}")
    return tuple(sorted(masks.items(), key=lambda item: item[0]))


def _check_known(fields: Fields, key: str, name: str, types: Mapping[str, str] | None) -> None:
    if types is not None and name not in types:
        raise fields.error_at(key, f"has `{name}`, which is no column of schema")


def write_policies(policies: Policies) -> JsonObject:
    """Return the fields ``policies`` and ``policyDefault``; none without policies."""
    return without_none(
        policies=[_write_policy(policy) for policy in policies.items] or None,
        policyDefault="deny" if policies.deny else None,
    )


def _write_policy(policy: ExportPolicy) -> JsonObject:
    importer = without_none(namespace=policy.namespace, job=policy.job)
    masks = [
        {"column": name, "with": mask.kind, **without_none(value=mask.value)}
        for name, mask in policy.masks
    ]
    return without_none(
        **{"for": importer or None},
        filter=policy.filter,
        columns=None if policy.columns is None else list(policy.columns),
        mask=masks or None,
    )
