"""`lpsfed kubernetes`: the silos of the demo, each written after silo-1."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from shared.errors import SettingsError
from simulation.cli import app
from simulation.deployment.kubernetes import MOST_SILOS, kubernetes_files, write_kubernetes
from tests.support.questions import LONGEST_SECONDS

K8S = Path(__file__).parents[3] / "k8s"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of k8s/ that a test may change."""
    return Path(shutil.copytree(K8S, tmp_path / "k8s"))


def texts(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_the_folders_that_are_checked_in_are_what_the_command_writes_for_four_silos(folder: Path) -> None:
    before = texts(folder)
    for silo in (2, 3, 4):
        shutil.rmtree(folder / "overlays" / "demo" / f"silo-{silo}")
    written = write_kubernetes(folder, 4)
    assert texts(folder) == before and len(written) == 13


@pytest.mark.parametrize("silos", [1, 2, 6, MOST_SILOS])
def test_all_that_names_the_silos_follows_and_four_silos_come_back(silos: int, folder: Path) -> None:
    before = texts(folder)
    write_kubernetes(folder, silos)
    for overlay in ("demo", "tls"):
        names = {path.name for path in (folder / "overlays" / overlay).glob("silo-*")}
        listed = yaml.safe_load((folder / "overlays" / overlay / "kustomization.yaml").read_text())["resources"]
        assert listed == ["aggregator", *sorted(names)] and len(names) == silos
    counts = re.findall(r"--clients[= ](\d+)", "\n".join(texts(folder).values()))
    assert counts == [str(silos)] * 2
    write_kubernetes(folder, 4)
    assert texts(folder) == before


@pytest.mark.parametrize("overlay", ["demo", "no-dns", "tls", "secure", "common-basis"])
def test_six_silos_render_each_in_its_namespace_under_its_name(overlay: str, folder: Path) -> None:
    write_kubernetes(folder, 6)
    documents = rendered(folder / "overlays" / overlay)
    names = {
        one["metadata"]["namespace"]: one["data"]["LPSFED_CLIENT_NAME"]
        for one in documents
        if one["kind"] == "ConfigMap" and one["metadata"]["namespace"] != "lpsfed-aggregator"
    }
    assert names == {f"lpsfed-silo-{number}": f"client-{number}" for number in range(1, 7)}
    assert len([one for one in documents if one["kind"] == "StatefulSet"]) == 7
    (job,) = (one for one in documents if one["kind"] == "Job")
    assert "--clients=6" in job["spec"]["template"]["spec"]["containers"][0]["args"]


@pytest.mark.parametrize("kind", ["exact", "iterated"])
def test_both_sides_and_the_job_have_the_same_kind_of_common_basis(kind: str, folder: Path) -> None:
    done = CliRunner().invoke(app, ["kubernetes", "--folder", str(folder), "--silos", "6", "--common-basis", kind])
    assert done.exit_code == 0, done.output
    documents = rendered(folder / "overlays" / "common-basis")
    given = [one["data"] for one in documents if one["kind"] == "ConfigMap"]
    said = [value for one in given for name, value in one.items() if name.endswith("METHOD__BASIS__KIND")]
    assert said == [kind] * 7
    (job,) = (one for one in documents if one["kind"] == "Job")
    assert f"--common-basis={kind}" in job["spec"]["template"]["spec"]["containers"][0]["args"]


def test_the_overlay_with_a_common_basis_cannot_be_written_without_one(folder: Path) -> None:
    with pytest.raises(SettingsError, match="expected exact or iterated, got off"):
        write_kubernetes(folder, 4, "off")


def test_the_aggregator_is_told_the_length_of_the_list_that_each_silo_makes(tmp_path: Path, folder: Path) -> None:
    """By the commands of its init container, for a number of silos at which not every item is sold."""
    cut = CliRunner().invoke(app, ["partition", "chain", "--clients", "5", "--out", str(tmp_path / "shards")])
    shards = [str(path) for path in sorted((tmp_path / "shards").glob("client-*"))]
    listed = CliRunner().invoke(app, ["catalogue", *shards, "--out", str(tmp_path / "catalogue.txt")])
    assert (cut.exit_code, listed.exit_code) == (0, 0), cut.output + listed.output
    items = len((tmp_path / "catalogue.txt").read_text(encoding="utf-8").splitlines())
    write_kubernetes(folder, 5)
    text = (folder / "components" / "common-basis" / "kustomization.yaml").read_text(encoding="utf-8")
    assert items == 798 and f'value: "{items}"' in text


def rendered(folder: Path) -> list[dict[str, Any]]:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed: the manifests are not rendered")
    done = subprocess.run(
        [kubectl, "kustomize", folder], capture_output=True, text=True, timeout=LONGEST_SECONDS, check=True
    )
    return list(yaml.safe_load_all(done.stdout))


@pytest.mark.parametrize("silos", [0, MOST_SILOS + 1])
def test_a_number_that_is_out_of_range_is_refused(silos: int) -> None:
    with pytest.raises(SettingsError, match=f"--silos: expected 1 to {MOST_SILOS}, .*, got {silos}"):
        kubernetes_files(K8S, silos)


def test_what_somebody_has_added_to_a_silo_stays(folder: Path) -> None:
    own = folder / "overlays" / "demo" / "silo-4" / "own.yaml"
    own.write_text("a: 1\n")
    with pytest.raises(SettingsError, match=r"silo-4: expected no file but kustomization\.yaml, got others"):
        write_kubernetes(folder, 3)
    assert own.is_file()


def test_a_folder_that_is_not_the_project_s_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["kubernetes", "--folder", str(tmp_path)])
    assert isinstance(done.exception, SettingsError) and "expected the project's k8s/" in str(done.exception)
    assert list(tmp_path.iterdir()) == []
