"""The models of a silo's last runs are kept, and an earlier one can answer again."""

from __future__ import annotations

from pathlib import Path

import httpx
import numpy as np
import pytest
import torch

from client_service.compiled.publication import parse_version
from client_service.federation.best_model import load_model
from client_service.model_store.model_files import (
    ModelHead,
    load_head,
    load_rows,
    name_version,
    rows_path,
    save_rows,
)
from client_service.model_store.model_versions import (
    choose_version,
    find_run_number,
    find_version_of_run,
    load_versions,
    next_number,
    save_version,
)
from client_service.models.parameter_transfer import ShardRows
from client_service.settings import ClientSettings
from client_service.tasks.items import ITEMS
from shared.errors import DataError
from tests.support.given import Opened, Until
from tests.support.kept import keep_first_model
from tests.support.questions import read

ROWS = ShardRows(("u",), ("i",), prints=np.zeros(1, dtype=np.int64))


def head_of(run: str, number: int, shard: str, settings: ClientSettings) -> ModelHead:
    return ModelHead(shard=shard, run=run, round=number, method=settings.method, start=None, values={})


@pytest.fixture
def kept(settings: ClientSettings) -> tuple[Path, ModelHead]:
    """The folder of a silo with the models of two runs."""
    folder = settings.state_directory / "model"
    for run in ("run-1", "run-2"):
        keep_first_model(settings, run)
    head = load_head(folder)
    assert head is not None
    return folder, head


def versions(folder: Path) -> list[str]:
    return [head.version for head in load_versions(folder)]


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*") if path.name.startswith(("model-", "earlier-", "rows-"))}


def test_a_run_has_one_model_and_so_many_runs_and_refreshes_have_theirs(
    settings: ClientSettings, kept: tuple[Path, ModelHead]
) -> None:
    folder, head = kept
    model = load_model(ITEMS, keep_first_model(settings, "run-3")[0], folder, torch.device("cpu"))
    assert model is not None and versions(folder) == ["run-3.0", "run-2.0", "run-1.0"]

    def keep(run: str, number: int, shard: str, most: int) -> None:
        save_version(folder, model.model, head_of(run, number, shard, settings), ROWS, most)

    keep("run-3", 4, head.shard, 3)
    assert versions(folder) == ["run-3.4", "run-2.0", "run-1.0"]
    keep("run-4", 1, head.shard, 3)
    assert versions(folder) == ["run-4.1", "run-3.4", "run-2.0"]
    assert files(folder) == {
        *(f"model-{version}.safetensors" for version in ("run-4.1", "run-3.4", "run-2.0")),
        *(f"earlier-{version}.json" for version in ("run-3.4", "run-2.0")),
        rows_path(folder, head.shard).name,
    }
    later = ["e" * 64, "f" * 64]
    for number, shard in enumerate(later, 1):
        keep("refresh", number, shard, 3)
    assert versions(folder) == ["refresh.2", "refresh.1", "run-4.1"]
    assert {path.name for path in folder.glob("rows-*")} == {
        rows_path(folder, one).name for one in (*later, head.shard)
    }
    keep("run-5", 1, later[1], 1)
    assert versions(folder) == ["run-5.1"]
    assert files(folder) == {"model-run-5.1.safetensors", rows_path(folder, later[1]).name}


def test_numbers_are_given_once_and_a_run_bears_one_after_another_got_it(tmp_path: Path) -> None:
    assert find_run_number(tmp_path, "run-1") == 0
    assert next_number(tmp_path) == 1
    assert find_run_number(tmp_path, "run-1") == find_run_number(tmp_path, "run-1") == 1
    assert find_run_number(tmp_path, "run-2") == 0
    assert [next_number(tmp_path), next_number(tmp_path)] == [2, 3]
    assert find_run_number(tmp_path, "run-2") == 3 and find_run_number(tmp_path, "run-3") == 0
    names = [name_version("run-2", 7), name_version("run-2", 7, 3)]
    assert names == ["run-2.7", "run-2.7~3"] and [parse_version(one) for one in names] == [("run-2", 7)] * 2


def test_ids_of_rows_are_kept_once_and_a_damaged_file_is_named(tmp_path: Path) -> None:
    rows = ShardRows(("a", "b"), ("x", "y", "z"), "digest", np.array([3, -4]))
    for again in (rows, ShardRows((), ("other",))):
        save_rows(tmp_path, "f" * 64, again)
    found = load_rows(tmp_path, "f" * 64)
    assert found is not None and [*found.users] == ["a", "b"] and [*found.items] == ["x", "y", "z"]
    assert (found.catalogue, found.prints.tolist()) == ("digest", [3, -4]) and load_rows(tmp_path, "e" * 64) is None
    save_rows(tmp_path, "e" * 64, ShardRows((), ("x",)))
    found = load_rows(tmp_path, "e" * 64)
    assert found is not None and not found.users and found.catalogue == ""
    rows_path(tmp_path, "f" * 64).write_bytes(b"PAR1 damaged")
    with pytest.raises(DataError, match="expected the rows of a kept model's shard"):
        load_rows(tmp_path, "f" * 64)


def test_an_earlier_one_is_chosen_and_the_other_stays(settings: ClientSettings, kept: tuple[Path, ModelHead]) -> None:
    folder, _ = kept
    earlier = find_version_of_run(folder, "run-1")
    assert earlier is not None
    choose_version(folder, earlier)
    assert versions(folder) == ["run-1.0", "run-2.0"] and load_head(folder) == earlier
    newest = find_version_of_run(folder, "run-2")
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
