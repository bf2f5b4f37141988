"""A receiver of OpenLineage events, which checks each by the official schemas."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from support.clusters.calls import true

SCHEMAS = Path(__file__).parents[3] / ".openlineage"
DROP = 0
"""In place of a status: close the connection without a response."""


@cache
def _registry() -> Registry[Any]:
    if not (SCHEMAS / "OpenLineage.json").exists():
        pytest.skip("no schemas of OpenLineage: `make openlineage-schema` fetches them")
    files = [SCHEMAS / "OpenLineage.json", *(SCHEMAS / "facets").glob("*.json")]
    read = [json.loads(file.read_text()) for file in files]
    return Registry().with_resources((one["$id"], Resource.from_contents(one)) for one in read)


def problems(event: dict[str, Any]) -> list[str]:
    """Return what is wrong with an event and its facets, as far as the schemas have these."""
    wrong = _errors(event["schemaURL"], event)
    wrong += _errors(event["schemaURL"].partition("#")[0], event)  # It is of one kind alone.
    for facet in _facets(event):
        url = facet["_schemaURL"]
        if url.partition("#")[0] in _registry():
            wrong += _errors(url, facet)
    return wrong


def _errors(url: str, value: Any) -> list[str]:
    validator = Draft202012Validator(
        {"$ref": url},
        registry=_registry(),
        format_checker=Draft202012Validator.FORMAT_CHECKER,
    )
    return [error.message for error in validator.iter_errors(value)]


def _facets(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if "_schemaURL" in value:
            yield value
        for one in value.values():
            yield from _facets(one)
    elif isinstance(value, list):
        for one in value:
            yield from _facets(one)


def name_of(event: dict[str, Any]) -> str:
    """Return the name of the dataset or the job that an event is of."""
    name: str = (event.get("dataset") or event["job"])["name"]
    return name


@dataclass
class Receiver:
    """What came, in order.

    Attributes:
        failures: statuses for the next requests, which are not kept as events then.
        hated: name of a dataset or job whose events get 500.
        attempts: number of requests.
    """

    url: str = ""
    events: list[dict[str, Any]] = field(default_factory=list)
    failures: list[int] = field(default_factory=list)
    hated: str = ""
    attempts: int = 0
    tokens: set[str | None] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.attempts += 1
        if self.failures:
            status = self.failures.pop(0)
            if status == DROP:
                assert request.transport is not None
                request.transport.abort()
            return web.Response(status=status or 500, text="as the test wants")
        event = await request.json()
        if name_of(event) == self.hated:
            return web.Response(status=500)
        self.tokens.add(request.headers.get("Authorization"))
        self.wrong += problems(event)
        self.events.append(event)
        return web.Response(status=201)

    @property
    def by_name(self) -> dict[str, list[dict[str, Any]]]:
        """The events of each job and dataset."""
        found = defaultdict(list)
        for event in self.events:
            found[name_of(event)].append(event)
        return dict(found)

    async def until_named(self, name: str, count: int) -> dict[str, Any]:
        """Wait until a job or dataset has so many events; return the last."""
        assert await true(lambda: len(self.by_name.get(name, ())) >= count), self.by_name
        return self.by_name[name][-1]


@asynccontextmanager
async def receiver(*failures: int, into: Receiver | None = None) -> AsyncIterator[Receiver]:
    """Run a receiver, or the given one; at the end, all that it got has to be valid."""
    _registry()
    found = Receiver(failures=list(failures)) if into is None else into
    app = web.Application()
    app.router.add_post("/api/v1/lineage", found.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}/api/v1/lineage"
    try:
        yield found
    finally:
        await runner.cleanup()
    assert found.wrong == []


@contextmanager
def receiver_in_thread() -> Iterator[Receiver]:
    """Run a receiver for a program without an event loop."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def call(step: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(step, loop).result()

    running = receiver()
    found: Receiver = call(running.__aenter__())
    try:
        yield found
    finally:
        call(running.__aexit__(None, None, None))
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
