"""Entities of Backstage from an AsyncAPI document: an API for each stream, a Component for a job.

https://backstage.io/docs/features/software-catalog/descriptor-format describes them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from streambroker_core.catalog.asyncapi import JOB, OWNER

_OTHER = re.compile(r"[^a-z0-9]+")
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_NO_OWNER = "unknown"
"""Backstage requires an owner; this one is shown for an Export without."""


def backstage_entities(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the entities of the channels of `asyncapi.asyncapi_document`, ordered by key."""
    apis: dict[str, list[str]] = {}
    owners: dict[str, str] = {}
    entities = []
    for key, channel in document["channels"].items():
        api, job = _name(channel["address"]), channel[JOB]
        apis.setdefault(job, []).append(api)
        if OWNER in channel:
            owners.setdefault(job, channel[OWNER])
        entities.append(_api(api, channel, _definition(document, key)))
    return entities + [
        _entity("Component", {"name": _name(job), "title": job}, {
            "type": "service", "lifecycle": "production",
            "owner": owners.get(job, _NO_OWNER), "providesApis": provided,
        })
        for job, provided in apis.items()
    ]  # fmt: skip


def _api(name: str, channel: Mapping[str, Any], definition: str) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "title": channel["address"]}
    if "description" in channel:
        metadata["description"] = channel["description"]
    tags = [_OTHER.sub("-", tag["name"].lower()).strip("-") for tag in channel.get("tags", ())]
    if any(tags):
        metadata["tags"] = list(dict.fromkeys(tag for tag in tags if tag))
    return _entity("API", metadata, {
        "type": "asyncapi", "lifecycle": "production",
        "owner": channel.get(OWNER, _NO_OWNER), "definition": definition,
    })  # fmt: skip


def _entity(kind: str, metadata: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    version = "backstage.io/v1alpha1"
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def _definition(document: Mapping[str, Any], key: str) -> str:
    """Return the document with this channel alone, as JSON."""
    operations = {
        f"{key}.{action}": document["operations"][f"{key}.{action}"]
        for action in ("send", "receive")
    }
    alone = {
        **document,
        "channels": {key: document["channels"][key]},
        "operations": operations,
    }
    return json.dumps(alone, indent=2, ensure_ascii=False) + "\n"


def _name(text: str) -> str:
    """Return a name that Backstage accepts; one that is too long for it ends with a hash."""
    plain = text.replace("/", ".")
    if _NAME.fullmatch(plain):
        return plain
    return f"{plain[:54]}.{hashlib.sha256(text.encode()).hexdigest()[:8]}"
