"""What callers see of the graph and of the page, by the rights that a real API server knows."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest

from streambroker_operator.rest.console import page_files
from support.clusters.api_server import ApiServer, sent
from support.clusters.calls import allowed, declare_role, make_account, token_of
from support.clusters.replicas import connected, make_key, operator, operator_here

STREAMS = "streambroker.io"
READS = allowed((STREAMS, "exports", "list"), (STREAMS, "imports", "list"))


def test_a_graph_is_for_those_who_may_list_exports_and_imports_there(
    api: ApiServer, tmp_path: Path, namespace: str
) -> None:
    make_key(api, namespace)
    for account, rules in (("reader", READS), ("half", READS[:1]), ("stranger", [])):
        make_account(api, namespace, account)
        declare_role(api, namespace, account, rules)
    with operator(api, tmp_path, namespace) as broker:
        connected(api, namespace, broker)
        tokens = {name: token_of(api, namespace, name) for name in ("reader", "half", "stranger")}
        for path in ("/graph", "/history", "/names"):
            statuses = {
                (name, where): broker.call(token, "GET", f"{path}?namespace={where}")[0]
                for name, token in tokens.items()
                for where in (namespace, "other", "*")
            }
            assert [one for one, status in statuses.items() if status == 200] == [
                ("reader", namespace)
            ]
            assert set(statuses.values()) == {200, 403}
        graph = broker.call(tokens["reader"], "GET", f"/graph?namespace={namespace}")[1]
        page = {name: broker.call(token, "GET", "/ui") for name, token in tokens.items()}

    assert [node["id"] for node in graph["nodes"]] == [f"{namespace}/alerts", f"{namespace}/feed"]
    assert graph["edges"][0]["routes"] == 1
    assert page["reader"][1]["namespaces"] == [namespace]
    assert page["reader"][1]["allNamespaces"] is False
    assert (page["half"][0], page["stranger"][0]) == (403, 403)


@pytest.mark.parametrize(("page", "expected"), [(True, 200), (False, 401)])
def test_the_page_needs_no_token_and_may_be_switched_off(
    api: ApiServer,
    tmp_path: Path,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
    page: bool,
    expected: int,
) -> None:
    make_key(api, namespace)
    (tmp_path / "index.html").write_text("<p>page</p>")
    files = page_files.find_files(tmp_path)
    monkeypatch.setattr(page_files, "find_files", lambda: files)
    with operator_here(api, tmp_path, namespace, page=page) as broker:
        opener = urllib.request.build_opener()
        status, _, _ = sent(opener, f"{broker.url}/ui/", 5.0)

    assert status == expected
