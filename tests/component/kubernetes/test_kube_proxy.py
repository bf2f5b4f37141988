"""The proxy that misbehaves: what it injects is a fault, and never what a restore looks like."""

from __future__ import annotations

import aiohttp

from streambroker_operator.kubernetes.client.kubeconfig import from_kubeconfig
from support.clusters.api_server import ApiServer
from support.clusters.objects import ClusterObjects
from support.clusters.proxy import Fault, KubeProxy


async def test_nobody_is_given_an_old_list_twice_running(api: ApiServer, namespace: str) -> None:
    """Also where somebody else, as kopf beside a feeder, is given a new one in between."""
    objects = ClusterObjects(api, namespace)
    access = from_kubeconfig(api.kubeconfig())
    proxy = KubeProxy(access)
    headers = {"Authorization": f"Bearer {access.token}"}
    async with proxy.running(), aiohttp.ClientSession(headers=headers) as session:

        async def listed(**params: str) -> int:
            url = f"{proxy.url}{objects.path('Import')}"
            async with session.get(url, params=params) as answer:
                return len((await answer.json(content_type=None))["items"])

        objects.write("Import", "a")
        assert (await listed(limit="500"), await listed()) == (1, 1)
        objects.write("Import", "b")
        proxy.faults += [Fault(on=("list",), how="stale")]
        assert await listed(limit="500") == 1
        assert await listed() == 2
        proxy.faults += [Fault(on=("list",), how="stale")]
        assert await listed(limit="500") == 2
