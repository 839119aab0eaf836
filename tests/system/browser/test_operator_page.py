"""The operator's page in a real Chromium: the grid in every state, a run started and cancelled by hand, the legends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest
from selenium.webdriver.support.select import Select

from aggregator_service.app import create_app
from aggregator_service.settings import AggregatorSettings
from shared.method.parameters import Parameters
from shared.method.settings import BasisSettings
from shared.protocol.signing.enrolment import public_file
from shared.protocol.signing.keys import PrivateKey, new_key, public_pem
from shared.protocol.wire import MEDIA_TYPE, encode_body
from tests.support.clock import LeapingClock
from tests.support.serving import serve
from tests.support.signing import Signing
from tests.support.small import BEARER, SMALL, TOKEN, small_aggregator

if TYPE_CHECKING:
    from conftest import Browser

pytestmark = [pytest.mark.browser, pytest.mark.processes]
NAMES = ("east", "north", "south", "west", "a-client-with-a-name-that-is-as-long-as-names-may-be-in-here")
GRID = """
const text = (cell) => cell.textContent.trim();
return Object.fromEntries([...document.querySelectorAll('.grid tbody tr')].map(({ cells: [client, now, , ...rest] }) =>
  [text(client), [now, ...rest].map(text)]));
"""
COLOURS = "return [...document.querySelectorAll('#rho .swatch')].map((one) => getComputedStyle(one).borderTopColor)"


@dataclass
class Stage:
    """An aggregator on loopback whose clients do what a test says."""

    url: str
    settings: AggregatorSettings
    clock: LeapingClock
    keys: dict[str, PrivateKey] = field(default_factory=dict)

    @property
    def page(self) -> str:
        return self.url.replace("://", f"://operator:{TOKEN}@")

    def register(self, name: str) -> None:
        self.keys[name] = new_key()
        file = public_file(name, self.settings.registry)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(public_pem(self.keys[name].public_key()))

    def call(self, name: str, method: str, path: str, **options: Any) -> None:
        auth = Signing(name, self.keys[name])
        httpx.request(method, f"{self.url}{path}", auth=auth, trust_env=False, **options).raise_for_status()

    def join(self, name: str) -> None:
        self.register(name)
        declaration = self.settings.declaration().model_dump(mode="json")
        self.call(name, "POST", "/v1/clients", json={"client": name, "declaration": declaration})

    def look(self, name: str) -> None:
        """The client asks where the federation stands."""
        self.call(name, "GET", "/v1/runs/current")

    def send(self, name: str, number: int, rho: float, run: str = "run-1") -> None:
        tensors = self.settings.declaration().tensors
        arrays = {one.name: np.zeros(one.shape, dtype=np.float32) for one in tensors}
        body = encode_body(Parameters(arrays, {"rho": rho, "margin": 0.2}))
        path = f"/v1/runs/{run}/rounds/{number}/clients/{name}/update"
        self.call(name, "PUT", path, content=body, headers={"Content-Type": MEDIA_TYPE})

    def operate(self, method: str, path: str, **options: Any) -> Any:
        answer = httpx.request(method, f"{self.url}{path}", headers=BEARER, trust_env=False, **options)
        answer.raise_for_status()
        return answer.json()

    def phase(self, run: str = "run-1") -> tuple[str, int]:
        found = self.operate("GET", f"/v1/runs/{run}")
        return found["phase"], len(found["rounds"])


@pytest.fixture
def stage(browser: Browser, tmp_path: Path) -> Iterator[Stage]:
    del browser
    clock, settings = LeapingClock(), small_aggregator(tmp_path / "state")
    app = create_app(settings, clock=clock)
    with serve(app, wind_down=app.state.coordinator.wind_down) as url:
        yield Stage(url, settings, clock)


@pytest.fixture
def stage_with_basis(browser: Browser, tmp_path: Path) -> Iterator[Stage]:
    """The same in a federation that has declared an iterated basis."""
    del browser
    clock, basis = LeapingClock(), BasisSettings(kind="iterated", rank=5, rounds=3)
    settings = small_aggregator(tmp_path / "state", method=SMALL.model_copy(update={"catalogue": 12, "basis": basis}))
    app = create_app(settings, clock=clock)
    with serve(app, wind_down=app.state.coordinator.wind_down) as url:
        yield Stage(url, settings, clock)


def start(stage: Stage, rounds: int = 9, quorum: int = 2) -> None:
    method = stage.settings.method.model_dump(mode="json")
    stage.operate("POST", "/v1/runs", json={"rounds": rounds, "clients": 4, "quorum": quorum, "method": method})


def play_rounds(browser: Browser, stage: Stage) -> None:
    """Five clients join and a sixth never does. One is shut out, one misses round 1; in round 2 one has sent."""
    for name in NAMES:
        stage.join(name)
    stage.register("never-came")
    stage.operate("POST", "/v1/clients/west/quarantine", json={"reason": "a test"})
    start(stage)
    for name in ("east", "north", NAMES[-1]):
        stage.send(name, 1, 0.1)
    stage.clock.pass_the_deadline()
    browser.until(lambda: stage.phase() == ("open", 2))
    for name in ("east", NAMES[-1]):
        stage.send(name, 2, 0.2 if name == "east" else 0.1)
    stage.look("north")


def test_the_grid_shows_every_client_in_the_state_that_it_is_in(browser: Browser, stage: Stage) -> None:
    browser.open(stage.page)
    assert browser.text("#phase").startswith("No client has joined") and "No client is registered" in browser.text(
        "#grid"
    )
    play_rounds(browser, stage)
    browser.open(stage.page)
    expected = {
        "east": ["received", "received"],
        "north": ["training", "received"],
        "south": ["waiting", "missing"],
        "west": ["quarantined", "quarantined"],
        NAMES[-1]: ["received", "received"],
        "never-came": ["never joined", "not enrolled"],
    }
    assert browser.run(GRID) == expected
    browser.until(lambda: " ago" in browser.text(".grid tbody") and " in " in browser.text(".countdown"))
    browser.run("document.getElementById('legend').open = true")
    assert browser.complaints() == []
    browser.keep_all("operator-round-open")
    stage.clock.ahead += 60.0
    browser.until(lambda: browser.run(GRID) == expected | {"north": ["late", "received"]})


def test_a_run_is_cancelled_by_its_button_and_the_next_one_started_by_the_form(browser: Browser, stage: Stage) -> None:
    play_rounds(browser, stage)
    browser.open(stage.page)
    browser.driver.find_element("css selector", "#cancel summary").click()
    browser.keep_all("operator-cancel")
    browser.driver.find_element("css selector", "#cancel button").click()
    browser.until(lambda: browser.driver.current_url.endswith("?run=run-1"))  # the page before may say so as well
    browser.until(lambda: browser.text("#phase").startswith("Cancelled"))
    assert "by the operator" in browser.text("#phase") and stage.phase()[0] == "cancelled"
    assert browser.run(GRID)["north"] == ["cancelled", "received"] and browser.run(GRID)["south"][0] == "cancelled"
    browser.driver.find_element("css selector", "#start summary").click()
    typed = browser.driver.find_element("id", "start-rounds")
    assert typed.get_attribute("value") == "9"
    typed.clear()
    typed.send_keys("4")
    browser.keep_all("operator-start")
    stage.join("later")  # the page changes while the form is filled in, and what is typed stays
    browser.until(lambda: browser.run(GRID).get("later", ["never joined"])[0] != "never joined")
    assert browser.run("return document.getElementById('start-rounds').value") == "4"
    browser.driver.find_element("css selector", "#start button").click()
    browser.until(lambda: "run-2, round 1 of 4" in browser.text("#phase"))
    assert stage.phase("run-2") == ("open", 1) and browser.complaints() == []


def test_a_refused_form_comes_back_with_what_was_typed(browser: Browser, stage: Stage) -> None:
    for name in NAMES[:2]:
        stage.join(name)
    browser.open(stage.page)
    browser.driver.find_element("css selector", "#start summary").click()
    for name, text in (("quorum", "5"), ("rounds", "3")):
        box = browser.driver.find_element("id", f"start-{name}")
        box.clear()
        box.send_keys(text)
    browser.driver.find_element("css selector", "#start button").click()
    browser.until(lambda: "quorum: expected at most clients = 2, got 5" in browser.text("#refused"))
    browser.until(lambda: browser.text("#connection") == "Live")
    assert browser.run("return document.getElementById('start-quorum').value") == "5"
    assert browser.run("return document.getElementById('start').open")


def fill_in(browser: Browser, **fields: str) -> None:
    """Type into fields of the start form, or choose."""
    for name, text in fields.items():
        field = browser.driver.find_element("id", f"start-{name}")
        if field.tag_name == "select":
            Select(field).select_by_value(text)
        else:
            field.clear()
            field.send_keys(text)


def test_settings_of_the_method_and_a_basis_run_are_typed_into_the_form(
    browser: Browser, stage_with_basis: Stage
) -> None:
    stage = stage_with_basis
    for name in NAMES[:2]:
        stage.join(name)
    browser.open(stage.page)
    browser.driver.find_element("css selector", "#start summary").click()
    fill_in(browser, settings="local_epochs=0", part="basis", basis_kind="iterated", basis_rounds="4")
    stage.join("later")  # the page changes, and what is typed and chosen stays
    browser.until(lambda: browser.run(GRID).get("later", ["never joined"])[0] != "never joined")
    kept = "return ['settings', 'part', 'basis_rounds'].map((name) => document.getElementById(`start-${name}`).value)"
    assert browser.run(kept) == ["local_epochs=0", "basis", "4"]
    browser.driver.find_element("css selector", "#start button").click()
    browser.until(lambda: browser.text("#error-settings"))
    described = browser.driver.find_element("id", "start-settings").get_attribute("aria-describedby")
    assert "local_epochs: expected a number of 1 or more, got 0" in browser.text(f"#{described}")
    assert browser.run(kept) == ["local_epochs=0", "basis", "4"]
    browser.keep_all("operator-start-refused")
    browser.shape(1280, 900)
    fill_in(browser, settings="local_epochs=2")
    browser.driver.find_element("css selector", "#start button").click()
    browser.until(lambda: "run-1 (common basis), round 1 of 4" in browser.text("#phase"))
    method = stage.operate("GET", "/v1/runs/run-1")["request"]["method"]
    assert method["local_epochs"] == 2 and method["basis"]["rounds"] == 4
    assert [line for line in browser.complaints() if "422" not in line] == []


def test_lines_have_colours_of_their_own_and_are_put_away_by_their_legend(browser: Browser, stage: Stage) -> None:
    for name in NAMES[:4]:
        stage.join(name)
    start(stage, rounds=4)
    for number in (1, 2, 3):
        for order, name in enumerate(NAMES[:4]):
            stage.send(name, number, 0.1 if name == "west" else 0.1 * order + 0.01 * number * number)
        browser.until(lambda number=number: stage.phase() == ("open", number + 1))
    browser.open(stage.page)
    names = "return [...document.querySelectorAll('#rho .lines button')].map((one) => one.textContent.trim())"
    browser.until(lambda: browser.run(names) == ["east", "north", "south"])  # of west there is nothing to draw
    assert "west0.1000" in browser.text("#constants tbody")
    assert len(set(browser.run(COLOURS))) == 3
    pressed = "return document.querySelector('#rho .lines button').getAttribute('aria-pressed')"
    button = browser.driver.find_element("css selector", "#rho .lines button")
    assert browser.run(pressed) == "true"
    button.send_keys("\ue007")  # Enter
    assert browser.run(pressed) == "false"
    for name in NAMES[:4]:
        stage.send(name, 4, 0.9)
    browser.until(lambda: browser.text("#phase").startswith("Finished"))
    assert browser.run(pressed) == "false"  # the chart was drawn anew
    assert browser.run("return document.activeElement.textContent.trim()") == "east"
    browser.keep_all("operator-finished")
