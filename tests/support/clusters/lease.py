"""A process that does nothing but hold a Lease, or wait for it, until SIGTERM.

    python lease_process.py server ca-file token namespace lease

It writes a line ``leads`` or ``follows`` whenever that changes.
"""

from __future__ import annotations

import asyncio
import signal
import sys

from streambroker_operator.kubernetes.client.http_api import HttpApi
from streambroker_operator.kubernetes.client.kubeconfig import Access
from streambroker_operator.kubernetes.replicas.lease import Lease, new_identity


def report(leads: bool) -> None:
    sys.stdout.write("leads\n" if leads else "follows\n")
    sys.stdout.flush()


async def main(server: str, ca: str, token: str, namespace: str, name: str) -> None:
    api = HttpApi(Access(server=server, token=token, ca_file=ca))
    lease = Lease(
        api, namespace=namespace, name=name, identity=new_identity("broker"), on_change=report
    )
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    keeping = asyncio.ensure_future(lease.run())
    await stopping.wait()
    keeping.cancel()
    await lease.release()
    await api.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
