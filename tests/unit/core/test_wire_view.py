"""Views: both sides read the same, and equal content has an equal version."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from streambroker_core.board import AgentRegistered
from streambroker_core.errors import FormatTooNewError, ManifestError
from streambroker_core.model import Archive, PeKey, PortKey
from streambroker_core.wire.broker.view import (
    ImportPort,
    ImportRoute,
    View,
    decode,
    encode,
    with_capabilities,
    with_version,
)
from support.core.resources import board_of, export_of, import_of, pe, registration

PRICE = [{"name": "price", "type": "double"}]


def full_view() -> View:
    board = board_of(
        export_of(
            "loop/out",
            schema=PRICE,
            buffer={"maxAge": "1h", "waitLimit": "90s"},
            archive={"maxAge": "7d"},
        ),
        export_of("loop/named", streamId="s", allowFilter=False, revoked=["lab/alerts"]),
        import_of("loop/in", filter="price > 1.0", start="earliest"),
        import_of("loop/by-name", streams=[{"applicationName": "a", "streamId": "s"}]),
        import_of("loop/refused", filter="size > 1"),
    )
    board.handle(AgentRegistered(pe=pe("loop"), registration=registration()))
    view = board.reader.view(pe("loop"))
    assert view is not None
    return with_capabilities(view, lambda key, route: f"{key}>{route.export}")


def test_a_view_says_after_the_network_what_it_said_before() -> None:
    view = full_view()
    body = json.loads(json.dumps(encode(view)))
    back = decode(body)

    assert encode(back) == body
    assert back.version == view.version
    assert back.point == (10, 10)
    assert back.imports["in"].routes[0].capability == "default/loop/0/in>default/loop/0/out"
    assert back.exports["out"].buffer.max_age_s == 3600.0
    assert back.exports["out"].buffer.wait_limit_s == 90.0
    assert back.exports["named"].buffer.wait_limit_s is None
    assert back.exports["out"].archive == Archive(max_age_s=7 * 86_400.0)
    assert back.exports["named"].archive is None
    assert "archive" not in body["exports"]["named"]
    assert (back.exports["named"].revoked, back.exports["out"].revoked) == (("lab/alerts",), ())
    assert "waitLimit" not in body["exports"]["named"]["buffer"]
    assert back.imports["refused"].refused[0].reason == "FilterInvalid"


def test_unknown_keys_are_left_aside_everywhere() -> None:
    view = full_view()
    body = encode(view)
    body["more"] = 1
    body["exports"]["out"]["more"] = {"x": []}
    body["imports"]["in"]["routes"][0]["more"] = None

    assert encode(decode(body)) == encode(view)


def test_a_route_file_written_by_hand_needs_little() -> None:
    view = decode(
        {
            "job": "alerts",
            "imports": {
                "trades": {
                    "routes": [
                        {"export": "default/feed/0/trades", "location": "grpc+tcp://127.0.0.1:1"}
                    ]
                }
            },
        }
    )

    assert view.pe == PeKey(namespace="default", job="alerts", pe=0)
    assert view.imports["trades"].routes[0].policy == "wait"
    assert len(view.version) == 32


@pytest.mark.compatibility(
    "view",
    "a newer version is refused by name",
)
def test_a_view_of_a_newer_release_is_refused_by_name() -> None:
    with pytest.raises(FormatTooNewError, match="newer release"):
        decode({"v": 2, "job": "alerts"})


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ([], ""),
        (None, ""),
        ({}, "job"),
        ({"job": "Not A Label"}, "job"),
        ({"job": "a", "v": "1"}, "v"),
        ({"job": "a", "pe": -1}, "pe"),
        ({"job": "a", "pe": True}, "pe"),
        ({"job": "a", "point": [1]}, "point"),
        ({"job": "a", "point": [1, -1]}, "point"),
        ({"job": "a", "point": [1, "2"]}, "point"),
        ({"job": "a", "exports": []}, "exports"),
        ({"job": "a", "exports": {"p": 1}}, "exports.p"),
        ({"job": "a", "exports": {"p": {"routes": [1]}}}, "exports.p.routes[0]"),
        ({"job": "a", "exports": {"p": {"routes": [{}]}}}, "exports.p.routes[0].import"),
        ({"job": "a", "exports": {"p": {"buffer": {"maxBytes": 0}}}}, "exports.p.buffer.maxBytes"),
        ({"job": "a", "exports": {"p": {"buffer": {"grace": -1}}}}, "exports.p.buffer.grace"),
        ({"job": "a", "exports": {"p": {"schema": [{"name": "x"}]}}}, "exports.p.schema"),
        (
            {"job": "a", "imports": {"p": {"routes": [{"export": "x/y"}]}}},
            "imports.p.routes[0].export",
        ),
        (
            {"job": "a", "imports": {"p": {"routes": [{"export": "n/j/0/p", "policy": "hold"}]}}},
            "imports.p.routes[0].policy",
        ),
        ({"job": "a", "imports": {"p": {"start": 1}}}, "imports.p.start"),
    ],
)
def test_a_bad_view_is_refused_with_the_place(body: Any, path: str) -> None:
    with pytest.raises(ManifestError) as caught:
        decode(body)

    assert caught.value.path == path


def view_with(**changed: Any) -> View:
    export = PortKey(namespace="default", job="feed", pe=0, port="p")
    route = replace(ImportRoute(export=export, uid="x", location="l", issuer="one"), **changed)
    return with_version(View(pe=pe("a"), imports={"p": ImportPort(uid="i", routes=(route,))}))


def test_the_version_depends_on_content_and_issuer_but_not_on_point_and_capability() -> None:
    usual = view_with()
    signed = with_capabilities(replace(usual, point=(7, 7)), lambda key, route: "token")

    assert with_version(signed).version == usual.version
    for changed in ({"location": "m"}, {"filter": "a == 1"}, {"policy": "drop"}, {"issuer": "two"}):
        assert view_with(**changed).version != usual.version
