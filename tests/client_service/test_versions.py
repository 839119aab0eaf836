"""The models of a silo's last runs are kept, and an earlier one can answer again."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
import torch

from client_service.best_model import kept_model
from client_service.serving.checkpoint import ModelHead, read_head
from client_service.serving.versions import choose_version, keep_version, kept_of_run, kept_versions
from client_service.settings import ClientSettings
from client_service.tasks.items import ITEMS
from tests.support.given import Opened, Until
from tests.support.kept import keep_first_model
from tests.support.questions import read


def head_of(run: str, number: int, shard: str, settings: ClientSettings) -> ModelHead:
    return ModelHead(shard=shard, run=run, round=number, method=settings.method, start=None, values={})


@pytest.fixture
def kept(settings: ClientSettings) -> tuple[Path, ModelHead]:
    """The folder of a silo with the models of two runs."""
    folder = settings.state_directory / "model"
    for run in ("run-1", "run-2"):
        keep_first_model(settings, run)
    head = read_head(folder)
    assert head is not None
    return folder, head


def versions(folder: Path) -> list[str]:
    return [head.version for head in kept_versions(folder)]


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*") if path.name.startswith(("model-", "earlier-"))}


def test_a_run_has_one_model_and_so_many_runs_have_theirs(
    settings: ClientSettings, kept: tuple[Path, ModelHead]
) -> None:
    folder, head = kept
    model = kept_model(ITEMS, keep_first_model(settings, "run-3")[0], folder, torch.device("cpu"))
    assert model is not None and versions(folder) == ["run-3.0", "run-2.0", "run-1.0"]
    keep_version(folder, model.model, head_of("run-3", 4, head.shard, settings), 3)
    assert versions(folder) == ["run-3.4", "run-2.0", "run-1.0"]
    keep_version(folder, model.model, head_of("run-4", 1, head.shard, settings), 3)
    assert versions(folder) == ["run-4.1", "run-3.4", "run-2.0"]
    assert files(folder) == {
        *(f"model-{version}.safetensors" for version in ("run-4.1", "run-3.4", "run-2.0")),
        *(f"earlier-{version}.json" for version in ("run-3.4", "run-2.0")),
    }
    keep_version(folder, model.model, head_of("run-5", 1, head.shard, settings), 1)
    assert versions(folder) == ["run-5.1"] and files(folder) == {"model-run-5.1.safetensors"}
    keep_version(folder, model.model, head_of("refresh", 1, "f" * 64, settings), 3)
    assert versions(folder) == ["refresh.1"]  # of a shard that is no more, none is of any use


def test_an_earlier_one_is_chosen_and_the_other_stays(settings: ClientSettings, kept: tuple[Path, ModelHead]) -> None:
    folder, _ = kept
    earlier = kept_of_run(folder, "run-1")
    assert earlier is not None
    choose_version(folder, earlier)
    assert versions(folder) == ["run-1.0", "run-2.0"] and read_head(folder) == earlier
    newest = kept_of_run(folder, "run-2")
    assert newest is not None
    choose_version(folder, newest)
    assert versions(folder) == ["run-2.0", "run-1.0"]
    (folder / "earlier-run-1.0.json").write_text("{")  # what cannot be read is no model
    assert versions(folder) == ["run-2.0"]
    del settings


@pytest.mark.anyio
async def test_the_operator_rolls_back_and_a_restart_goes_on_with_that(
    settings: ClientSettings, kept: tuple[Path, ModelHead], opened: Opened, until: Until
) -> None:
    folder, _ = kept

    async def serves(http: httpx.AsyncClient, version: str) -> bool:
        return bool((await read(http, "status")).get("model") == version)

    async with opened(settings) as http:
        await until(lambda: serves(http, "run-2.0"))
        listed = (await read(http, "models"))["models"]
        assert [(one["version"], one["served"]) for one in listed] == [("run-2.0", True), ("run-1.0", False)]
        assert listed[0]["values"].keys() == {"recall", "ndcg"}
        assert (await http.post("/v1/models/run-9.9/serve")).status_code == 404
        (folder / "model-run-1.0.safetensors").rename(folder / "aside")
        assert (await http.post("/v1/models/run-1.0/serve")).status_code == 409
        assert await serves(http, "run-2.0")
        (folder / "aside").rename(folder / "model-run-1.0.safetensors")
        answer = await http.post("/v1/models/run-1.0/serve")
        assert [one["version"] for one in answer.json()["models"]] == ["run-1.0", "run-2.0"]
        assert await serves(http, "run-1.0")
    async with opened(settings) as http:
        await until(lambda: serves(http, "run-1.0"))
