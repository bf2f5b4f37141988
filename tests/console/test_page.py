"""What one does with the page: sign in, look, search, change."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import expect

from console.brokers import TOKENS, RunningBroker, export_of, import_of
from console.browser import WAIT_MS, Console

expect.set_options(timeout=WAIT_MS)


def test_a_token_signs_in_and_only_this_tab_keeps_it_until_one_signs_out(
    browser: Any, broker: RunningBroker
) -> None:
    console = Console(browser, broker.url)
    page = console.page
    page.goto(f"{broker.url}/ui/")
    page.get_by_label("Token").fill("wrong-0123456789abcdef")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("token")
    assert page.evaluate("sessionStorage.length") == 0

    console.sign_in("ops")
    kept = page.evaluate("[Object.values(sessionStorage), localStorage.length, document.cookie]")
    assert kept == [[TOKENS["ops"]], 0, ""]
    page.reload()
    expect(console.job("nyse")).to_be_visible()

    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    assert page.evaluate("sessionStorage.length") == 0
    console.close()
    assert console.problems == []


def test_the_topology_shows_the_jobs_and_the_route_of_the_example(console: Console) -> None:
    for name in ("alerts", "audit", "lab", "nyse", "xetra"):
        expect(console.job(name)).to_be_visible()
    console.job("alerts").click()

    details = console.page.get_by_role("complementary", name="Details of alerts")
    expect(details).to_contain_text("default/nyse/0/trades")
    expect(details).to_contain_text("price > 10.0")
    expect(console.page.get_by_text("5 jobs, 1 route")).to_be_visible()


def test_the_drawing_stays_while_a_search_loads(console: Console) -> None:
    canvas = console.page.get_by_test_id("canvas")
    canvas.evaluate("element => { element.isTheSame = true }")
    console.page.get_by_role("searchbox", name="Search jobs").fill("xetra")
    expect(console.job("lab")).to_have_count(0)
    assert canvas.evaluate("element => element.isTheSame")


def test_a_search_finds_names_properties_and_expressions(console: Console) -> None:
    search = console.page.get_by_role("searchbox", name="Search jobs")
    search.fill("xetra")
    expect(console.job("lab")).to_have_count(0)
    expect(console.job("xetra")).to_be_visible()
    search.fill("exchange=NYSE")
    expect(console.job("nyse")).to_be_visible()
    expect(console.job("xetra")).to_have_count(0)
    search.fill("level > 2")
    expect(console.job("xetra")).to_be_visible()
    expect(console.job("nyse")).to_have_count(0)
    search.fill("level >")
    expect(console.page.get_by_role("alert")).to_contain_text("SubscriptionInvalid")


def test_a_focus_shows_one_hop_or_two(console: Console, broker: RunningBroker) -> None:
    last = [export_of("alerts", properties={"kind": "alert"})]
    last.append(import_of("desk", subscription='kind == "alert"'))
    broker.apply(last)
    expect(console.job("desk")).to_be_visible()
    console.job("nyse").click()
    console.page.get_by_role("link", name="Focus, 1 hop").click()
    expect(console.job("lab")).to_have_count(0)
    expect(console.job("desk")).to_have_count(0)
    console.page.get_by_role("link", name="2 hops").click()
    expect(console.job("desk")).to_be_visible()


def test_applications_fold_into_groups_and_open(console: Console, broker: RunningBroker) -> None:
    name: dict[str, Any] = {"application": {"name": "Trading"}}
    broker.apply([export_of("feed-a", **name), export_of("feed-b", **name)])
    expect(console.job("feed-a")).to_be_visible()
    console.page.get_by_label("Fold applications").check()
    expect(console.job("feed-a")).to_have_count(0)
    console.job("Trading").click()
    console.page.get_by_role("link", name="Open the group").click()
    expect(console.job("feed-a")).to_be_visible()
    console.page.get_by_role("link", name="Fold the group").click()
    expect(console.job("Trading")).to_be_visible()


def places(console: Console, count: int) -> Any:
    """Return where the jobs are drawn, once so many are: the drawing follows the text."""
    canvas = console.page.get_by_test_id("canvas").element_handle()
    drawn = "([box, count]) => Object.keys(box.places()).length === count"
    console.page.wait_for_function(drawn, arg=[canvas, count])
    return canvas.evaluate("box => box.places()")


def test_routes_appear_and_disappear_while_one_looks_and_nothing_else_moves(
    console: Console, broker: RunningBroker
) -> None:
    expect(console.page.get_by_text("5 jobs, 1 route")).to_be_visible()
    before = places(console, 5)
    broker.apply([import_of("late")])
    expect(console.page.get_by_text("6 jobs, 3 routes")).to_be_visible()
    during = places(console, 6)
    broker.change("DELETE", "/job/late/pe/0/import/in")
    expect(console.page.get_by_text("5 jobs, 1 route")).to_be_visible()

    assert {name: during[name] for name in before} == before
    assert places(console, 5) == before


def test_a_subscription_is_changed_after_its_forecast_is_shown(
    console: Console, broker: RunningBroker
) -> None:
    console.go("port?import=default/audit/0/all")
    page = console.page
    page.get_by_label("Subscription", exact=True).fill('kind == "trade"')
    expect(page.get_by_text("+2 added")).to_be_visible()
    expect(page.locator(".change.add").first).to_contain_text("default/nyse/0/trades")
    assert broker.ask("GET", "/job/audit/pe/0/import/all/subscription")[1] == {
        "subscription": 'knid == "trade" || level > 3'
    }

    page.get_by_role("button", name="Apply subscription").click()
    expect(page.get_by_text("Applied.")).to_be_visible()
    expect(page.get_by_role("region", name="History")).to_contain_text("by ops")
    found = broker.ask("GET", "/job/audit/pe/0/import/all/subscription")[1]
    assert found == {"subscription": 'kind == "trade"'}


def test_a_change_does_not_overwrite_one_that_another_caller_made_meanwhile(
    console: Console, broker: RunningBroker
) -> None:
    console.go("port?import=default/alerts/0/trades")
    page = console.page
    page.get_by_label("Filter", exact=True).fill("price > 30.0")
    expect(page.get_by_role("button", name="Apply filter")).to_be_enabled()
    broker.change("PUT", "/job/alerts/pe/0/import/trades/filter", {"filter": "price > 20.0"})
    expect(page.get_by_role("region", name="History")).to_contain_text("price > 20.0")
    page.get_by_role("button", name="Apply filter").click()

    expect(page.get_by_text("Changed meanwhile")).to_be_visible()
    found = broker.ask("GET", "/job/alerts/pe/0/import/trades/filter")[1]
    assert found == {"filter": "price > 20.0"}
    page.get_by_role("button", name="Show the new version").click()
    expect(page.get_by_label("Filter", exact=True)).to_have_value("price > 20.0")


def test_a_mistake_in_a_filter_is_marked_at_its_place(console: Console) -> None:
    console.go("port?import=default/alerts/0/trades")
    page = console.page
    page.get_by_label("Filter", exact=True).fill("price > = 3")
    expect(page.locator(".editor-marks mark")).to_have_text("=")
    expect(page.get_by_text("line 1, column 9")).to_be_visible()
    expect(page.get_by_role("button", name="Apply filter")).to_be_disabled()


def test_a_key_right_behind_a_completion_finds_its_place(console: Console) -> None:
    console.go("why")
    field = console.page.get_by_label("Subscription of an Import")
    field.press_sequentially("ki")
    expect(console.page.get_by_role("option", name="kind")).to_be_visible()
    field.evaluate(
        """element => {
          const enter = { key: 'Enter', bubbles: true, cancelable: true };
          element.dispatchEvent(new KeyboardEvent('keydown', enter));
          document.execCommand('insertText', false, ' == 1');
        }"""
    )
    expect(field).to_have_value("kind == 1")


def test_the_editor_completes_names_and_values(console: Console) -> None:
    console.go("why")
    field = console.page.get_by_label("Subscription of an Import")
    field.press_sequentially("ki")
    expect(console.page.get_by_role("option", name="kind")).to_be_visible()
    field.press("Enter")
    field.press_sequentially(' == "q')
    expect(console.page.get_by_role("option", name='"quote"')).to_be_visible()
    field.press("Enter")
    expect(field).to_have_value('kind == "quote"')
    expect(console.page.get_by_text("+1 added")).to_be_visible()


def test_why_shows_each_predicate_with_its_value_and_what_is_nearest(console: Console) -> None:
    console.go("why?import=default/alerts/0/trades&export=default/nyse/0/quotes")
    page = console.page
    expect(page.get_by_role("heading", name="They are not connected")).to_be_visible()
    expect(page.get_by_role("row", name=re.compile('kind == "trade".*false'))).to_be_visible()
    expect(page.get_by_role("row", name=re.compile('"IBM" in tickers.*true'))).to_be_visible()
    expect(page.get_by_text("Nearest ways to a match")).to_be_visible()
    page.get_by_label("Export").fill("")
    expect(page.get_by_role("heading", name="1 of 4 exports matches")).to_be_visible()


def test_a_port_shows_the_metrics_that_agents_report(
    console: Console, broker: RunningBroker
) -> None:
    reader = {"import": "default/alerts/0/trades", "reader": "r", "alive": True, "lostRows": 7}
    reader |= {"delivered": 5, "filtered": 11, "lagRows": 1_500}
    body = {"exports": {"trades": {"readers": [reader]}}, "imports": {}}
    broker.change("PUT", "/job/nyse/pe/0/report", body)
    console.go("port?export=default/nyse/0/trades")
    row = console.page.get_by_role("row", name="default/alerts/0/trades")
    for figure in ("1.5K", "11", "7"):
        expect(row.get_by_role("cell").filter(has_text=re.compile(f"^{figure}"))).to_be_visible()


def test_an_export_shows_what_it_is_and_is_found_by_it(
    console: Console, broker: RunningBroker
) -> None:
    spec = {"description": "Prices of the tape", "owner": "market-data", "tags": ["gold"]}
    spec["columnComments"] = {"price": "in USD"}  # type: ignore[assignment]
    broker.change("PATCH", "/job/nyse/pe/0/export/trades", {"spec": spec})
    console.go("port?export=default/nyse/0/trades")
    about = console.page.get_by_role("region", name="About")
    for text in ("Prices of the tape", "market-data", "gold"):
        expect(about).to_contain_text(text)
    expect(console.page.get_by_role("cell", name="in USD")).to_be_visible()

    console.go("topology?match=tape")
    expect(console.job("nyse")).to_be_visible()
    expect(console.job("xetra")).to_have_count(0)


def test_the_keyboard_is_enough(console: Console) -> None:
    page = console.page
    expect(console.job("nyse")).to_be_visible()
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.press("Tab")
    for _ in range(6):
        if page.evaluate("document.activeElement.textContent").startswith("nyse"):
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("complementary", name="Details of nyse")).to_be_visible()

    page.get_by_test_id("canvas").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("complementary", name="Details of alerts")).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="Leave the focus on default/alerts")).to_be_visible()
    page.keyboard.press("3")
    expect(page.get_by_text("Choose an Export, an Import, or both")).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_the_page_goes_on_by_itself_after_the_broker_restarts(
    console: Console, broker: RunningBroker
) -> None:
    expect(console.job("nyse")).to_be_visible()
    broker.end()
    expect(console.page.get_by_text("Reconnecting")).to_be_visible()
    expect(console.job("nyse")).to_be_visible()
    broker.start()
    expect(console.page.get_by_text("Live", exact=True)).to_be_visible()
    broker.apply([import_of("after")])
    expect(console.job("after")).to_be_visible()
