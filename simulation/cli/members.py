"""`lpsfed members`: the file of a federation's public keys that its operators exchange and each silo pins."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shared.errors import ConflictError
from shared.protocol.signing.enrolment import registered_files
from shared.protocol.signing.keys import fingerprint
from shared.protocol.signing.registry import Registry, read_registry, write_registry
from simulation.cli.options import AsJson, print_json
from simulation.console import OUT, word_table

MembersFile = Annotated[Path, typer.Argument(help="the file of members")]

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="The members of a federation, as each silo pins them."
)


@app.command()
def write(
    file: MembersFile,
    keys: Annotated[Path, typer.Option(help="folder of the clients' public keys, <name>.pub each")],
    aggregator: Annotated[Path, typer.Option(help="the aggregator's public key: aggregator.pub with its state")],
    replace: Annotated[bool, typer.Option("--replace", help="take the place of a file that is there")] = False,
    as_json: AsJson = False,
) -> None:
    """Write the file of these keys. Compare its fingerprint with the other operators before anybody uses it."""
    if file.exists() and not replace:
        raise ConflictError(f"{file}: expected no file there, got one; nothing was changed (--replace)")
    write_registry(file, aggregator, registered_files(keys))
    _print_members(file, read_registry(file), as_json=as_json)


@app.command()
def show(file: MembersFile, as_json: AsJson = False) -> None:
    """Show whose keys a file holds, and the fingerprint by which two silos see whether theirs is the same."""
    _print_members(file, read_registry(file), as_json=as_json)


def _print_members(file: Path, registry: Registry, *, as_json: bool) -> None:
    marks = {name: fingerprint(key) for name, key in sorted(registry.clients.items())}
    own = fingerprint(registry.aggregator)
    if as_json:
        return print_json({"fingerprint": registry.fingerprint(), "aggregator": own, "clients": marks})
    table = word_table("member", "fingerprint of its key", whole=("fingerprint of its key",))
    for name, mark in {"(aggregator)": own, **marks}.items():
        table.add_row(name, mark)
    OUT.print(table)
    OUT.print(f"{file}: fingerprint {registry.fingerprint()}", soft_wrap=True)
