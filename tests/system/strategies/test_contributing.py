"""The recipes of CONTRIBUTING, followed in a copy: one run uses all of their printed code."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[3]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
FEDPROX = (ROOT / "shared" / "strategies" / "fedprox.py").read_text(encoding="utf-8")
PACKAGES = ("aggregator_service", "audit", "client_service", "lpsfed", "requirements", "shared", "simulation")


def printed(title: str) -> str:
    """The Python code that stands under this title of the guide."""
    section = CONTRIBUTING.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    (block,) = re.findall(r"```python\n(.*?)```", section, flags=re.S)
    return textwrap.dedent(block).strip() + "\n"


def entry(name: str) -> str:
    """The registry's line of this name, as the guide writes it in its text."""
    (found,) = {found.rstrip("`") for found in re.findall(rf'`("{name}": [^`]+)`', CONTRIBUTING)}
    return found


def insert(path: Path, before: str, text: str) -> None:
    """Put the text before the one place where the file says this."""
    content = path.read_text(encoding="utf-8")
    assert content.count(before) == 1, f"{path.name}: expected {before!r} once, got {content.count(before)}"
    path.write_text(content.replace(before, text + before), encoding="utf-8")


def add_to_registry(path: Path, opening: str, line: str) -> None:
    """Put this line of a registry behind the one place where the file says `opening`."""
    content = path.read_text(encoding="utf-8")
    assert content.count(opening) == 1, f"{path.name}: expected {opening!r} once, got {content.count(opening)}"
    path.write_text(content.replace(opening, f"{opening}{line}"), encoding="utf-8")


def test_the_guide_shows_all_of_fedprox_below_its_imports() -> None:
    above, shown, below = FEDPROX.partition(printed("Add a strategy").strip())
    assert shown and below.strip() == ""
    docstring, *imports = ast.parse(above).body
    assert isinstance(docstring, ast.Expr) and all(isinstance(one, ast.Import | ast.ImportFrom) for one in imports)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The packages, without what was compiled."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / "copy" / package, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "copy"


def follow_server_optimiser(copy: Path) -> None:
    optimisers, settings = copy / "shared/strategies/server_optimisers.py", copy / "shared/method/settings.py"
    insert(optimisers, "SECOND_MOMENTS: dict", printed("Add a server optimiser") + "\n\n")
    add_to_registry(optimisers, "SECOND_MOMENTS: dict[str, SecondMoment | None] = {", entry("adamax") + ", ")
    add_to_registry(settings, "\nServer = Literal[", '"adamax", ')


def follow_encoder(copy: Path) -> None:
    imports = (
        "from torch import Tensor\n"
        "from client_service.models.model import ModelInputs, Model\n"
        "from client_service.models.whole_graph import WholeGraph, model_with_mlps\n\n"
    )
    file = copy / "client_service/models/encoders/lightgcn.py"
    file.write_text(imports + printed("Add an encoder"), encoding="utf-8")
    opening = "EXCHANGES: dict[str, ExchangeableTensors] = {\n"
    add_to_registry(copy / "shared/method/tensors.py", opening, f"    {entry('lightgcn')},\n")


def follow_metric(copy: Path) -> None:
    function, _, registry = printed("Add a metric").partition("METRICS: Mapping[str, Metric] = {..., ")
    metrics, last = copy / "client_service/evaluation/metrics.py", '"ndcg": Metric("NDCG", ndcg)'
    insert(metrics, 'METRICS: Mapping[str, Metric] = {"recall"', function + "\n\n")
    add_to_registry(metrics, last, ", " + registry.strip().rstrip("}"))


def follow_format(copy: Path) -> None:
    imports = (
        "from pathlib import Path\n"
        "import polars as pl\n"
        "from simulation.datasets.columns import FileOptions\n"
        "from simulation.datasets.content import line_error, read_text, split_lines\n"
        "from simulation.datasets.tables import Table, require_no_delimiter, row_lines\n\n"
    )
    (copy / "simulation/datasets/edges.py").write_text(imports + printed("Add a data format"), encoding="utf-8")
    formats = copy / "simulation/datasets/formats.py"
    insert(formats, "from simulation.datasets.lightgcn", "from simulation.datasets.edges import read_edges\n")
    add_to_registry(formats, "FORMATS = {  # by extension\n", f"    {entry('edges')},\n")


def write_edges(path: Path) -> None:
    """24 users, each with eight of the items of its half; a comment line first."""
    rng, lines = np.random.default_rng(0), ["% user item"]
    for user in range(24):
        lines += [f"u{user} i{item}" for item in rng.permutation(12)[:8] + 12 * (user % 2)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


RUN = ("--engine", "plain", "--clients", "2", "--rounds", "1", "--strategy", "fedprox", "--json")
CHOSEN = ("--set", "model=lightgcn", "--set", "server=adamax", "--set", "start=random", "--set", "width=4")


def test_a_run_uses_what_the_recipes_add(copy: Path, tmp_path: Path) -> None:
    for follow in (follow_server_optimiser, follow_encoder, follow_metric, follow_format):
        follow(copy)
    write_edges(tmp_path / "clicks.edges")
    command = (
        "import simulation, sys; from simulation.command import main; assert 'copy' in simulation.__file__; main()"
    )
    arguments = ["simulate", str(tmp_path / "clicks.edges"), *RUN, *CHOSEN, "--out", str(tmp_path / "out")]
    environment = os.environ | {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", command, *arguments], cwd=copy, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout)
    assert (report["strategy"], report["settings"]["model"]) == ("fedprox", "lightgcn")
    # Of a user with fewer relevant items than a list has, hits over the list's length are below hits over those items.
    assert 0.0 < report["user_mean"]["precision@20"] <= report["user_mean"]["recall@20"]


PLACES = {  # of the recipe's code: before which line it comes
    "client_service/serving/recommender.py": "    def history(",
    "client_service/http/recommendation_routes.py": '@recommendations.get("/items/{item}/similar"',
    "client_service/tasks/page_texts.py": "\n    @property\n    def explained",
    "lpsfed/calls.py": "def find_similar(",
    "lpsfed/client.py": "    def find_similar(",
}
ASKING = """
from pathlib import Path
import polars as pl
from fastapi.testclient import TestClient
from client_service.app import create_app
from client_service.data.interaction_files import write_shard
from client_service.settings import client_settings
from lpsfed import AsyncClient, Client
from shared.protocol.signing.enrolment import ensure_key_pair
pairs = pl.DataFrame({"user": ["u", "v", "v"], "item": ["a", "a", "b"], "split": ["train"] * 3})
write_shard(Path("shard"), "shop", pairs, None)
settings = client_settings(name="shop", shard="shard", state_directory="state", aggregator_url="http://127.0.0.1:9")
ensure_key_pair("shop", settings.state_directory)
with TestClient(create_app(settings), base_url="http://silo") as http:
    with Client("http://silo", transport=http._transport) as client:
        print([(one.item, one.score) for one in client.list_popular(1).items])
    print("<ol><li>a</li><li>b</li></ol>" in http.get("/").text, AsyncClient.list_popular.__name__)
"""


def test_a_route_is_answered_shown_and_in_both_python_clients(copy: Path) -> None:
    parts = re.split(r"^# (\S+): .*\n", printed("Add a route"), flags=re.M)[1:]
    assert parts[::2] == [*PLACES]
    for path, code in zip(parts[::2], parts[1::2], strict=True):
        insert(copy / path, PLACES[path], code.rstrip() + "\n\n\n")
    text = CONTRIBUTING.partition("\n## Add a route\n")[2]
    (given,) = re.findall(r"`(popular=[^`]+)`", text)
    insert(copy / "client_service/tasks/page_texts.py", ")\n\n\ndef _list_trial", f", {given}")
    (shown,) = re.findall(r"`(<ol>[^`]+)`", text)
    insert(copy / "client_service/pages/templates/silo.html", "  {{ trial(trial_shown) }}", shown)
    for command in (["requirements/make_async_client.py"], ["-c", ASKING]):
        environment = os.environ | {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
        done = subprocess.run([sys.executable, *command], cwd=copy, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert done.stdout == "[('a', 1.0)]\nTrue list_popular\n"


SUM_PARTS = {  # of the recipe's code: the imports above it
    "shared/sums/followers.py": """
import numpy as np
from shared.method.parameters import Arrays
from shared.method.settings import MethodSettings
from shared.method.tensors import Tensor
from shared.sums.sum import Sum, require_catalogue
""",
    "client_service/sums/followers.py": """
import hashlib
from dataclasses import dataclass
import numpy as np
from client_service.sums.silo_sum import SiloSum, Statistics, SummedDigests, SumRound
from client_service.data.sessions import TRAIN, SessionShard
from shared.errors import ProtocolError
from shared.method.settings import MethodSettings
from shared.sums.sum import UInt32
from shared.sums.followers import COUNTS, FOLLOWERS
""",
}
SUMMING = """
import inspect, json
from pathlib import Path
import numpy as np
from client_service.sums.storage import load_basis_head, load_basis
from client_service.sums.followers import COUNTS, count_followers
from client_service.data.sessions import SessionShard
from client_service.tasks import TASKS
from shared.errors import PrivacyError
from shared.method.settings import BasisSettings, method_settings
from simulation.experiments.experiment import Experiment
from simulation.experiments.in_process import simulate_experiment
from tests.support.visits import write_session_shards
from tests.unit.contracts import test_sums as contract

def session_shards():
    def shard(clicks):
        starts, places = np.arange(0, len(clicks) + 1, 4), np.arange(contract.ITEMS)
        ids, train = [f"{one:02}" for one in places], np.zeros(len(starts) - 1, np.int8)
        return SessionShard("shop", ids, clicks, starts, train, places)
    draws = np.random.default_rng(2)
    drawn = [draws.integers(0, contract.ITEMS, 200) for _ in range(contract.SILOS)]
    return [shard(clicks) for clicks in drawn], shard(np.concatenate(drawn))

contract.CASES["followers"], contract.SHARDS["sessions"] = {"kind": "followers", "least_pairs": 2}, session_shards
given, held = {"given": contract.Given("followers"), "tmp_path": Path("kept")}, 0
for name, test in [*vars(contract).items()]:
    if name.startswith("test_"):
        test(**{one: given[one] for one in inspect.signature(test).parameters})
        held += 1

LEAST = 2
basis = BasisSettings(kind="followers", least_pairs=LEAST)
method = method_settings("sessions", width=8, batch_size=50).model_copy(update={"basis": basis})
shards = tuple(write_session_shards(Path("shards"), 3))
for secure in (False, True):
    one = Experiment(shards, Path(f"run-{secure}"), method, "fedavg", "sessions", rounds=1, device="cpu", secure=secure)
    history = simulate_experiment(one, lambda _: None).history
    silos = [one.make_client_settings(shard, aggregator_url="http://127.0.0.1:9") for shard in shards]
    pooled = sum(count_followers(TASKS["sessions"].read(silo), one.agreed_method).astype(int) for silo in silos)
    heads = [load_basis_head(silo.state_directory / "basis") for silo in silos]
    found = [load_basis(silo.state_directory / "basis", head.digest) for silo, head in zip(silos, heads)]
    ledger = (silos[0].state_directory / "ledger.jsonl").read_text().splitlines()
    updates = [entry for entry in map(json.loads, ledger) if entry.get("call") == "update" and entry["run"] == "run-1"]
    refused = []
    for word in ("no", "noised", *(() if secure else ("secure",))):
        strict = silos[0].policy.model_copy(update={"followers": word, "common_basis": "open"})
        try:
            silos[0].model_copy(update={"policy": strict}).declaration()
        except PrivacyError as error:
            refused.append(str(error))
    print(json.dumps({
        "contract": held,
        "seen": int((pooled > 0).sum()),
        "hidden": int(((pooled > 0) & (pooled < LEAST)).sum()),
        "off": [float(np.abs(one.counts - np.where(pooled < LEAST, 0, pooled)).max()) for one in found],
        "digests": len({head.digest for head in heads}),
        "basis_of_training": history.request.basis,
        "ledger": [COUNTS in json.dumps(entry) for entry in updates],
        "declared": silos[0].declaration().sums["basis"].strategy,
        "secure": silos[0].declaration().sums["basis"].secure,
        "refused": refused,
    }))
"""

TWO_SUMS = """
import asyncio, json
from pathlib import Path
import numpy as np
from client_service.sums.followers import count_followers
from client_service.sums.storage import load_basis_head, load_basis
from client_service.tasks import TASKS
from shared.errors import PrivacyError
from shared.method.settings import method_settings
from shared.sums import method_of_part
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import execute_run
from simulation.experiments.in_process import open_federation
from tests.support.visits import write_session_shards

chosen = {"basis.kind": "transitions", "basis.least_pairs": 2}
chosen |= {"sums.followers.kind": "followers", "sums.followers.least_pairs": 3}
method = method_settings("sessions", width=8, batch_size=50, **chosen)
shards = tuple(write_session_shards(Path("shards"), 3))

async def hold(one, folders):
    async with open_federation(one) as federation:
        outcome = await execute_run(federation, one.run_request(), lambda _: None)
        runs = (await federation.operator.get("/v1/runs")).json()
        whole = [(await federation.operator.get(f"/v1/runs/{run['run']}")).json() for run in runs]
        again = await execute_run(federation, one.run_request(), lambda _: None)
        heads = {part: [load_basis_head(folder, part) for folder in folders] for part in ("basis", "followers")}
        page = (await federation.operator.get("/")).text
        asked = await federation.operator.post("/v1/runs", json={"part": "followers", "clients": 3})
    return outcome, whole, again, heads, asked.json(), page

for secure in (False, True):
    one = Experiment(shards, Path(f"two-{secure}"), method, "fedavg", "sessions", rounds=1, device="cpu", secure=secure)
    silos = [one.make_client_settings(shard, aggregator_url="http://127.0.0.1:9") for shard in shards]
    folders = [silo.state_directory / "basis" for silo in silos]
    outcome, runs, again, heads, asked, page = asyncio.run(hold(one, folders))
    counted = method_of_part(one.agreed_method, "followers")
    pooled = sum(count_followers(TASKS["sessions"].read(silo), counted).astype(int) for silo in silos)
    found = [load_basis(folder, head.digest) for folder, head in zip(folders, heads["followers"])]
    ledger = map(json.loads, (silos[0].state_directory / "ledger.jsonl").read_text().splitlines())
    updates = [entry for entry in ledger if entry.get("call") == "update"]
    sent = {entry["run"]: sorted(one["name"] for one in entry["tensors"]) for entry in updates}
    requests = [run["request"] for run in runs]
    refused = {}
    for word, other in (("followers", "transitions"), ("transitions", "followers")):
        strict = silos[0].policy.model_copy(update={word: "no", other: "open"})
        try:
            silos[0].model_copy(update={"policy": strict}).declaration()
        except PrivacyError as error:
            refused[word] = str(error)
    print(json.dumps({
        "parts": [(one.get("part", "training"), one["method"].get("basis", {}).get("kind")) for one in requests],
        "further": [one["method"].get("sums") for one in requests],
        "bytes": [sum(one["size"] for each in run["rounds"] for one in each["participants"]) for run in runs],
        "off": [float(np.abs(each.counts - np.where(pooled < 3, 0, pooled)).max()) for each in found],
        "hidden": int(((pooled > 0) & (pooled < 3)).sum()),
        "heads": {part: sorted({head.run for head in each}) for part, each in heads.items()},
        "sent": sent,
        "declared": {part: [each.strategy, each.secure] for part, each in silos[0].declaration().sums.items()},
        "refused": refused,
        "basis_of_training": outcome.history.request.basis,
        "again": again.history.run,
        "asked": asked["request"]["method"]["basis"]["kind"],
        "page": "sums followers" in page,
    }))
"""


def follow_sum(copy: Path) -> None:
    parts = re.split(r"^# (\S+): .*\n", printed("Add a sum"), flags=re.M)[1:]
    assert parts[::2] == [*SUM_PARTS]
    for path, code in zip(parts[::2], parts[1::2], strict=True):
        (copy / path).write_text(f"from __future__ import annotations\n{SUM_PARTS[path]}\n\n{code}", encoding="utf-8")
    (field,) = re.findall(r"`(followers: SumConsent[^`]+)`", CONTRIBUTING)
    insert(copy / "client_service/boundary/policy.py", "    basis_changes: int", f"    {field}\n")
    opening = '"off", "items", "content", "exact", "iterated", "transitions"'
    add_to_registry(copy / "shared/method/settings.py", opening, ', "followers"')
    sums, silos = copy / "shared/sums/__init__.py", copy / "client_service/sums/registry.py"
    insert(sums, "from shared.sums.item_basis import", "from shared.sums.followers import FOLLOWERS\n")
    add_to_registry(sums, "for one in (COMMON_ITEMS, CONTENT_SUM, EXACT, ITERATED, TRANSITIONS", ", FOLLOWERS")
    insert(silos, "from shared.errors", "from client_service.sums.followers import FOLLOWERS_SUM\n")
    add_to_registry(silos, "        TRANSITIONS_SUM,", "\n        FOLLOWERS_SUM,")


def test_a_second_sum_is_declared_gated_masked_recorded_and_kept(copy: Path) -> None:
    follow_sum(copy)
    environment = os.environ | {"PYTHONPATH": f"{copy}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", SUMMING], cwd=copy, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    for secure, line in zip((False, True), done.stdout.splitlines(), strict=True):
        found = json.loads(line)
        assert found["contract"] >= 11
        assert found["seen"] > found["hidden"] > 0  # rare counts are there, and handed out as none
        assert found["off"] == [0.0] * 3 and found["digests"] == 1  # the federated sum is that of the pooled visits
        assert found["basis_of_training"] == "run-1" and found["ledger"] == [True]
        assert (found["declared"], found["secure"]) == ("followers", secure)
        assert all("policy: expected followers = " in words for words in found["refused"]) and found["refused"]


def test_two_sums_of_one_federation_are_each_declared_gated_masked_hidden_recorded_and_refused(copy: Path) -> None:
    follow_sum(copy)
    file = copy / "shared/sums/followers.py"
    file.write_text(
        file.read_text("utf-8").replace('name="followers",', 'name="followers", part="followers",'), "utf-8"
    )
    environment = os.environ | {"PYTHONPATH": f"{copy}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", TWO_SUMS], cwd=copy, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    for secure, line in zip((False, True), done.stdout.splitlines(), strict=True):
        found = json.loads(line)
        training = ["training", "transitions"]
        assert found["parts"] == [["basis", "transitions"], ["followers", "followers"], training]
        assert found["further"] == [None] * 3  # a run has one sum, which its document says whole
        assert all(found["bytes"])
        assert found["off"] == [0.0] * 3 and found["hidden"] > 0
        assert found["heads"] == {"basis": ["run-1"], "followers": ["run-2"]}
        assert found["sent"]["run-2"] == ["followers.counts"]
        assert found["sent"]["run-1"] == ["transitions.counts", "transitions.visits"]
        declared = {"basis": ["transitions", secure], "followers": ["followers", secure]}
        assert found["declared"] == declared
        for word in ("followers", "transitions"):
            assert f"policy: expected {word} = " in found["refused"][word]
        assert found["basis_of_training"] == "run-1"
        assert found["again"] == "run-4"  # what has finished alike is not summed again
        assert found["asked"] == "followers" and found["page"]
