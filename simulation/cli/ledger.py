"""`lpsfed ledger`: verifies and repairs the records of a stopped client."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shared.errors import DataError, SettingsError
from simulation.cli import options
from simulation.cli.options import AsJson, print_json
from simulation.reports.terminal import OUT

if TYPE_CHECKING:
    from audit.checks.signatures import RemadeSignatures
    from shared.protocol.schemas import ArrivalOut
    from shared.protocol.signing.keys import PrivateKey

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Verifies and repairs the records of a stopped client.",
)

State = Annotated[Path, typer.Option("--state-directory", help="State directory of a stopped client, or a copy of it")]
Records = Annotated[
    Path | None,
    typer.Option("--records-directory", help="Folder of the records, if LPSFED_CLIENT_RECORDS_DIRECTORY is set"),
]
Key = Annotated[
    Path | None,
    typer.Option("--signing-key-file", help="The client's private key (default: NAME.key in the state directory)"),
]
UNAUTHENTICATED = "; not authenticated: the client's key, or the heads, are missing"


@app.command()
def verify(
    state_directory: State,
    signing_key_file: Key = None,
    records_directory: Records = None,
    arrivals: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="What arrived: the aggregator's evidence, or its /v1/arrivals; repeatable",
        ),
    ] = None,
    operator_token_file: Annotated[
        Path | None, typer.Option(help="File with the operator's token: fetch what arrived from the aggregator")
    ] = None,
    aggregator_url: options.AggregatorUrl = options.DEFAULT_URL,
    ca: options.Authority = None,
    as_json: AsJson = False,
) -> None:
    """Verifies ledger and privacy account against their signed heads. Exit code 1 for a fault.

    With --arrivals, or with an operator's token, it makes again each signature that the aggregator has kept, and
    compares both.
    """
    from audit.checks.signatures import read_arrivals
    from client_service.refresh.record_check import verify_records

    key = _read_signing_key(state_directory, signing_key_file)
    came = [arrival for file in arrivals or () for arrival in read_arrivals(file)]
    places = [str(file) for file in arrivals or ()]
    if operator_token_file is not None:
        came += _fetch_arrivals(aggregator_url, operator_token_file, ca)
        places.append(aggregator_url)
    remade = _remake_signatures(came, ", ".join(places), key) if places else None
    verification = verify_records(state_directory, key, records_directory)
    faults = [*verification.faults, *(remade.chosen if remade else ())]
    if as_json:
        signatures = {} if remade is None else {"signatures": asdict(remade)}
        print_json({"whole": not faults, **asdict(verification), "faults": faults, **signatures})
    else:
        lines = ", ".join(f"{name} {count:,}" for name, count in verification.entries.items())
        whole = f"whole: {lines} entries{'' if verification.authentic else UNAUTHENTICATED}"
        good = whole if remade is None else f"{whole}\n{remade.describe()}"
        OUT.print("\n".join(faults) or good, soft_wrap=True, markup=False)
    if faults:
        raise typer.Exit(1)


def _fetch_arrivals(url: str, token_file: Path, authority: Path | None) -> tuple[ArrivalOut, ...]:
    """Fetches what arrived from the operator's API.

    Raises SettingsError for an invalid address or token.
    """
    import httpx

    from audit.evidence.collect import read_all_arrivals
    from shared.web.address import require_url
    from shared.web.outgoing import OutgoingTls
    from simulation.operating.text_files import read_small_file

    token = read_small_file(token_file, "the operator's token")
    headers = {"Authorization": f"Bearer {token}"}

    async def ask() -> tuple[ArrivalOut, ...]:
        verify = OutgoingTls(authority).context
        async with httpx.AsyncClient(
            base_url=require_url(url), headers=headers, trust_env=False, verify=verify
        ) as http:
            return await read_all_arrivals(http)

    return asyncio.run(ask())


def _remake_signatures(arrived: list[ArrivalOut], places: str, key: PrivateKey | None) -> RemadeSignatures:
    from audit.checks.signatures import find_signer, remake_signatures

    if key is None:
        raise SettingsError(
            "signing_key_file: expected the client's private key, by which arrivals are signed, got none"
        )
    came = {arrival.sequence: arrival for arrival in arrived}.values()
    client = find_signer(came, key)
    if client is None:
        raise DataError(f"{places}: expected arrivals that this key has signed, got none of {len(came):,}")
    return remake_signatures(came, client, key)


@app.command()
def rekey(
    state_directory: State,
    old_key_file: Annotated[Path, typer.Option(help="Earlier private key of the client")],
    new_key_file: Annotated[Path, typer.Option(help="New private key of the client")],
    records_directory: Records = None,
    as_json: AsJson = False,
) -> None:
    """Signs the heads of the records with a new key, before the client uses it."""
    from client_service.refresh.record_check import rekey_records
    from shared.protocol.signing.keys import read_private

    path = rekey_records(state_directory, read_private(old_key_file), read_private(new_key_file), records_directory)
    if as_json:
        return print_json({"heads": str(path)})
    OUT.print(f"{path}: signed with the new key", soft_wrap=True, markup=False)


@app.command()
def adopt(
    state_directory: State,
    reason: Annotated[str, typer.Option(help="Reason, which is written into the ledger")],
    signing_key_file: Key = None,
    records_directory: Records = None,
    give_up: Annotated[str | None, typer.Option(help="Nonce of a lost entry that the aggregator names")] = None,
    as_json: AsJson = False,
) -> None:
    """Accepts records that differ from their heads, if the right ones are lost.

    The privacy report shows that this happened.
    """
    from client_service.refresh.record_check import adopt_records

    key = _read_signing_key(state_directory, signing_key_file)
    if key is None:
        raise SettingsError("signing_key_file: expected the client's private key, got none")
    path = adopt_records(state_directory, key, reason, give_up=give_up, directory=records_directory)
    if as_json:
        return print_json({"heads": str(path)})
    OUT.print(f"{path}: signed for the records as they are", soft_wrap=True, markup=False)


def _read_signing_key(state_directory: Path, given: Path | None) -> PrivateKey | None:
    """Reads the given key, or the only one in the state directory; None without one."""
    from shared.protocol.signing.keys import read_private

    files = [given] if given is not None else sorted(state_directory.glob("*.key"))
    return read_private(files[0]) if len(files) == 1 else None
