"""Drawings of graphs: what jobs choose stays text in mermaid, DOT and HTML."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streambroker_operator.cli.output.graph import (
    Drawing,
    DrawnEdge,
    DrawnNode,
    draw_dot,
    draw_mermaid,
    make_drawing,
)
from streambroker_operator.cli.output.graph_html import draw_html

HOSTILE = [
    'quote " here',
    "it's",
    "]]></script><script>alert(1)</script>",
    '"]; click n0 "javascript:alert(1)"; n9["',
    "line\nbreak\r\n  end",
    "tab\tand\x00nul\x1b[31m",
    'back\\slash\\" and \\n',
    "#quot; &lt;b&gt; &amp; #34;",
    "žluťoučký 漢字 🚀 ",
    "right\u202eto left",
    "subgraph end",
    "--> | n1 %% comment",
    "<img src=x onerror=alert(1)>",
    "{{ }} ${x} `code`",
]
TEXTS = st.sampled_from(HOSTILE) | st.text(min_size=1, max_size=30)


def node(job: str, application: str = "", **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "id": f"default/{job}",
        "kind": "job",
        "namespace": "default",
        "job": job,
    }
    found |= {"application": application, "exportPorts": [], "importPorts": [], "state": None}
    return {**found, **more}


def edge(source: str, target: str, *filters: str | None, **more: Any) -> dict[str, Any]:
    listed = [
        {
            "export": f"default/{source}/0/trades",
            "import": f"default/{target}/0/in",
            "filter": text,
            "policy": "wait",
            "state": "flows",
        }
        for text in filters
    ]
    found = {"from": f"default/{source}", "to": f"default/{target}", "routes": len(listed)}
    return {**found, "state": "flows", "list": listed, **more}


def graph(nodes: list[Any], edges: list[Any], **more: Any) -> dict[str, Any]:
    size = {"jobs": len(nodes), "routes": sum(one["routes"] for one in edges)}
    hidden = {"jobs": 0, "routes": 0}
    return {
        "total": size,
        "hidden": hidden,
        "folded": False,
        "nodes": nodes,
        "edges": edges,
        **more,
    }


def hostile(text: str) -> Drawing:
    group = {"id": f"group:default/{text}", "kind": "group", "namespace": "default"}
    nodes = [node("a", text), node("b"), {**group, "application": text, "jobs": 3}]
    edges = [
        edge("a", "b", text, None),
        {"from": "default/b", "to": group["id"], "routes": 2, "state": "idle"},
    ]
    pair = {"export": "default/a/0/x", "import": "default/b/0/in", "message": text}
    return make_drawing(graph(nodes, edges, refused=[pair]), 200, 20)


class Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


HARMLESS = Elements(draw_html(hostile("plain")))


@given(TEXTS)
def test_a_text_adds_nothing_to_html(text: str) -> None:
    drawn = draw_html(hostile(text))
    found = Elements(drawn)

    assert found.tags == HARMLESS.tags
    assert found.attributes == HARMLESS.attributes
    assert not {"script", "img", "a", "link", "iframe"} & set(found.tags)
    assert "default-src 'none'" in drawn
    assert re.findall(r"""(?:src|href)\s*=""", re.sub(r">[^<]*<", "><", drawn)) == []


_NODE = re.compile(r'  n\d+(\[|\[\[|\[\()"([^"]*)"(\]|\]\]|\)\])')
_EDGE = re.compile(r'  n\d+ (-->|-\.->)\|"([^"]*)"\| n\d+')


@given(TEXTS)
def test_a_text_stays_in_its_label_in_mermaid(text: str) -> None:
    head, *lines = draw_mermaid(hostile(text)).splitlines()

    assert head == "flowchart LR"
    labels = []
    for line in lines:
        found = _NODE.fullmatch(line) or _EDGE.fullmatch(line)
        if found is None:
            assert line.startswith(("  %% ", "  linkStyle ")), line
        else:
            labels.append(found[2])
    assert len(labels) == 3 + 3
    for label in labels:
        left = re.sub(r"<br/>|#\d+;", "", label)
        assert all(c.isalnum() or c in " _-./:,→…" for c in left), label


@pytest.mark.parametrize("text", ["line\\nbreak", "$$x^2$$", "fa:fa-car", "style n0 fill:#f00"])
def test_mermaid_finds_no_break_formula_icon_or_style_in_a_text(text: str) -> None:
    drawn = draw_mermaid(hostile(text)).partition("  linkStyle")[0]
    decoded = re.sub(r"#(\d+);", lambda code: chr(int(code[1])), drawn)

    assert text in decoded.replace("\u200b", "")
    assert re.findall(r"\\n|\$\$|fa[a-z]?:fa-", decoded) == []
    assert re.findall(r":\S*#", drawn) == []


_DOT = re.compile(r'"(?:[^"\\\n]|\\["\\n])*"')


@given(TEXTS)
def test_a_text_stays_in_its_quotes_in_dot(text: str) -> None:
    lines = draw_dot(hostile(text)).splitlines()
    without = [_DOT.sub("Q", line) for line in lines]

    assert without == [_DOT.sub("Q", line) for line in draw_dot(hostile("plain")).splitlines()]


@given(TEXTS)
def test_graphviz_finds_no_character_reference_in_a_text(text: str) -> None:
    assert set(re.findall(r"&\w*;?", draw_dot(hostile(text)))) <= {"&amp;"}


@pytest.mark.parametrize("text", HOSTILE)
def test_what_can_be_printed_is_shown(text: str) -> None:
    words = re.findall(r"\w+", text)
    drawn = hostile(text)
    shown = " ".join(Elements(draw_html(drawn)).texts)
    decoded = re.sub(r"#(\d+);", lambda code: chr(int(code[1])), draw_mermaid(drawn))

    for word in (one for one in words if one.isprintable()):
        assert word in shown
        assert word in decoded


def test_routes_are_drawn_with_ports_filter_policy_and_state() -> None:
    drawing = make_drawing(graph([node("a"), node("b")], [edge("a", "b", "price > 10.0")]), 200, 20)

    assert drawing.edges[0].lines == ("trades → in: wait, flows", "filter price > 10.0")
    assert draw_mermaid(drawing) == (
        "flowchart LR\n"
        "  %% 2 jobs and 1 route, at most 200 nodes and edges drawn.\n"
        '  n0["default/a"]\n'
        '  n1["default/b"]\n'
        '  n0 -->|"trades → in: wait, flows<br/>filter price #62; 10.0"| n1\n'
        "  linkStyle 0 stroke:#2e7d32\n"
    )


def test_a_drawing_names_its_limit_and_what_it_leaves_out() -> None:
    answer = graph([], [], folded=True)
    answer |= {"total": {"jobs": 10_000, "routes": 5}, "hidden": {"jobs": 9_000, "routes": 4}}
    drawing = make_drawing(answer, 200, 20)

    for text in (draw_mermaid(drawing), draw_dot(drawing), draw_html(drawing)):
        assert "10,000 jobs" in text
        assert "at most 200 nodes and edges drawn" in text
        assert "No room for 9,000 jobs and 4 routes." in text


def test_more_routes_than_a_label_has_room_for_are_counted() -> None:
    drawing = make_drawing(graph([node("a"), node("b")], [edge("a", "b", *[None] * 9)]), 200, 20)

    assert drawing.edges[0].lines[-1] == "3 routes more"
    assert len(drawing.edges[0].lines) == 7


def test_jobs_in_a_ring_are_drawn_beside_each_other_and_to_themselves() -> None:
    nodes = tuple(DrawnNode(name, "job", (name,)) for name in "abcd")
    edges = tuple(
        DrawnEdge(source, target, ("x",), "#666666")
        for source, target in ("ab", "bc", "ca", "cd", "dd")
    )
    drawn = draw_html(Drawing(nodes, edges, ()))
    columns = re.findall(r'<title>([a-d])</title><rect x="(\d+)"', drawn)

    assert [name for name, _ in sorted(columns, key=lambda one: int(one[1]))] == list("abcd")
