"""`lpsfed compose` and `lpsfed kubernetes`: write deployment files."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from shared.errors import SettingsError
from shared.words import count_noun
from simulation.cli import options
from simulation.deployment import kubernetes as demo
from simulation.deployment.compose import MAIN, MOST_SILOS, POOL_SILOS
from simulation.deployment.compose_silo import TEMPLATE
from simulation.deployment.files import DEFAULT_SUBNETS
from simulation.reports.terminal import ERR


class Role(StrEnum):
    """Values of `--role`: whose deployment is written."""

    demo = "demo"
    silo = "silo"


RoleChoice = Annotated[
    Role, typer.Option(help="demo: a federation on one machine; silo: one silo of a distant aggregator")
]
InvitationFile = Annotated[
    Path | None, typer.Option("--invitation", help="NAME.invite from the operator, for --role silo")
]


def compose(
    silos: Annotated[int, typer.Option(help=f"Number of silos of the demo, 1 to {MOST_SILOS}")] = 4,
    out: Annotated[
        Path | None,
        typer.Option(help=f"File to write, in the repository's root (default: {MAIN}; for a silo {TEMPLATE})"),
    ] = None,
    common_basis: options.CommonBasis = options.ItemBasisKind.exact,
    subnets: Annotated[
        str | None,
        typer.Option(
            help=f"Range of addresses for all networks (default: {DEFAULT_SUBNETS} for more than {POOL_SILOS} silos)"
        ),
    ] = None,
    role: RoleChoice = Role.demo,
    invitation: InvitationFile = None,
    data: Annotated[Path | None, typer.Option(help="The silo's own interactions")] = None,
    folder: Annotated[
        Path | None, typer.Option(help="The silo's folder of keys, shard and state (default: its name)")
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of this machine on which the silo answers")] = 8801,
    min_rating: Annotated[
        float | None, typer.Option(help="Smallest rating that is positive, as in `lpsfed join`")
    ] = None,
    catalogue: Annotated[Path | None, typer.Option(help="List of items that all silos share, if there is one")] = None,
    policy: Annotated[
        list[str] | None, typer.Option("--policy", help="What the silo allows, as in `lpsfed join`; repeatable")
    ] = None,
    allow_http: options.AllowHttp = False,
) -> None:
    """Writes docker-compose.yml for a number of silos, and two files that extend it.

    Secure aggregation, and with it the common basis, needs three silos or more. With --role silo it writes the file
    of one silo whose aggregator is elsewhere: `docker compose up` then joins and serves.
    """
    from shared.protocol.signing.invitation import read_invitation
    from simulation.deployment.compose import write_compose
    from simulation.deployment.compose_silo import SUBNET, SiloCompose, choose_owner, write_compose_silo
    from simulation.joining.silo_toml import parse_policy

    if role is Role.demo:
        return _print_paths(write_compose(silos, out or Path(MAIN), common_basis.value, subnets), silos)
    parsed = read_invitation(_require_given(invitation, "--invitation", "the operator's invitation"))
    own = _require_given(data, "--data", "the silo's own interactions")
    parse_policy(options.parse_pairs(policy or [], "--policy"))
    agreed = (tuple(policy or ()), allow_http, subnets or SUBNET, catalogue)
    silo = SiloCompose(folder or Path(parsed.name), own, choose_owner(), port, min_rating, *agreed)
    path = write_compose_silo(silo, parsed, out or Path(TEMPLATE))
    ERR.print(f"{path}: docker compose -f {path} up --build --wait", soft_wrap=True)
    ERR.print(f"http://127.0.0.1:{port} answers then; keys: {silo.folder}", soft_wrap=True)


def _require_given(value: Path | None, flag: str, what: str) -> Path:
    if value is None:
        raise SettingsError(f"{flag}: expected {what} with --role silo, got none")
    return value


def kubernetes(
    silos: Annotated[int, typer.Option(help=f"Number of silos of the demo, 1 to {demo.MOST_SILOS}")] = 4,
    folder: Annotated[Path, typer.Option(help="The project's folder k8s/")] = Path("k8s"),
    common_basis: options.CommonBasis = options.ItemBasisKind.exact,
    role: RoleChoice = Role.demo,
    silo: Annotated[
        Path | None, typer.Option(help="Folder of a silo that has joined by `lpsfed join`, for --role silo")
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="IP address of the aggregator, the only one that the silo can reach")
    ] = None,
    image: Annotated[str | None, typer.Option(help="Image of the client, as the cluster's nodes pull it")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the silo's manifests (default: SILO/kubernetes)")] = None,
) -> None:
    """Writes the Kubernetes manifests of the demo's silos, or of one silo that has joined.

    It copies the folder of silo-1 for each further silo, and removes the folders of silos beyond the number. All
    overlays (demo, no-dns, tls, secure, common-basis) get this number of silos; --common-basis sets the basis of the
    overlay common-basis. The commands in docs/kubernetes.md are for four silos. With --role silo it writes the
    manifests of one silo, with its keys, for its own cluster.
    """
    from client_service.settings import client_settings
    from simulation.deployment.kubernetes_silo import SiloCluster, write_kubernetes_silo
    from simulation.joining.join import SETTINGS

    if role is Role.demo:
        return _print_paths(demo.write_kubernetes(folder, silos, common_basis.value), silos)
    own = _require_given(silo, "--silo", "the folder of a silo that has joined")
    if address is None:
        raise SettingsError("--address: expected the aggregator's IP address with --role silo, got none")
    script = write_kubernetes_silo(
        client_settings(own / SETTINGS), SiloCluster(folder, address, image), out or own / "kubernetes"
    )
    ERR.print(f"sh {script}", soft_wrap=True)


def _print_paths(paths: Sequence[Path], silos: int) -> None:
    for path in paths:
        ERR.print(f"{path}: written for {count_noun(silos, 'silo')}", soft_wrap=True)
