"""A client that openapi-python-client makes from each service's own document, used against the running service.

The generator has an environment of its own (`make generated-client`); without it the tests are skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from tests.support.small import TOKEN

ROOT = Path(__file__).parents[3]
PLACE = Path(os.environ.get("LPSFED_GENERATOR", ROOT / ".venv-generator")) / "bin"
pytestmark = [
    pytest.mark.skipif(
        not (PLACE / "openapi-python-client").is_file(), reason="no generator here: make generated-client"
    ),
]
PACKAGES = {"client": "lps_fed_client", "aggregator": "lps_fed_aggregator_client"}
UNKNOWN_BODY = "application/vnd.safetensors"  # of calls that clients sign, for which no generated code would do
USES = {
    "client": """
import datetime, json, sys
from lps_fed_client import AuthenticatedClient
from lps_fed_client.api.catalogue import read_item, read_model, search_items
from lps_fed_client.api.feedback import erase_user, post_interactions, put_item, read_erasure
from lps_fed_client.api.recommendations import read_similar_items, recommend, recommend_batch
from lps_fed_client.api.service import read_liveness
from lps_fed_client.api.silo import read_refresh, read_status
from lps_fed_client.models import InteractionIn, InteractionsIn, ItemIn, ItemInAttributes, RecommendationsIn

with AuthenticatedClient(base_url=sys.argv[1], token=sys.argv[2]) as silo:
    list_ = recommend.sync("user-01", client=silo, k=3, exclude=["item-00"])
    batch = recommend_batch.sync(client=silo, body=RecommendationsIn(users=["user-01", "nobody"], k=2))
    time = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.timezone.utc)
    sent = post_interactions.sync(
        client=silo,
        body=InteractionsIn([InteractionIn(event="e-1", user="new", item="item-01", time=time, rating=5.0)]),
    )
    attributes = ItemInAttributes.from_dict({"colour": "black", "year": 1999.0, "new": True})
    put_item.sync("item-01", client=silo, body=ItemIn(title="Straße", attributes=attributes))
    found = search_items.sync(client=silo, query="STRASSE")
    receipt = erase_user.sync("new", client=silo)
    refused = recommend.sync_detailed("user-01", client=silo, k=0)
    print(json.dumps({
        "items": [one.item for one in list_.items],
        "batch": [len(one.items) for one in batch.results],
        "accepted": sent.accepted,
        "found": [(one.item, one.title, one.attributes.to_dict()) for one in found.items],
        "read": read_item.sync("item-01", client=silo).title,
        "similar": len(read_similar_items.sync("item-01", client=silo, k=2).items),
        "model": read_model.sync(client=silo).items,
        "erased": read_erasure.sync(receipt.receipt, client=silo).asked_at.year,
        "status": read_status.sync(client=silo).client,
        "refresh": read_refresh.sync(client=silo).phase,
        "live": read_liveness.sync(client=silo).status,
        "refused": [int(refused.status_code), [(one.code, one.at) for one in refused.parsed.errors]],
    }))
""",
    "aggregator": """
import json, sys
from lps_fed_aggregator_client import AuthenticatedClient
from lps_fed_aggregator_client.api.operator import list_clients, list_runs, read_declaration, read_run
from lps_fed_aggregator_client.api.service import read_readiness

with AuthenticatedClient(base_url=sys.argv[1], token=sys.argv[2]) as aggregator:
    unknown = read_run.sync_detailed("run-9", client=aggregator)
    print(json.dumps({
        "runs": list_runs.sync(client=aggregator),
        "clients": list_clients.sync(client=aggregator),
        "strategy": read_declaration.sync(client=aggregator).strategy,
        "ready": read_readiness.sync(client=aggregator).status,
        "unknown": [int(unknown.status_code), unknown.parsed.code],
    }))
""",
}


def test_a_generated_client_asks_the_service(service: tuple[str, FastAPI], url: str, tmp_path: Path) -> None:
    name, document, made = service[0], tmp_path / "openapi.json", tmp_path / "made"
    document.write_bytes(httpx.get(f"{url}/openapi.json", trust_env=False).raise_for_status().content)
    assert json.loads(document.read_text())["servers"][0]["url"] == url
    path = {"PATH": f"{PLACE}{os.pathsep}{os.environ['PATH']}"}
    generate = [PLACE / "openapi-python-client", "generate", "--path", document, "--output-path", made]
    told = subprocess.run(generate, env=os.environ | path, capture_output=True, text=True, timeout=300, check=True)
    left_out = [line for line in told.stdout.splitlines() if "Unsupported content" in line or "Unable to" in line]
    assert all(UNKNOWN_BODY in line for line in left_out), told.stdout
    assert name == "aggregator" or not left_out
    assert (made / PACKAGES[name]).is_dir()
    done = subprocess.run(
        [PLACE / "python", "-c", USES[name], url, TOKEN], cwd=made, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    require_used(name, json.loads(done.stdout))


def require_used(name: str, said: dict[str, Any]) -> None:
    if name == "aggregator":
        assert said == {
            "runs": [],
            "clients": [],
            "strategy": "lpsfed",
            "ready": "ready",
            "unknown": [404, "not-found"],
        }
        return
    assert len(said.pop("items")) == 3 and said.pop("batch") == [2, 2]
    attributes = {"colour": "black", "year": 1999.0, "new": True}
    assert said == {
        "accepted": 1,
        "found": [["item-01", "Straße", attributes]],
        "read": "Straße",
        "similar": 2,
        "model": 12,
        "erased": said["erased"],
        "status": "client-1",
        "refresh": said["refresh"],
        "live": "live",
        "refused": [422, [["out-of-range", "query.k"]]],
    }
