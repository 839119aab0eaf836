"""The page of a silo of nodes in a browser: curves, a label that is asked for, both widths and both themes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from selenium.webdriver.common.keys import Keys

from client_service.app import create_app
from tests.support.federation import Unreachable
from tests.support.nodes import keep_node_model, node_silo, small_graph
from tests.support.serving import serve

if TYPE_CHECKING:
    from conftest import Browser

pytestmark = [pytest.mark.browser, pytest.mark.processes]
KEY = "operator-key-of-the-tests-01234567"
APPLICATION_KEY = "0123456789abcdefghijklmnopqrstuvwxyzABCD"


def test_a_label_is_tried_and_the_page_fits_narrow_and_wide(browser: Browser, tmp_path: Path) -> None:
    shard = small_graph(nodes=200, classes=3)
    settings = keep_node_model(node_silo(tmp_path, shard, operator_key=KEY, application_key=APPLICATION_KEY))
    with serve(create_app(settings, outside=Unreachable())) as address:
        browser.open(address.replace("://", f"://operator:{KEY}@"))
        browser.until(lambda: "Homophily of edges" in browser.text("#shard"))
        browser.driver.find_element("css selector", "input[name=user]").send_keys("node-0003" + Keys.ENTER)
        browser.until(lambda: browser.text("#answer h3") == "Label of node-0003")
        assert "Neighbours with the largest contributions" in browser.text("#answer")
        assert "ROC curve" in browser.text("#curves") and "Reliability" in browser.text("#curves")
        browser.keep_all("client-nodes")
