"""Hold what a broker answers against the description of its interface."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from openapi_core import Config, OpenAPI
from openapi_core.datatypes import RequestParameters
from openapi_core.exceptions import OpenAPIError
from openapi_core.templating.paths.exceptions import OperationNotFound, PathNotFound
from werkzeug.datastructures import Headers, ImmutableMultiDict

from streambroker_operator.rest.http.openapi import description

UNDESCRIBED = tuple((status, "application/problem+json") for status in (401, 404, 405))
"""What is answered where there is no such path, or no such method of it."""


@dataclass
class _Request:
    host_url: str
    path: str
    method: str
    content_type: str = ""
    body: bytes | None = None
    parameters: RequestParameters = field(
        default_factory=lambda: RequestParameters(
            query=ImmutableMultiDict([]), header=Headers(), cookie=ImmutableMultiDict([])
        )
    )


@dataclass(frozen=True)
class _Response:
    status_code: int
    content_type: str
    headers: Mapping[str, Any]
    data: bytes


@lru_cache(maxsize=1)
def _described() -> OpenAPI:
    problems: dict[str, Callable[[bytes], Any]] = {"application/problem+json": json.loads}
    return OpenAPI.from_dict(description(), Config(extra_media_type_deserializers=problems))


def assert_conforms(
    method: str, path: str, status: int, headers: Mapping[str, str], body: bytes
) -> None:
    """Fail if an answer is not as the description says."""
    kind = headers.get("Content-Type", "").partition(";")[0]
    if method == "HEAD":
        assert body == b""
        return
    request = _Request("http://broker", path.partition("?")[0], method.lower())
    response = _Response(status, kind, headers, body)
    try:
        _described().validate_response(request, response)
    except (PathNotFound, OperationNotFound):
        asked = method == "OPTIONS" and (status, body) == (204, b"")
        assert asked or (status, kind) in UNDESCRIBED, (method, path, status, body)
    except OpenAPIError as error:
        wrong = getattr(error.__cause__, "schema_errors", [error.__cause__ or error])
        said = [getattr(one, "message", str(one))[:300] for one in wrong]
        raise AssertionError(f"{method} {path} -> {status} {body[:300]!r}: {said}") from error
