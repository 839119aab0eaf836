"""A small federation of real services on loopback, and a headless Chromium that looks at its pages."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import polars as pl
import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.wait import WebDriverWait

from aggregator_service.app import create_app as create_aggregator
from client_service.app import create_app as create_client
from client_service.data.interaction_files import write_shard
from simulation.experiments.experiment import Experiment
from tests.support.questions import LONGEST_SECONDS
from tests.support.serving import serve
from tests.support.small import SMALL

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
)
ARTEFACTS = Path(__file__).parents[3] / "build" / "artefacts"
SCREENSHOTS = Path(os.environ.get("LPSFED_SCREENSHOTS", ARTEFACTS / "screenshots"))
WIDTHS = (390, 1280)

# What sticks out of the viewport at the sides, but for what a box of its own scrolls or hides.
OVERFLOWING = """
const width = document.documentElement.clientWidth;
const held = (one) => one.parentElement?.closest('.scroll, .plot, .skip, .unseen');
return [...document.querySelectorAll('body *')].filter((one) => {
  const { left, right, width: own } = one.getBoundingClientRect();
  return own > 0 && !held(one) && !one.matches('.skip, .unseen') && (left < -0.5 || right > width + 0.5);
}).map((one) => one.outerHTML.slice(0, 120));
"""
TITLE = "<script>document.title = 'owned'</script>"  # of every item


@dataclass(frozen=True)
class Place:
    """Where the services answer."""

    aggregator: str
    client: str
    token: str
    key: str

    @property
    def operator(self) -> str:
        """The operator's page, with the password as a browser would have it after asking."""
        return self.aggregator.replace("://", f"://operator:{self.token}@")

    @property
    def silo(self) -> str:
        """A silo's page, with its operator's key as password."""
        return self.client.replace("://", f"://operator:{self.key}@")

    def start(self, rounds: int) -> None:
        """Begin a run."""
        said = {"rounds": rounds, "clients": 2, "method": SMALL.model_dump(mode="json")}
        headers = {"Authorization": f"Bearer {self.token}"}
        httpx.post(f"{self.aggregator}/v1/runs", json=said, headers=headers, trust_env=False).raise_for_status()

    def status(self) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self.key}"}
        found: dict[str, Any] = httpx.get(f"{self.client}/v1/status", headers=headers, trust_env=False).json()
        return found


class Browser:
    """One window of the browser, and what it has asked for and complained about since `open`."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        """Load a page, wide, in the light and without motion, as if nothing had been before."""
        self.shape(1280, 900)
        self.scheme("light")
        self.driver.get("about:blank")  # the page before asks a service that may be gone
        self.driver.get_log("browser"), self.driver.get_log("performance")
        self.driver.get(url)

    def shape(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def scheme(self, wish: str) -> None:
        wishes = {"prefers-color-scheme": wish, "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in wishes.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def run(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def until(self, holds: Callable[[], object]) -> None:
        """Look again and again whether something is so; TimeoutException if it never is."""
        WebDriverWait(self.driver, LONGEST_SECONDS, poll_frequency=0.05).until(lambda _: holds())

    def text(self, selector: str) -> str:
        found: str = self.run("return document.querySelector(arguments[0])?.textContent ?? ''", selector)
        return " ".join(found.split())

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def asked(self) -> list[str]:
        """The addresses of all requests."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith("data:")]

    def keep(self, name: str) -> None:
        """A picture of the whole page, as an artefact of the tests."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        shot = self.driver.execute_cdp_cmd(
            "Page.captureScreenshot", {"captureBeyondViewport": True, "clip": self._clip()}
        )
        (SCREENSHOTS / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))

    def keep_all(self, name: str) -> None:
        """Pictures at both widths in both themes; AssertionError where anything sticks out of the page at the sides."""
        for width in WIDTHS:
            for theme in ("light", "dark"):
                self.shape(width, 900)
                self.scheme(theme)
                self.driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
                assert self.run(OVERFLOWING) == [], (name, width, theme)
                self.keep(f"{name}-{width}-{theme}")

    def _clip(self) -> dict[str, float]:
        width, height = self.run("const e = document.documentElement; return [e.clientWidth, e.scrollHeight]")
        return {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Function) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep the page as it is where a test of it fails."""
    report = yield
    browser = getattr(item, "funcargs", {}).get("browser")
    if report.when == "call" and report.failed and browser is not None:
        browser.keep(f"failed-{item.name}")
    return report


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium and its driver as Debian packs them; the tests are skipped where they are not."""
    if not (CHROMIUM.exists() and DRIVER.exists()):
        pytest.skip("no Chromium here: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    try:
        yield Browser(driver)
    finally:
        driver.quit()


@pytest.fixture(scope="module")
def place(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Two clients that have finished a run of three rounds. It comes after the browser: without one it is not made."""
    del browser
    folder = tmp_path_factory.mktemp("federation")
    shards = tuple(_shard(folder / "shards" / f"client-{number}", number) for number in (1, 2))
    described = Experiment(shards, folder / "run", SMALL, device="cpu")
    with ExitStack() as services:
        app = create_aggregator(described.make_aggregator_settings())
        url = services.enter_context(serve(app, wind_down=app.state.coordinator.wind_down))
        clients = [create_client(described.make_client_settings(shard, aggregator_url=url)) for shard in shards]
        first, _ = (services.enter_context(serve(client)) for client in clients)
        found = Place(url, first, described.token, described.operator_key)
        found.start(3)
        _wait_until_finished(found)
        yield found


def _wait_until_finished(place: Place) -> None:
    end = time.monotonic() + LONGEST_SECONDS
    while (status := place.status())["phase"] != "finished":
        assert time.monotonic() < end, status
        time.sleep(0.05)


def _shard(folder: Path, seed: int, users: int = 16, items: int = 12) -> Path:
    """Users who like the first items or the last ones; every title tries to be a script."""
    rng, rows = np.random.default_rng(seed), []
    for user in range(users):
        chosen = rng.permutation(items // 2) + items // 2 * (user % 2)
        for item, split in zip(chosen, ("train",) * 4 + ("valid", "test"), strict=True):
            rows.append((f"user-{user:02d}", f"item-{item:02d}", split))
    titles = pl.DataFrame({"item": [f"item-{item:02d}" for item in range(items)], "title": [TITLE] * items})
    write_shard(folder, folder.name, pl.DataFrame(rows, schema=["user", "item", "split"], orient="row"), titles)
    return folder
