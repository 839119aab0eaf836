"""`lpsfed invite` and `lpsfed join`: a silo's way into a federation, a command on each side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from client_service.__main__ import serve as serve_client
from client_service.settings import client_settings
from shared.errors import SettingsError
from shared.method.settings import validate_settings
from shared.protocol.signing.invitation import Invitation, InvitationIn, InvitationOut, read_invitation
from shared.web.address import require_url
from shared.web.calling import Calling
from shared.words import count_noun
from simulation.cli import options
from simulation.console import tell_on_stderr
from simulation.datasets import load_dataset
from simulation.detached import serve_detached
from simulation.inviting import write_invitation
from simulation.joining import (
    APPLICATION,
    OPERATOR,
    SiloFolder,
    enrol_silo,
    keep_shard,
    kept_shard,
    require_open,
    write_settings,
)
from simulation.operator_calls import Operator, call_as_operator, open_operator
from simulation.small_files import read_small_file
from simulation.split import SplitKind

Names = Annotated[list[str], typer.Argument(help="of the silos: a-z, 0-9, _ and -")]
SPLIT_SEED = 0


def invite(
    names: Names,
    operator_token_file: options.OperatorToken,
    url: Annotated[
        str, typer.Option(show_default=False, help="of the aggregator, as the silos call it; by default this machine's")
    ] = options.DEFAULT_URL,
    days: Annotated[float, typer.Option(min=0.01, max=365, help="until an invitation expires")] = 7.0,
    out: Annotated[Path | None, typer.Option(help="folder for NAME.invite; by default one is printed")] = None,
    ca: options.Authority = None,
    certificate: options.Certificate = None,
    certificate_key: options.CertificateKey = None,
) -> None:
    """Invite silos. Each invitation registers one key under one name, once: hand it over as you would a password."""
    if out is None and len(names) > 1:
        raise SettingsError(f"--out: expected a folder for {len(names)} invitations, got none")
    with open_operator(require_url(url), operator_token_file, Calling(ca, certificate, certificate_key)) as operator:
        for name in names:
            _hand_out(_invite_silo(operator, name, url, days, ca), out)


def _hand_out(made: Invitation, out: Path | None) -> None:
    if out is None:
        return typer.echo(made.model_dump_json(indent=1))
    path = write_invitation(made, options.ensure_folder(out))
    tell_on_stderr(f"{path}: for {made.name} alone; it expires at {made.expires:%Y-%m-%d %H:%M} UTC")


def _invite_silo(operator: Operator, name: str, url: str, days: float, ca: Path | None) -> Invitation:
    asked = validate_settings(InvitationIn, {"name": name, "days": days})
    told = InvitationOut.model_validate(call_as_operator(operator, "POST", "/v1/invitations", asked.model_dump_json()))
    authority = None if ca is None else read_small_file(ca, "a certificate")
    return Invitation(name=name, url=url, authority=authority, **told.model_dump())


def join(
    invitation: Annotated[Path, typer.Argument(help="NAME.invite, from the operator")],
    data: Annotated[Path | None, typer.Option(help="the silo's own interactions: a file, or a folder")] = None,
    folder: Annotated[Path | None, typer.Option(help="for keys, shard, state; by default NAME")] = None,
    min_rating: Annotated[
        float | None, typer.Option(help="of a liking; by default 4 of 5, 8 of 10, and of other scales any; 0: any")
    ] = None,
    split: options.SplitChoice = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="by default the first free one from 8801")] = None,
    start: Annotated[bool, typer.Option(help="serve the client once it has joined")] = True,
    detach: Annotated[bool, typer.Option("--detach", help="serve in the background, until it is killed")] = False,
) -> None:
    """Join a federation: make keys, convert the data, register by the invitation, write silo.toml, and serve.

    The data stay in the folder. Called again, it goes on with what is there; so does `lpsfed client --settings
    FOLDER/silo.toml`.
    """
    asked = read_invitation(invitation)
    silo = SiloFolder(folder or Path(asked.name))
    if not silo.settings.exists():
        require_open(asked)
        _keep_data(silo, asked.name, data, min_rating, options.split_kind(split))
        enrolled = enrol_silo(asked, silo)
        write_settings(asked, silo, enrolled, {} if port is None else {"port": port})
        tell_on_stderr(f"{asked.name}: registered at {asked.url}; settings: {silo.settings}")
    if start:
        _serve(silo, detach=detach)


def _keep_data(
    silo: SiloFolder, name: str, data: Path | None, min_rating: float | None, split: SplitKind | None
) -> None:
    head = kept_shard(silo)
    if head is None:
        if data is None:
            raise SettingsError("--data: expected the silo's own interactions, got none")
        dataset = load_dataset(data, SPLIT_SEED, "usual" if min_rating is None else min_rating, split)
        head = keep_shard(silo, name, dataset)
        for note in head.notes:
            tell_on_stderr(f"- {note}")
    nodes = f"{count_noun(head.users, 'user')}, {count_noun(head.items, 'item')}"
    tell_on_stderr(f"{silo.shard}: {nodes}, {head.train + head.valid + head.test:,} interactions")


def _serve(silo: SiloFolder, *, detach: bool) -> None:
    settings = client_settings(silo.settings)
    if not detach:
        return serve_client(settings)
    url = f"http://127.0.0.1:{settings.port}"
    pid = serve_detached(["client", "--settings", str(silo.settings)], silo.path / "client.log", url)
    tell_on_stderr(f"{url} answers until `kill {pid}`; log: {silo.path / 'client.log'}")
    tell_on_stderr(f"applications show the key in {silo.path / APPLICATION}")
    tell_on_stderr(f"its page is for the user operator; the password is in {silo.path / OPERATOR}")
