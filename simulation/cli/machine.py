"""Commands that prepare a machine: doctor, secret, certificates."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from shared.files import create_secret
from shared.web.address import require_port
from simulation.cli import options
from simulation.reports.terminal import ERR, OUT, word_table


@options.spread_records
def doctor(
    shard: Annotated[Path | None, typer.Option(help="Shard to read")] = None,
    settings: Annotated[
        Path | None, typer.Option("--settings", "--silo", help="TOML file of a client's settings, as silo.toml")
    ] = None,
    folder: Annotated[Path, typer.Option(help="Folder for state, whose free space is checked")] = Path(),
    ports: Annotated[
        list[int] | None, typer.Option("--port", help="Port that must be free; repeatable (default: 8800 and 8801)")
    ] = None,
    aggregator_url: Annotated[str | None, typer.Option(help="URL of an aggregator that must answer")] = None,
    *,
    call: options.CallFlags,
    as_json: options.AsJson = False,
) -> None:
    """Checks Python, packages, device, disk, ports, shard, settings, certificates and the aggregator."""
    from simulation.operating.doctor import check_aggregator, check_machine

    wanted = tuple(require_port("--port", port) for port in ports or (8800, 8801))
    checks = check_machine(shard=shard, folder=folder, ports=wanted, settings=settings)
    if aggregator_url is not None:
        checks.append(check_aggregator(aggregator_url, call.make_tls(), settings))
    if as_json:
        options.print_json([vars(check) for check in checks])
    else:
        table = word_table("check", "", "found", whole=("check", ""))
        for check in checks:
            table.add_row(check.name, Text("good", "green") if check.good else Text("bad", "red"), check.found)
        OUT.print(table)
    if not all(check.good for check in checks):
        raise typer.Exit(1)


def secret(paths: Annotated[list[Path], typer.Argument(help="Files to make, readable by their owner alone")]) -> None:
    """Makes random 256-bit secrets. An existing file is kept."""
    for path in paths:
        ERR.print(f"{path}: {'made' if create_secret(path) else 'kept, it exists already'}", soft_wrap=True)


def certificates(
    folder: Annotated[Path, typer.Argument(help="Folder for the files; existing ones are not overwritten")],
    names: Annotated[
        list[str] | None, typer.Option("--name", help="Host name or address of the services; repeatable")
    ] = None,
    clients: options.Clients = 4,
) -> None:
    """Makes a development authority, and certificates for aggregator, clients and operator. Not for production."""
    from simulation.deployment.certificates import AUTHORITY, DAYS, development_files, write_files

    services = ("aggregator", *(f"client-{number}" for number in range(1, clients + 1)), "operator")
    write_files(folder, development_files(services, names or ()))
    ERR.print(
        f"{folder}: made {AUTHORITY}.crt and a certificate with its key for {', '.join(services)}", soft_wrap=True
    )
    ERR.print(f"For development only: {AUTHORITY}.key can impersonate each of them. They expire in {DAYS} days.")
