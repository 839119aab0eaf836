"""The pages in a real Chromium: they load nothing from elsewhere, keep up with a run, and can be used by keyboard."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx
import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

if TYPE_CHECKING:
    from conftest import Browser, Place

pytestmark = [pytest.mark.browser, pytest.mark.processes]
STYLES, SCRIPTS = ("page.css", "uPlot.min.css"), ("page.js", "uPlot.iife.min.js", "charts.js")
MANY = 2000  # rounds of the run that goes on while the pages are looked at

STRUCTURE = """
const wrong = [], own = (one) => !one.closest('[data-chart] .uplot');  // and not the chart library's
const all = (selector) => [...document.querySelectorAll(selector)].filter(own);
const named = (id) => document.getElementById(id)?.textContent.trim();
const say = (words, elements) => elements.forEach((one) => wrong.push(words + ': ' + one.outerHTML.slice(0, 120)));
const levels = all('h1, h2, h3, h4, h5, h6').map((one) => +one.tagName[1]);
if (levels.filter((level) => level === 1).length !== 1 || levels[0] !== 1) wrong.push('one h1, first: ' + levels);
if (levels.some((level, place) => place && level > levels[place - 1] + 1)) wrong.push('a level left out: ' + levels);
const ids = all('[id]').map((one) => one.id);
if (new Set(ids).size !== ids.length) wrong.push('an id twice: ' + ids.filter((id, n) => ids.indexOf(id) !== n));
say('a table without a caption', all('table').filter((one) => !one.caption || !one.caption.textContent.trim()));
say('a header cell without scope', all('th').filter((one) => !['col', 'row'].includes(one.scope)));
say('a cell too many or too few', all('tbody tr').filter((one) => {
  const cells = [...one.cells].reduce((sum, cell) => sum + cell.colSpan, 0);
  return cells !== one.closest('table').tHead.rows[0].cells.length;
}));
say('a picture without words', all('[role=img]').filter((one) =>
  !one.ariaLabel && !one.getAttribute('aria-labelledby').split(' ').every(named)));
say('a chart without words', all('[data-chart]:not([role=img])'));
say('an image without alt', all('img:not([alt])'));
say('a control without a label', all('input:not([type=hidden]), textarea').filter((one) => !one.labels.length));
say('a control without words', all('a, button, summary').filter((one) => !one.textContent.trim() && !one.ariaLabel));
say('a region without a name', all('section').filter((one) => !named(one.getAttribute('aria-labelledby'))));
say('a link to nowhere', all('a[href^="#"]').filter((one) => !document.querySelector(one.getAttribute('href'))));
say('a script or style of its own', all('[style], style, script:not([src])'));
say('a live element without an id', all('[data-live]:not([id])'));
say('a live element in another', all('[data-live] [data-live]'));
if (document.documentElement.lang !== 'en') wrong.push('no language');
if (all('[aria-live="polite"]').length !== 1) wrong.push('one polite region');
return wrong;
"""

# Of every chart, how many pixels have the colour of its first line.
DRAWN = """
const hex = getComputedStyle(document.body).getPropertyValue('--line-0').trim();
const [red, green, blue] = [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16));
return [...document.querySelectorAll('[data-chart]')].map((one) => {
  const canvas = one.querySelector('canvas');
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext('2d', { willReadFrequently: true });
  copy.drawImage(canvas, 0, 0);
  const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
  let count = 0;
  for (let at = 0; at < data.length; at += 4)
    count += data[at] === red && data[at + 1] === green && data[at + 2] === blue && data[at + 3] === 255;
  return count;
});
"""


TABS = """
return [...document.querySelectorAll('[role=tab]')].map((tab) => [tab.textContent, tab.ariaSelected,
  document.getElementById(tab.getAttribute('aria-controls')).getBoundingClientRect().height > 0]);
"""
CHARTS = "return document.querySelectorAll('[data-chart]').length"


def pages(place: Place) -> dict[str, str]:
    return {"client": f"{place.silo}/?user=user-03&k=4", "operator": place.operator}


def test_a_stranger_is_asked_for_the_operator_s_password(browser: Browser, place: Place) -> None:
    browser.open(place.aggregator)
    assert any("401" in words for words in browser.complaints()) and "client" not in browser.text("body")
    browser.open(place.operator)
    assert browser.driver.title == "Aggregator – LPSFed, strategy lpsfed"
    browser.open(place.client)
    assert any("401" in words for words in browser.complaints()) and "Recall" not in browser.text("body")
    browser.open(place.silo)
    assert browser.driver.title == "client-1 – LPSFed client"


@pytest.mark.parametrize("name", ["client", "operator"])
def test_a_page_loads_without_complaint_and_from_nowhere_else(browser: Browser, place: Place, name: str) -> None:
    url = pages(place)[name]
    browser.open(url)
    browser.until(lambda: browser.text("#connection") == "Live")
    assert browser.complaints() == []
    asked = browser.asked()
    assert {urlsplit(one).hostname for one in asked} == {"127.0.0.1"} and len(
        {urlsplit(one).port for one in asked}
    ) == 1
    assert {urlsplit(one).path for one in asked} == {
        "/",
        *(f"/static/{one}" for one in (*STYLES, *SCRIPTS, "icon.svg")),
    }
    browser.keep(f"{name}-light")


@pytest.mark.parametrize("name", ["client", "operator"])
def test_the_reference_shows_every_call_and_loads_nothing_from_elsewhere(
    browser: Browser, place: Place, name: str
) -> None:
    url = place.client if name == "client" else place.aggregator
    document = httpx.get(f"{url}/openapi.json", trust_env=False).json()
    browser.open(f"{url}/docs")
    count = "return document.querySelectorAll('.opblock').length"
    browser.until(lambda: browser.run(count) == sum(map(len, document["paths"].values())))
    shown = browser.run("return [...document.querySelectorAll('.opblock-summary-path')].map((e) => e.dataset.path)")
    assert set(shown) == set(document["paths"])
    assert browser.complaints() == []
    assert {urlsplit(one).netloc for one in browser.asked()} == {urlsplit(url).netloc}
    browser.keep(f"{name}-reference")
    browser.scheme("dark")
    assert brightness(browser.run("return getComputedStyle(document.documentElement).backgroundColor")) < 60
    browser.keep(f"{name}-reference-dark")


@pytest.mark.parametrize("name", ["client", "operator"])
def test_a_page_is_put_together_so_that_anybody_can_find_their_way(browser: Browser, place: Place, name: str) -> None:
    browser.open(pages(place)[name])
    assert browser.run(STRUCTURE) == []
    assert len(browser.run(DRAWN)) == (4 if name == "client" else browser.run(CHARTS)) and all(browser.run(DRAWN))
    assert browser.run("return document.querySelectorAll('table tbody tr').length") >= 20


def test_what_is_shown_is_what_the_services_know(browser: Browser, place: Place) -> None:
    browser.open(pages(place)["client"])
    assert browser.driver.title == "client-1 – LPSFed client"
    assert browser.text("#phase") == "Finished run-1 ended after 3 rounds."
    assert "3 updates sent, each with the declared fields" in browser.text("#verdicts")
    assert browser.run("return document.querySelectorAll('#updates details').length") == 3
    assert browser.text("#answer h3") == "For user-03"
    titles = browser.run(
        "return [...document.querySelectorAll('#answer tbody td:nth-child(3)')].map((e) => e.textContent)"
    )
    assert len(titles) == 4 and all(title.startswith("<script>") for title in titles)  # text, and it did not run
    browser.open(place.operator)
    assert browser.text("#phase") == "Finished run-1 is over after 3 rounds."
    assert "client-1received" in browser.text("#round-list") and "client-2join" in browser.text("#arrived")


def test_the_box_is_used_by_keyboard_alone(browser: Browser, place: Place) -> None:
    browser.open(place.silo)

    def press(key: str) -> str:
        ActionChains(browser.driver).send_keys(key).perform()
        found: str = browser.run("const e = document.activeElement; return e.name || e.className || e.tagName")
        return found

    assert press(Keys.TAB) == "skip" and browser.run("return document.activeElement.getBoundingClientRect().left") >= 0
    assert press(Keys.ENTER) == "wide"  # the skip link leads to the content
    reached = [press(Keys.TAB)]
    while reached[-1] != "user":
        assert len(reached) < 60, reached
        reached.append(press(Keys.TAB))
    assert browser.run("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
    ActionChains(browser.driver).send_keys("user-05").perform()
    assert [press(Keys.TAB), press(Keys.TAB)] == ["filter", "k"]
    press(Keys.ENTER)
    browser.until(lambda: browser.text("#answer h3") == "For user-05")
    assert "user=user-05&filter=&k=10#recommendations" in browser.driver.current_url
    [link, *_] = browser.driver.find_elements("css selector", "#answer a")
    link.send_keys(Keys.ENTER)
    browser.until(lambda: browser.text("#answer h3").startswith("Like item-"))


@pytest.mark.parametrize("name", ["client", "operator"])
def test_dark_is_dark_and_a_narrow_page_does_not_scroll_sideways(browser: Browser, place: Place, name: str) -> None:
    browser.open(pages(place)[name])
    ground = "return getComputedStyle(document.body).backgroundColor"
    light = browser.run(ground)
    browser.scheme("dark")
    dark = browser.run(ground)
    assert brightness(light) > 200 and brightness(dark) < 60
    browser.until(lambda: all(browser.run(DRAWN)))  # the line has its colour of the dark
    browser.keep_all(name)
    browser.shape(360, 740)
    browser.run("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    assert browser.run("const e = document.documentElement; return e.scrollWidth - e.clientWidth") == 0
    browser.scheme("light")
    browser.keep(f"{name}-narrow")


def brightness(colour: str) -> float:
    parts = [float(part) for part in colour.partition("(")[2].rstrip(")").split(",")[:3]]
    return sum(parts) / 3


def test_without_scripts_there_is_a_link_to_load_the_page_again(browser: Browser, place: Place) -> None:
    browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.open(pages(place)["client"])
        browser.driver.find_element("css selector", "#connection a").click()
        assert browser.driver.current_url in (f"{place.client}/", f"{place.silo}/")
        assert "Finished" in browser.driver.find_element("id", "phase").text
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_a_service_that_does_not_answer_is_told_and_found_again(browser: Browser, place: Place) -> None:
    browser.open(place.silo)
    conditions = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    browser.driver.execute_cdp_cmd("Network.emulateNetworkConditions", conditions | {"offline": True})
    browser.until(lambda: browser.text("#connection").startswith("No answer"))
    assert "Finished" in browser.text("#phase")
    browser.driver.execute_cdp_cmd("Network.emulateNetworkConditions", conditions | {"offline": False})
    browser.until(lambda: browser.text("#connection") == "Live")


def test_records_lie_behind_tabs_that_are_used_by_arrow_keys_and_by_their_address(
    browser: Browser, place: Place
) -> None:
    browser.open(place.silo)
    names = ("Sent updates", "Received", "All calls", "Ledger")

    def seen(chosen: str) -> list[list[object]]:
        return [[name, str(name == chosen).lower(), name == chosen] for name in names]

    assert browser.run(TABS) == seen("Sent updates")
    browser.run("document.querySelector('[role=tab]').focus()")
    for key, chosen in ((Keys.ARROW_RIGHT, names[1]), (Keys.END, names[3]), (Keys.ARROW_RIGHT, names[0])):
        ActionChains(browser.driver).send_keys(key).perform()
        assert browser.run(TABS) == seen(chosen)
        assert browser.run("return document.activeElement.textContent") == chosen
    browser.driver.find_element("id", "tab-all-calls").click()
    browser.until(lambda: browser.text("#connection") == "Live")
    assert browser.run(TABS) == seen("All calls")
    browser.open(f"{place.silo}/?before=12#ledger")
    assert browser.run(TABS) == seen("Ledger") and "Entries of" in browser.text("#ledger")
    browser.keep_all("client-ledger")


def test_a_basket_is_tried_and_what_a_user_has_stands_beside_the_list(browser: Browser, place: Place) -> None:
    browser.open(f"{place.silo}/?user=user-03&k=4")
    tops = "return [...document.querySelectorAll('.beside .scroll')].map((one) => one.getBoundingClientRect().top)"
    sides = browser.run(tops)
    assert len(sides) == 2 and abs(sides[0] - sides[1]) < 1 and "item-" in browser.text("#history")
    browser.driver.find_element("css selector", "#basket summary").click()
    browser.driver.find_element("css selector", "#basket input").send_keys("item-01, item-02" + Keys.ENTER)
    browser.until(lambda: browser.text("#answer h3") == "For a basket of 2 items")
    browser.keep_all("client-basket")


def test_bars_begin_at_zero_and_are_as_long_as_their_figures(browser: Browser, place: Place) -> None:
    browser.open(place.silo)
    script = """
    return [...document.querySelectorAll('#comparison .bars')].slice(0, 1).flatMap((one) =>
      [...one.querySelectorAll('svg')].map((svg) => {
        const box = svg.getBoundingClientRect(), bar = svg.querySelector('rect').getBoundingClientRect();
        return [bar.left - box.left, bar.width / box.width, +svg.nextElementSibling.textContent];
      }));
    """
    found = browser.run(script)
    assert len(found) == 6 and browser.text("#comparison .ticks") == "00.51"
    assert all(start < 2 and abs(share - value) < 0.02 for start, share, value in found)


@pytest.mark.parametrize("name", ["client", "operator"])
def test_a_page_keeps_up_with_a_run_and_what_its_reader_does_stays(browser: Browser, place: Place, name: str) -> None:
    browser.open(place.silo if name == "client" else place.operator)
    browser.run("window.kept = 'since it was loaded'; document.getElementById('declared').open = true;")
    if place.status()["run"] == "run-1":  # with several workers each has a federation of its own
        place.start(MANY)
    if name == "client":
        browser.run("document.querySelector('input[name=user]').scrollIntoView()")
        browser.run("document.querySelector('input[name=user]').focus({ preventScroll: true })")
        ActionChains(browser.driver).send_keys("half a na").perform()
    numbers = "recall-numbers" if name == "client" else "time-numbers"  # in an element that is swapped
    browser.run("document.getElementById(arguments[0]).open = true", numbers)
    place_of_it = "return Math.round(document.activeElement.getBoundingClientRect().top)"
    before = browser.run(place_of_it)
    seen: set[str] = set()

    def two_more() -> bool:
        seen.add(browser.text("#phase"))
        return len({one for one in seen if "run-2" in one}) >= 2

    browser.until(two_more)
    assert browser.run("return window.kept") == "since it was loaded"
    assert abs(browser.run(place_of_it) - before) < 5  # what is looked at stays there, whatever grows above it
    opened = browser.run("return [...document.querySelectorAll('details[open]')].map((one) => one.id)")
    assert {"declared", numbers} <= set(opened)
    assert len(browser.run(DRAWN)) >= 2 and all(browser.run(DRAWN))
    if name == "client":
        assert browser.run("return document.activeElement.name + document.activeElement.value") == "userhalf a na"
    assert browser.complaints() == []
    browser.keep(f"{name}-busy")


def test_nobody_is_asked_while_nobody_looks(browser: Browser, place: Place) -> None:
    browser.open(place.silo)
    count = "return performance.getEntriesByType('resource').filter((one) => one.initiatorType === 'fetch').length"
    browser.until(lambda: browser.run(count) >= 1)
    browser.run("Object.defineProperty(document, 'hidden', { configurable: true, get: () => true })")
    hidden = browser.run(count)
    browser.driver.execute_async_script("setTimeout(arguments[0], 2500)")  # longer than from one look to the next
    assert browser.run(count) == hidden
    browser.run("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
    browser.until(lambda: browser.run(count) > hidden)
