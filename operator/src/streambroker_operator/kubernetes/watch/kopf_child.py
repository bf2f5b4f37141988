"""kopf in a process of its own: it tells what it sees, line by line, and nothing else.

kopf burns an interpreter for seconds at its start and at every list, and ends as a whole
on some answers of the server. Here it costs its parent nothing but a restart. It has one
handler per kind, for events, so that it never writes to the cluster: no finalizers, no
annotations, no posted events, no peering.

The first line on standard input says what to do (see `Order`). Lines on standard output
are JSON: ``[type, kind, object]``, with type None for what a list showed, or ``[]`` as a
sign of life. The process ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import kopf

from streambroker_core.model import AnyKind
from streambroker_core.wire.manifests.ports import GROUP, OBJECTS, VERSION
from streambroker_operator.kubernetes.client.kubeconfig import Access, Credentials
from streambroker_operator.kubernetes.watch.kopf_feeder import Order

BEAT_S = 5.0
"""Between two signs of life."""
IDLE_S = 70.0
"""After how long without bookmarks kopf gives a watch up; the server sends one each minute."""

_METADATA = (
    "creationTimestamp",
    "deletionTimestamp",
    "generation",
    "managedFields",
    "name",
    "namespace",
    "resourceVersion",
    "uid",
)

Tell = Callable[[list[Any]], None]


def main() -> None:
    """Do what the parent asks for until it is gone."""
    logging.basicConfig(stream=sys.stderr, level=logging.ERROR, format="%(message).300s")
    order = Order.decode(sys.stdin.buffer.readline())
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    # Whatever else prints must not get between the lines.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def tell(line: list[Any]) -> None:
        out.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")

    asyncio.run(_run(order, tell))


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    # Nothing is left to be told, and nobody to tell it to.
    os._exit(0)


async def _run(order: Order, tell: Tell) -> None:
    beat = asyncio.ensure_future(_beat(tell))
    try:
        await kopf.operator(
            registry=_registry(order, tell),
            settings=_settings(order),
            standalone=True,
            clusterwide=not order.namespaces,
            namespaces=order.namespaces,
        )
    finally:
        beat.cancel()


async def _beat(tell: Tell) -> None:
    while True:
        tell([])
        await asyncio.sleep(BEAT_S)


def _settings(order: Order) -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.watching.chunk_size = order.page
    settings.watching.server_timeout = order.server_s
    settings.watching.inactivity_timeout = IDLE_S
    settings.watching.connect_timeout = order.call_s
    settings.networking.connect_timeout = order.call_s
    settings.networking.request_timeout = 3 * order.call_s
    return settings


def _registry(order: Order, tell: Tell) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()
    credentials = Credentials(order.access)

    async def login(**_: Any) -> kopf.ConnectionInfo:
        # It is asked for again after a 401.
        credentials.refused()
        return _connection(order.access, await asyncio.to_thread(credentials.token))

    kopf.on.login(registry=registry, id="login")(login)
    for kind in order.kinds:
        on = kopf.on.event(GROUP, VERSION, OBJECTS[kind], registry=registry, id=OBJECTS[kind])
        on(_handler(kind, tell))
    return registry


def _handler(kind: AnyKind, tell: Tell) -> Callable[..., Any]:
    async def seen(event: dict[str, Any], **_: Any) -> None:
        body = event["object"]
        metadata = body["metadata"]
        short = {"metadata": {name: metadata[name] for name in _METADATA if name in metadata}}
        short.update({part: body[part] for part in ("spec", "status") if part in body})
        tell([event["type"], kind, short])

    return seen


def _connection(access: Access, token: str | None) -> kopf.ConnectionInfo:
    return kopf.ConnectionInfo(
        server=access.server,
        token=token,
        ca_path=access.ca_file,
        ca_data=_base64(access.ca),
        insecure=not access.verify,
        certificate_data=_base64(access.certificate),
        private_key_data=_base64(access.key),
        default_namespace=access.namespace,
    )


def _base64(text: str | None) -> str | None:
    return None if text is None else base64.b64encode(text.encode()).decode()


if __name__ == "__main__":
    main()
