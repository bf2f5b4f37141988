"""Rules of patterns as manifests write them, to and from the model.

What is read here is whose rule it is and which. The rule itself is taken as it was written: one
that cannot be run has to be shown with its reason, and must not make the job forget the one before.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from streambroker_core.model import (
    DEFAULT_NAMESPACE,
    RULE,
    Rule,
    RuleKey,
    is_label,
    is_rule_id,
    rule_name_of,
)
from streambroker_core.wire.encoding.fields import Fields
from streambroker_core.wire.manifests.ports import (
    LARGEST,
    make_document,
    read_document,
    write_metadata,
)

RESOURCE_FIELDS = ("job", "enable")
"""What a spec has beside the rule's document."""


def read_rule_manifest(
    document: object, *, namespace: str = DEFAULT_NAMESPACE, loose: bool = False
) -> Rule:
    """Read a whole document with ``apiVersion``, ``kind``, ``metadata`` and ``spec``.

    Args:
        document: what a YAML or JSON reader returned.
        namespace: where the rule goes if ``metadata.namespace`` is absent.
        loose: let fields pass that are not known.

    Raises:
        ManifestError: a field is missing or wrong; the error names it.
    """
    _, metadata, spec = read_document(document, (RULE,), namespace=namespace, loose=loose)
    rule = read_rule_spec(spec, namespace=metadata.namespace, name=metadata.name, path="spec")
    return replace(rule, **metadata.identity())


def read_rule_spec(
    spec: object,
    *,
    namespace: str = DEFAULT_NAMESPACE,
    name: str = "",
    key: RuleKey | None = None,
    path: str = "",
) -> Rule:
    """Read a spec alone; uid, generation and creation time are the caller's.

    Args:
        spec: the object.
        namespace: of the rule, where no key is given.
        name: of the resource, which is the rule's id where the spec has none.
        key: the rule it is for. Then ``job`` and ``id`` may be left out, and if there have to say
            the same.
        path: where the spec stands in its document.

    Raises:
        ManifestError: ``job``, ``id`` or ``enable`` is missing or wrong. What is wrong with the
            rule itself `streambroker_core.cep.rules.validate` tells.
    """
    fields = Fields(spec, path)
    found = RuleKey(
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
    if key is not None and found != key:
        wrong = "job" if found.job != key.job else "id"
        raise fields.error_at(
            wrong, f"is {getattr(found, wrong)!r}, but the address says {getattr(key, wrong)!r}"
        )
    given = fields.raw().items()
    document = {n: value for n, value in given if n not in RESOURCE_FIELDS and value is not None}
    return Rule(
        key=found,
        uid="",
        enable=fields.integer("enable", 0, high=LARGEST),
        document={**document, "id": found.id},
    )


def write_rule_spec(rule: Rule) -> dict[str, Any]:
    """Return the spec: job, document, and ``enable`` where it says something."""
    counted = {"enable": rule.enable} if rule.enable else {}
    return {"job": rule.key.job, **rule.document, **counted}


def write_rule_manifest(rule: Rule, *, version: int | None = None) -> dict[str, Any]:
    """Return the whole document of a rule; identity only where it has one.

    Args:
        rule: what to write.
        version: its resource version, or None to leave that out.
    """
    metadata = write_metadata(rule, rule_name_of(rule), version)
    return make_document(RULE, metadata, write_rule_spec(rule))
