"""Objects of an API server as JSON; keys that the server leaves out are absent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias, TypedDict

from streambroker_core.wire.encoding.canonical import JsonObject
from streambroker_operator.storage.write_options import OwnerReference

FieldTree: TypeAlias = "Mapping[str, FieldTree]"
"""FieldsV1: the owned fields by key, each with those below it."""


class ManagedFields(TypedDict, total=False):
    """Fields of one manager."""

    manager: str
    operation: str
    subresource: str
    time: str
    fieldsV1: FieldTree


class ObjectMetadata(TypedDict, total=False):
    """The metadata that is used here."""

    name: str
    namespace: str
    uid: str
    resourceVersion: str
    generation: int
    creationTimestamp: str
    deletionTimestamp: str
    annotations: Mapping[str, str]
    managedFields: Sequence[ManagedFields]
    ownerReferences: Sequence[OwnerReference]


class FieldCause(TypedDict, total=False):
    """Why an apply was refused, for one field."""

    reason: str
    message: str
    field: str


class FailureDetails(TypedDict, total=False):
    """Object and fields of a failed request."""

    name: str
    causes: Sequence[FieldCause]


class WebhookClient(TypedDict, total=False):
    """How the API server reaches a webhook."""

    url: str
    service: Mapping[str, str | int]
    caBundle: str


class WebhookEntry(TypedDict):
    """One webhook of a configuration."""

    name: str
    clientConfig: WebhookClient


class Document(TypedDict, total=False):
    """An object; also a list of objects, or a failure."""

    apiVersion: str
    kind: str
    metadata: ObjectMetadata
    spec: JsonObject
    status: object
    data: Mapping[str, str]
    webhooks: Sequence[WebhookEntry]
    items: Sequence[Document]
    message: str
    details: FailureDetails
