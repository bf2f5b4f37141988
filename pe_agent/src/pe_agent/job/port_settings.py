"""Settings of exports and imports, as programs give them and as resources have them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias, TypedDict

from pe_agent.job.arguments import (
    ArgumentError,
    Congestion,
    OnCongestion,
    check_choice,
    check_keywords,
    check_start,
    seconds,
)
from pe_agent.transport.expression_errors import mark_expression_errors
from streambroker_core.expression import parse
from streambroker_core.model.properties import normalise
from streambroker_core.wire.encoding.fields import Fields
from streambroker_core.wire.encoding.policies import read_policies
from streambroker_core.wire.encoding.quantity import format_duration

Property: TypeAlias = "str | float | Sequence[str | float]"
"""Value of a property: text, a number, a boolean, or a list of one of these."""
Limit: TypeAlias = "str | float | timedelta | None"
"""A size or a time of a buffer or an archive."""
_LIMIT_TIMES = ("maxAge", "grace", "waitLimit")


class ExportSettings(TypedDict, total=False):
    """Settings of an export; they declare the Export where it does not exist.

    - ``stream_id``: name to be imported by; excludes ``properties``.
    - ``properties``: description of the stream; values are text, numbers, booleans or lists of one.
    - ``allow_filter``: whether importers may filter.
    - ``congestion_policy``: ``wait`` or ``drop``.
    - ``buffer``: ``{"maxBytes": "1Gi", "maxAge": "1h", "grace": "10m", "waitLimit": "30s"}``.
    - ``durability``: ``local``, or ``stored``: a published batch is in object storage.
    - ``archive``: ``{"maxAge": "7d", "maxBytes": "1Ti"}``, either or both: rows stay after all
      readers have read them.
    - ``schema_policy``: which changes of the columns a later start may make: ``backward`` (the
      default: add columns, widen types), ``forward``, ``full`` or ``none``.
    - ``policies``: rows and columns that importers may read, such as
      ``[{"for": {"namespace": "ads"}, "filter": "age > 17", "columns": ["age", "city"],
      "mask": [{"column": "city", "with": "hash"}]}]``; all that are for an importer apply together.
    - ``policy_default``: ``deny`` gives nothing to importers without a policy.
    - ``description``, ``owner``, ``tags``: what people read about the stream, and find it by.
    - ``column_comments``: what columns mean, by name. Absent: with one of the three above, the
      comments in the frame's schema.
    """

    stream_id: str | None
    properties: Mapping[str, Property] | None
    allow_filter: bool | None
    congestion_policy: Congestion | str | None
    buffer: Mapping[str, Limit] | None
    durability: str | None
    archive: Mapping[str, Limit] | None
    schema_policy: str | None
    policies: Sequence[Mapping[str, Any]] | None
    policy_default: str | None
    description: str | None
    owner: str | None
    tags: Sequence[str] | None
    column_comments: Mapping[str, str] | None


def export_spec(method: str, port: str, settings: ExportSettings) -> dict[str, Any]:
    """Return settings of a method as those of an Export; empty if there are none.

    Raises:
        ArgumentError, PropertyError: two exclude each other, or one is wrong.
        TypeError: there is no such setting.
    """
    check_keywords(method, settings, ExportSettings.__annotations__)
    given = {name: value for name, value in settings.items() if value is not None}
    if "stream_id" in given and "properties" in given:
        raise ArgumentError(
            f"export {port}: stream_id and properties exclude each other; give one of them."
        )
    convert: dict[str, tuple[str, Callable[[Any], Any]]] = {
        "stream_id": ("streamId", lambda value: value),
        "properties": ("properties", normalise),
        "allow_filter": ("allowFilter", lambda value: value),
        "congestion_policy": (
            "congestionPolicy",
            lambda value: check_choice(Congestion, value, "congestion_policy"),
        ),
        "buffer": ("buffer", partial(_limits, "buffer")),
        "durability": ("durability", lambda value: value),
        "archive": ("archive", partial(_limits, "archive")),
        "schema_policy": ("schemaPolicy", lambda value: value),
        "policies": ("policies", _policies),
        "policy_default": ("policyDefault", lambda value: value),
        "description": ("description", lambda value: value),
        "owner": ("owner", lambda value: value),
        "tags": ("tags", lambda value: value if isinstance(value, str) else list(value)),
        "column_comments": ("columnComments", dict),
    }
    spec = {}
    for name, value in given.items():
        field_name, function = convert[name]
        spec[field_name] = function(value)
    if spec and "stream_id" not in given:
        spec.setdefault("properties", {})
    return spec


def _policies(policies: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return policies; an error names what is wrong before anything is declared."""
    read_policies(Fields({"policies": policies}), None)
    return [dict(policy) for policy in policies]


def _limits(setting: str, limits: Mapping[str, Limit]) -> dict[str, Limit]:
    """Return limits of a buffer or an archive; times are texts."""
    texts: dict[str, Limit] = {}
    for name, value in limits.items():
        if name in _LIMIT_TIMES and not isinstance(value, str | None):
            length = seconds(value, f"{setting}.{name}")
            texts[name] = format_duration(length) if math.isfinite(length) else f"{length}s"
    return {**limits, **texts}


def import_spec(port: str, subscription: str | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as those of an Import; empty if there are none.

    Raises:
        ArgumentError: two exclude each other, or one is wrong.
        ExpressionError: subscription or filter cannot be parsed.
    """
    streams, stream_id = settings.get("streams"), settings.get("stream_id")
    application_name, filter_ = settings.get("application_name"), settings.get("filter")
    ways = {"subscription": subscription, "streams": streams, "stream_id": stream_id}
    chosen = [name for name, value in ways.items() if value is not None]
    if len(chosen) > 1:
        raise ArgumentError(
            f"import {port}: {chosen[0]} and {chosen[1]} exclude each other; give one of them."
        )
    if application_name is not None and stream_id is None:
        raise ArgumentError(
            f"import {port}: application_name narrows an import by name; give stream_id too."
        )
    spec: dict[str, Any] = {}
    if subscription is not None:
        with mark_expression_errors({"subscription": subscription}):
            parse(subscription, "subscription")
        spec["subscription"] = subscription
    if streams is not None:
        spec["streams"] = [dict(s) for s in streams]
    if stream_id is not None:
        name = {"applicationName": application_name} if application_name else {}
        spec["streams"] = [{**name, "streamId": stream_id}]
    if filter_ is not None:
        with mark_expression_errors({"filter": filter_}):
            parse(filter_, "filter")
        spec["filter"] = filter_
    more: dict[str, Any] = {
        "applicationScope": settings.get("application_scope"),
        "start": settings.get("start"),
        "onCongestion": settings.get("on_congestion"),
    }
    if more["start"] is not None:
        more["start"] = check_start(more["start"], "start")
    if more["onCongestion"] is not None:
        more["onCongestion"] = check_choice(OnCongestion, more["onCongestion"], "on_congestion")
    return spec | {name: value for name, value in more.items() if value is not None}
