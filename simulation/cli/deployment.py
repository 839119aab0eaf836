"""`lpsfed compose`, `lpsfed kubernetes`: write what describes a deployment for a number of silos."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from shared.words import count_noun
from simulation.cli import options
from simulation.console import ERR
from simulation.deployment import kubernetes as demo
from simulation.deployment.compose import IN_POOLS, MAIN, MOST_SILOS, write_compose
from simulation.deployment.subnets import USUAL


def compose(
    silos: Annotated[int, typer.Option(help=f"1 to {MOST_SILOS}")] = 4,
    out: Annotated[Path, typer.Option(help="in the repository's root: its paths are relative to where it lies")] = Path(
        MAIN
    ),
    common_basis: options.CommonBasis = options.BasisKind.exact,
    subnets: Annotated[
        str | None,
        typer.Option(help=f"range of addresses for all networks; by default of more than {IN_POOLS} silos {USUAL}"),
    ] = None,
) -> None:
    """Write docker-compose.yml for a number of silos, and beside it the two files that can be added to it.

    All that `docker compose up` starts follows from the number. Secure aggregation, and with it the common basis, needs
    three silos or more.
    """
    _print_paths(write_compose(silos, out, common_basis.value, subnets), silos)


def kubernetes(
    silos: Annotated[int, typer.Option(help=f"1 to {demo.MOST_SILOS}")] = 4,
    folder: Annotated[Path, typer.Option(help="the project's k8s/")] = Path("k8s"),
    common_basis: options.CommonBasis = options.BasisKind.exact,
) -> None:
    """Write the silos of the Kubernetes demo, each after the folder of silo-1, and remove those beyond the number.

    The overlays demo, no-dns, tls, secure and common-basis then have so many silos; the last one has a basis of
    that kind. The commands of docs/kubernetes.md name four.
    """
    _print_paths(demo.write_kubernetes(folder, silos, common_basis.value), silos)


def _print_paths(paths: Sequence[Path], silos: int) -> None:
    for path in paths:
        ERR.print(f"{path}: written for {count_noun(silos, 'silo')}", highlight=False, soft_wrap=True)
