"""What the page must never do, with any text that it shows."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from console.brokers import ROOT, RunningBroker, export_of, import_of
from console.browser import WAIT_MS, Console
from console.prefix import Prefix

expect.set_options(timeout=WAIT_MS)
DIST = ROOT / "operator/src/streambroker_operator/ui/dist"
AXE = ROOT / "console/node_modules/axe-core/axe.min.js"
ATTACK = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
PLACES = (
    "topology?chosen=default/nyse",
    "port?import=default/alerts/0/trades",
    "port?export=default/nyse/0/trades",
    "why",
    "why?import=default/alerts/0/trades",
    "why?import=default/alerts/0/trades&export=default/nyse/0/quotes",
    "rows",
    "port",
)
"""All views, empty and with something in them."""
MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|srcdoc|eval\(|new Function"
)
PACKED_BYTES = 500_000


def test_texts_that_a_job_chooses_are_shown_as_texts(
    console: Console, broker: RunningBroker
) -> None:
    quoted = ATTACK.replace('"', '\\"')
    broker.apply(
        [
            export_of("evil", properties={"kind": ATTACK, "list": [ATTACK]}),
            import_of("victim", subscription=f'kind == "{quoted}"', filter=f'a == "{quoted}"'),
        ]
    )
    ports = "import=default/victim/0/in", "export=default/evil/0/out"
    shown = ["topology?chosen=default/victim", f"topology?match=kind={ATTACK}", f"port?{ports[0]}"]
    shown += [f"port?{ports[1]}", f"why?{ports[0]}&{ports[1]}", f"why?{ports[0]}"]
    shown += [f"topology?focus=default/{ATTACK}", f"rows?export=default/{ATTACK}/0/out"]
    for place in shown:
        console.go(place)
        expect(console.page.locator("main")).to_contain_text(
            re.compile("victim|evil|img|broker|Peek")
        )
        expect(console.page.get_by_role("status", name="Loading")).to_have_count(0)
        assert console.page.evaluate("window.hacked") is None, place
        assert console.page.locator("img, #app script").count() == 0, place
    console.go(f"port?{ports[0]}")
    field = console.page.get_by_label("Filter", exact=True)
    field.fill(f"<b>{ATTACK}")
    expect(console.page.locator(".editor-message.bad")).to_contain_text("Invalid filter")
    assert console.page.evaluate("window.hacked") is None


def test_a_caller_without_rights_sees_no_names(browser: Any, broker: RunningBroker) -> None:
    own = import_of("guest")["spec"]
    broker.change("PUT", "/job/guest/pe/0/import/in?namespace=elsewhere", own)
    console = Console(browser, broker.url)
    console.sign_in("stranger")
    for place in (*PLACES, "topology?ns=default", "topology?ns=*"):
        console.go(place)
        expect(console.page.get_by_role("status", name="Loading")).to_have_count(0)
        for name in ("xetra", "lab", "price >", "SAP"):
            assert name not in console.text(), place
    expect(console.page.get_by_role("alert").first).to_contain_text("NotYours")
    console.close()
    assert console.problems == []


def test_a_reader_is_offered_no_change(browser: Any, broker: RunningBroker) -> None:
    console = Console(browser, broker.url)
    console.sign_in("reader")
    console.go("port?import=default/alerts/0/trades")
    expect(console.page.get_by_text("read-only")).to_be_visible()
    expect(console.page.get_by_label("Filter", exact=True)).not_to_be_editable()
    expect(console.page.get_by_role("button", name="Apply")).to_have_count(0)
    console.close()


def test_the_page_works_behind_a_path_prefix(browser: Any, broker: RunningBroker) -> None:
    with Prefix(broker.url, "/tools/streams") as prefix:
        console = Console(browser, prefix.url)
        console.page.goto(f"{prefix.url}/ui")
        console.sign_in("ops")
        expect(console.job("nyse")).to_be_visible()
        broker.apply([import_of("late")])
        expect(console.job("late")).to_be_visible()
        console.close()
        assert console.problems == []
        assert console.elsewhere == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation(browser: Any, broker: RunningBroker, scheme: str) -> None:
    reader = {"import": "default/alerts/0/trades", "reader": "r", "alive": True, "lostRows": 7}
    body = {"exports": {"trades": {"readers": [{**reader, "delivered": 5}]}}, "imports": {}}
    broker.change("PUT", "/job/nyse/pe/0/report", body)
    broker.change("PUT", "/job/alerts/pe/0/import/trades/filter", {"filter": "price > 12.0"})
    console = Console(browser, broker.url, scheme)
    page = console.page
    page.goto(f"{broker.url}/ui/")
    expect(page.get_by_label("Token")).to_be_visible()
    found = {"sign-in": violations(page)}
    console.sign_in("ops")
    for place in PLACES:
        console.go(place)
        expect(page.get_by_role("status", name="Loading")).to_have_count(0)
        found[place] = violations(page)
    console.go("port?import=default/alerts/0/trades")
    page.get_by_label("Filter", exact=True).fill("price > = 3")
    expect(page.locator(".editor-marks mark")).to_be_visible()
    found["mistake"] = violations(page)
    page.get_by_label("Filter", exact=True).fill("price > 40.0")
    expect(page.get_by_text("This would change routes")).to_be_visible()
    found["forecast"] = violations(page)
    console.close()
    assert {place: rules for place, rules in found.items() if rules} == {}


def violations(page: Any) -> list[str]:
    """What axe-core finds wrong, each with the first element concerned."""
    # Evaluated by the debugger, which the content security policy does not concern.
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run().then(all => all.violations)")
    return [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in found]


def test_the_built_page_is_small_and_lists_the_licences_of_what_it_has() -> None:
    files = [path for path in DIST.rglob("*") if path.is_file()]
    packed = sum(len(gzip.compress(path.read_bytes())) for path in files)
    licences = (DIST / "licenses.txt").read_text()

    assert packed <= PACKED_BYTES
    for name in ("cytoscape", "preact", "uplot"):
        assert re.search(rf"^{name} [0-9.]+: MIT$", licences, re.MULTILINE)


def test_no_source_of_the_page_writes_markup() -> None:
    sources = [*(ROOT / "console/src").rglob("*.ts*"), ROOT / "console/index.html"]
    found = {
        path.name: MARKUP.findall(path.read_text())
        for path in sources
        if MARKUP.search(path.read_text())
    }
    assert len(sources) > 20
    assert found == {}


def test_the_lock_file_names_no_registry() -> None:
    lock = (ROOT / "console/package-lock.json").read_text()
    assert lock.count('"integrity"') > 20
    assert "://" not in lock
    assert "registry" not in lock


def test_the_sources_stay_within_their_budget() -> None:
    lines = sum(
        len(Path(path).read_text().splitlines()) for path in (ROOT / "console/src").rglob("*.ts*")
    )
    assert lines <= 6_000
