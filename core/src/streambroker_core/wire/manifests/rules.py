"""Manifests of pattern rules: converts documents to and from the model.

This module reads only job, id and ``enable``, and keeps the rule's document unchecked. An invalid
rule has to be shown with the reason, and must not remove the valid one before it.
"""

from __future__ import annotations

from streambroker_core.model import (
    DEFAULT_NAMESPACE,
    RULE,
    Rule,
    RuleKey,
    is_label,
    is_rule_id,
    rule_name_of,
)
from streambroker_core.wire.encoding.canonical import JsonObject
from streambroker_core.wire.encoding.fields import Fields
from streambroker_core.wire.manifests.ports import (
    LARGEST,
    Manifest,
    make_document,
    read_document,
    write_metadata,
)

RESOURCE_FIELDS = ("job", "enable")
"""Fields of a spec that are not part of the rule's document."""


def read_rule_manifest(
    document: object, *, namespace: str = DEFAULT_NAMESPACE, loose: bool = False
) -> Rule:
    """Read a whole document with ``apiVersion``, ``kind``, ``metadata`` and ``spec``.

    ``namespace`` is the default; ``loose`` ignores unknown fields outside the spec.

    Raises:
        ManifestError: a field is missing or wrong; the error names it.
    """
    _, metadata, spec = read_document(document, (RULE,), namespace=namespace, loose=loose)
    rule = read_rule_spec(spec, namespace=metadata.namespace, name=metadata.name, path="spec")
    return metadata.identify(rule)


def read_rule_spec(
    spec: object,
    *,
    namespace: str = DEFAULT_NAMESPACE,
    name: str = "",
    key: RuleKey | None = None,
    path: str = "",
) -> Rule:
    """Read a spec alone; the caller sets uid, generation and creation time.

    Args:
        spec: the object.
        namespace: namespace of the rule, if ``key`` is None.
        name: name of the resource, which is the rule's id if the spec has none.
        key: key of the rule. With it ``job`` and ``id`` may be absent from the spec; if present,
            they have to be equal.
        path: path of the spec in its document.

    Raises:
        ManifestError: ``job``, ``id`` or ``enable`` is missing or wrong. The rule itself is
            checked by `streambroker_core.cep.rules.validate`.
    """
    fields = Fields(spec, path)
    rule_key = RuleKey(
        namespace=namespace if key is None else key.namespace,
        job=fields.text(
            "job", None if key is None else key.job, check=is_label, expected="a DNS label"
        ),
        id=fields.text(
            "id",
            (name or None) if key is None else key.id,
            check=is_rule_id,
            expected="made of letters, digits, -, _ and ., with a letter or digit at both ends",
        ),
    )
    if key is not None and rule_key != key:
        wrong = "job" if rule_key.job != key.job else "id"
        raise fields.error_at(
            wrong, f"is {getattr(rule_key, wrong)!r}, but the address has {getattr(key, wrong)!r}"
        )
    members = fields.raw().items()
    document = {n: value for n, value in members if n not in RESOURCE_FIELDS and value is not None}
    return Rule(
        key=rule_key,
        uid="",
        enable=fields.integer("enable", 0, high=LARGEST),
        document={**document, "id": rule_key.id},
    )


def write_rule_spec(rule: Rule) -> JsonObject:
    """Return the spec: job, document, and ``enable`` unless it is 0."""
    enable = {"enable": rule.enable} if rule.enable else {}
    return {"job": rule.key.job, **rule.document, **enable}


def write_rule_manifest(rule: Rule, *, version: int | None = None) -> Manifest:
    """Return the whole document of a rule, with its identity if it has one.

    A ``version`` of None leaves out the resource version.
    """
    metadata = write_metadata(rule, rule_name_of(rule), version)
    return make_document(RULE, metadata, write_rule_spec(rule))
