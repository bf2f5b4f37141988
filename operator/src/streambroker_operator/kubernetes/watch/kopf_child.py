"""Child process that runs kopf and writes each observed event as a line.

kopf blocks an interpreter for seconds at its start and at every list, and exits on some
responses of the server. In a separate process that costs the parent only a restart. It has one
event handler per kind, so it never writes to the cluster: no finalizers, annotations, posted
events or peering.

The first line on standard input is the configuration (`ChildConfig`). Standard output is JSON
lines: ``[type, kind, object]`` (type None for an object of a list), or ``[]`` as a heartbeat.
The process exits when its standard input closes.
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
from streambroker_operator.kubernetes.watch.kopf_feeder import ChildConfig

BEAT_S = 5.0
"""Interval of heartbeats."""
IDLE_S = 70.0
"""kopf drops a watch after this long without a bookmark; the server sends one per minute."""

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

WriteLine = Callable[[list[Any]], None]


def main() -> None:
    """Run kopf as configured until the parent process ends."""
    logging.basicConfig(stream=sys.stderr, level=logging.ERROR, format="%(message).300s")
    config = ChildConfig.decode(sys.stdin.buffer.readline())
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    # Other prints go to standard error, so that they cannot mix with the protocol lines.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def write_line(line: list[Any]) -> None:
        out.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")

    asyncio.run(_run(config, write_line))


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    # The parent has ended: no cleanup is needed.
    os._exit(0)


async def _run(config: ChildConfig, write_line: WriteLine) -> None:
    heartbeats = asyncio.ensure_future(_send_heartbeats(write_line))
    try:
        await kopf.operator(
            registry=_registry(config, write_line),
            settings=_settings(config),
            standalone=True,
            clusterwide=not config.namespaces,
            namespaces=config.namespaces,
        )
    finally:
        heartbeats.cancel()


async def _send_heartbeats(write_line: WriteLine) -> None:
    while True:
        write_line([])
        await asyncio.sleep(BEAT_S)


def _settings(config: ChildConfig) -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.watching.chunk_size = config.page
    settings.watching.server_timeout = config.server_s
    settings.watching.inactivity_timeout = IDLE_S
    settings.watching.connect_timeout = config.call_s
    settings.networking.connect_timeout = config.call_s
    settings.networking.request_timeout = 3 * config.call_s
    return settings


def _registry(config: ChildConfig, write_line: WriteLine) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()
    credentials = Credentials(config.access)

    async def login(**_: Any) -> kopf.ConnectionInfo:
        # kopf calls this again after a 401.
        credentials.on_unauthorised()
        return _connection_info(config.access, await asyncio.to_thread(credentials.token))

    kopf.on.login(registry=registry, id="login")(login)
    for kind in config.kinds:
        register = kopf.on.event(GROUP, VERSION, OBJECTS[kind], registry=registry, id=OBJECTS[kind])
        register(_handler(kind, write_line))
    return registry


def _handler(kind: AnyKind, write_line: WriteLine) -> Callable[..., Any]:
    async def seen(event: kopf.RawEvent, **_: Any) -> None:
        body = event["object"]
        metadata = body["metadata"]
        reduced = {"metadata": {n: value for n, value in metadata.items() if n in _METADATA}}
        reduced.update({part: body[part] for part in ("spec", "status") if part in body})
        write_line([event["type"], kind, reduced])

    return seen


def _connection_info(access: Access, token: str | None) -> kopf.ConnectionInfo:
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
