"""Kubernetes demo for a number of silos. The folders of silo-1 are the template."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from shared.errors import SettingsError

if TYPE_CHECKING:
    from simulation.deployment.files import BasisKind

MOST_SILOS = 9  # the tenth client of a partition is called client-10, and then the first one client-01
OVERLAYS = ("overlays/demo", "overlays/tls")  # each with a folder for each silo
FILE = "kustomization.yaml"
FIRST_SILO = re.compile(r"(?<=silo-)1\b|(?<=client-)1\b")
LISTED_SILOS = re.compile(r"(?:  - silo-\d\n)+")
# Files that say how many silos there are, and where in them.
COUNTS = {
    "components/operator/job.yaml": re.compile(r"(?<=--clients=)\d"),
    "components/synthetic-shard/shard.yaml": re.compile(r"(?<=--clients )\d"),
}
BASIS = "components/common-basis/kustomization.yaml"
BASIS_KINDS = re.compile(r"\b(?:exact|iterated)$", re.MULTILINE)
CATALOGUE = re.compile(r'(?<=value: ")\d+(?=")')


def kubernetes_files(folder: Path, silos: int, basis: BasisKind = "exact") -> dict[Path, str]:
    """Renders every file below `folder` (k8s/) that depends on silos or basis."""
    from simulation.deployment.files import require_silos

    numbers = range(1, require_silos(silos, MOST_SILOS, "whose names have one digit") + 1)
    listed = "".join(f"  - silo-{number}\n" for number in numbers)
    texts: dict[Path, str] = {}
    for overlay in (folder / name for name in OVERLAYS):
        texts[overlay / FILE] = LISTED_SILOS.sub(listed, _read_manifest(overlay / FILE))
        first = _read_manifest(overlay / "silo-1" / FILE)
        texts |= {overlay / f"silo-{number}" / FILE: FIRST_SILO.sub(str(number), first) for number in numbers}
    if basis == "off":
        raise SettingsError("--common-basis: expected exact or iterated, got off: the other overlays have no basis")
    summed = BASIS_KINDS.sub(basis, _read_manifest(folder / BASIS))
    texts[folder / BASIS] = CATALOGUE.sub(str(count_items(silos)), summed)
    return texts | {
        folder / name: count.sub(str(silos), _read_manifest(folder / name)) for name, count in COUNTS.items()
    }


def count_items(silos: int) -> int:
    """Counts the items that the shops of the generated chain have sold.

    They are the items of the list that each silo makes.
    """
    from simulation.datasets.chain import generate_chain
    from simulation.partitioning.partition import partition_shops

    chain = generate_chain(0, silos)
    parts = partition_shops(chain.dataset, chain.shops).parts
    return len({item for part in parts for item in part.items})


def write_kubernetes(folder: Path, silos: int, basis: BasisKind = "exact") -> tuple[Path, ...]:
    """Writes the files, removes folders of silos beyond the number, and returns the paths."""
    from simulation.deployment.files import write_files

    paths = write_files(kubernetes_files(folder, silos, basis))
    for overlay in OVERLAYS:
        for silo in (folder / overlay).glob("silo-*"):
            if int(silo.name.removeprefix("silo-")) > silos:
                _remove_silo(silo)
    return paths


def _read_manifest(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"--folder: expected the project's k8s/, got no {path} ({error.strerror})") from None


def _remove_silo(silo: Path) -> None:
    """Removes a silo's folder. Files that a user has added stay, and are an error."""
    try:
        (silo / FILE).unlink(missing_ok=True)
        silo.rmdir()
    except OSError as error:
        raise SettingsError(f"{silo}: expected no file but {FILE}, got others ({error.strerror})") from None
