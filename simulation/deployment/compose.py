"""docker-compose.yml for a number of silos, and two files that extend it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulation.deployment.files import BasisKind

MAIN = "docker-compose.yml"
ADDED = (".gpu.yml", ".start-interval.yml")  # ends of the names of the files that may be added to it
MOST_SILOS = 32  # clients on one machine
POOL_SILOS = (
    8  # silos for whose networks an engine's own address pools have room: three for each and four for all, of thirty
)
CLOSED_NETWORKS, PORT_NETWORKS = ("link", "door"), ("loopback",)  # networks of each silo
USER = "user-00006"  # a customer of the first shop of the generated chain, whatever the number of shops


@dataclass(frozen=True)
class ComposeNetwork:
    """Network of the Compose file.

    kind: its anchor in the template. subnet: None leaves the choice to the engine.
    """

    name: str
    kind: str
    subnet: IPv4Network | None = None


def compose_files(
    silos: int, out: Path = Path(MAIN), basis: BasisKind = "exact", subnets: str | None = None
) -> dict[Path, str]:
    """Renders the main file `out` and the two beside it, and returns their texts.

    basis: the common basis by default; fewer than three silos have none, because nothing can be masked between them.
    subnets: a range of addresses for all networks; by default one is stated for more than eight silos, and for fewer
    the engine chooses. Raises SettingsError for a number of silos that is out of range.
    """
    from shared.protocol.secure.messages import FEWEST_CLIENTS
    from simulation.deployment.files import DEFAULT_SUBNETS, render_template, require_silos
    from simulation.partitioning.sources import number_silos

    numbers = number_silos(require_silos(silos, MOST_SILOS, "on one machine"))
    within = subnets or (DEFAULT_SUBNETS if silos > POOL_SILOS else None)

    def join_numbered(prefix: str, separator: str) -> str:
        return separator.join(f"{prefix}{number}" for number in numbers)

    summed = "off" if silos < FEWEST_CLIENTS else basis
    known = {"silos": silos, "numbers": numbers, "series": join_numbered, "user": USER, "most": MOST_SILOS}
    known |= {"basis": summed, "secure": "false" if summed == "off" else "true"}
    known |= {"networks": compose_networks(numbers, within), "subnets": within}
    texts = [render_template(template.name, known) for template in _compose_paths(Path(MAIN))]
    return dict(zip(_compose_paths(out), texts, strict=True))


def compose_networks(numbers: Sequence[str], within: str | None) -> tuple[ComposeNetwork, ...]:
    """Lists every network: four for all silos, three for each.

    Raises SettingsError for a range of addresses that is too small.
    """
    from simulation.deployment.files import assign_subnets

    kinds = {"door": "closed", "watch": "closed", "loopback": "loopback", "loopback-grafana": "loopback"}
    kinds |= {f"{name}-{number}": "closed" for number in numbers for name in CLOSED_NETWORKS}
    kinds |= {f"{name}-{number}": "loopback" for number in numbers for name in PORT_NETWORKS}
    stated = {} if within is None else assign_subnets(kinds, within)
    return tuple(ComposeNetwork(name, kind, stated.get(name)) for name, kind in kinds.items())


def write_compose(silos: int, out: Path, basis: BasisKind = "exact", subnets: str | None = None) -> tuple[Path, ...]:
    """Writes `out` and the two files beside it, and returns their paths."""
    from simulation.deployment.files import write_files

    return write_files(compose_files(silos, out, basis, subnets))


def _compose_paths(main: Path) -> tuple[Path, ...]:
    return (main, *(main.with_suffix(end) for end in ADDED))
