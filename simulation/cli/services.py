"""Commands of one side alone: serve it, make its secrets, start a run, look at the machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from aggregator_service.__main__ import serve as serve_aggregator
from aggregator_service.settings import aggregator_settings
from client_service.__main__ import serve as serve_client
from client_service.settings import client_settings
from shared.errors import FederationError, NotFoundError, SettingsError
from shared.method.settings import PRESET_ROUNDS, method_settings, validate_settings
from shared.new_files import create_secret
from shared.protocol.schemas import RunIn
from shared.web.address import require_port
from shared.web.calling import Calling
from simulation.certificates import AUTHORITY, DAYS, development_files, write_files
from simulation.cli import options
from simulation.console import ERR, OUT, round_lines, tell_on_stderr, word_table
from simulation.detached import serve_detached
from simulation.doctor import check_aggregator, examine_machine
from simulation.inviting import write_invitations
from simulation.operate import (
    agree_on_basis,
    cancel_run,
    describe_run,
    fetch_run,
    follow_run,
    hold_basis_run,
    latest_run,
    start_run,
    start_run_if_none,
)
from simulation.operator_calls import PATIENCE_SECONDS, ignore_line, open_operator

PortCertificate = Annotated[Path | None, typer.Option(help="PEM; with it the port speaks TLS")]
PortKey = Annotated[Path | None, typer.Option(help="PEM, the certificate's")]
PortAuthority = Annotated[Path | None, typer.Option(help="PEM; callers must show a certificate of these")]


def aggregator(
    state_directory: Annotated[Path | None, typer.Option(help="database and blobs")] = None,
    operator_token_file: Annotated[Path | None, typer.Option(help="file with the operator's secret")] = None,
    keys_directory: Annotated[Path | None, typer.Option(help="folder of the clients' public keys")] = None,
    strategy: options.StrategyOrNone = None,
    host: Annotated[str | None, typer.Option()] = None,
    port: Annotated[int | None, typer.Option()] = None,
    tls_certificate: PortCertificate = None,
    tls_key: PortKey = None,
    tls_client_authority: PortAuthority = None,
    invite: Annotated[
        list[str] | None, typer.Option("--invite", help="a silo, whose NAME.invite is written here; repeatable")
    ] = None,
    url: Annotated[str | None, typer.Option(help="as the invited call it; by default http://127.0.0.1:PORT")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="serve in the background, until it is killed")] = False,
) -> None:
    """Serve the aggregator. Settings also come from LPSFED_AGGREGATOR_*; flags win.

    With a state directory and no operator token, the token is made there: operator.token.
    """
    flags = options.given_flags(locals())
    flags = {name: value for name, value in flags.items() if name not in ("invite", "url", "detach")}
    if made := _made_token(flags):
        flags["operator_token_file"] = made
    settings = aggregator_settings(**flags)
    for path in write_invitations(settings, invite or (), url, Path()):
        ERR.print(f"{path}: an invitation, for that silo alone", soft_wrap=True)
    if not detach:
        return serve_aggregator(settings)
    log, url = settings.state_directory / "aggregator.log", f"http://127.0.0.1:{settings.port}"
    if settings.tls_certificate is not None:
        raise SettingsError("--detach: expected a port without TLS, got one with it: start it as a service")
    words = [word for name, value in flags.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    pid = serve_detached(["aggregator", *words], log, url)
    ERR.print(f"{url} answers; `kill {pid}` ends it; log: {log}", soft_wrap=True)


def _made_token(flags: Mapping[str, Any]) -> Path | None:
    """A file with a new token, or the one that was made before; None where the operator says which it is."""
    folder = flags.get("state_directory") or os.environ.get("LPSFED_AGGREGATOR_STATE_DIRECTORY")
    said = {name for name in ("OPERATOR_TOKEN", "OPERATOR_TOKEN_FILE") if f"LPSFED_AGGREGATOR_{name}" in os.environ}
    if "operator_token_file" in flags or said or folder is None:
        return None
    path = Path(folder) / "operator.token"
    if create_secret(path):
        ERR.print(f"{path}: made; who has it operates this aggregator", soft_wrap=True)
    return path


def client(
    settings: options.SettingsFile = None,
    name: Annotated[str | None, typer.Option(help="given by the operator")] = None,
    shard: Annotated[Path | None, typer.Option(help="folder with interactions.parquet")] = None,
    state_directory: Annotated[Path | None, typer.Option(help="ledger and models")] = None,
    signing_key_file: Annotated[Path | None, typer.Option(help="private key; else NAME.key with the state")] = None,
    application_key_file: Annotated[Path | None, typer.Option(help="who asks for recommendations has this key")] = None,
    operator_key_file: Annotated[Path | None, typer.Option(help="who sees status, ledger, pages has this key")] = None,
    aggregator_url: Annotated[str | None, typer.Option()] = None,
    aggregator_authority: Annotated[Path | None, typer.Option(help="PEM; whose certificate it must show")] = None,
    members: Annotated[Path | None, typer.Option(help="keys of the aggregator and of all clients")] = None,
    strategy: options.StrategyOrNone = None,
    device: Annotated[options.Device | None, typer.Option()] = None,
    host: Annotated[str | None, typer.Option()] = None,
    port: Annotated[int | None, typer.Option()] = None,
    tls_certificate: PortCertificate = None,
    tls_key: PortKey = None,
    tls_client_authority: PortAuthority = None,
) -> None:
    """Serve one silo's client. Settings also come from LPSFED_CLIENT_* and a TOML file; flags win."""
    flags = options.given_flags(locals())
    flags.pop("settings", None)
    serve_client(client_settings(settings, **flags))


def doctor(
    shard: Annotated[Path | None, typer.Option(help="a shard to read")] = None,
    settings: options.SettingsFile = None,
    folder: Annotated[Path, typer.Option(help="where state would go")] = Path(),
    ports: Annotated[list[int] | None, typer.Option("--port", help="ports that should be free")] = None,
    aggregator_url: Annotated[str | None, typer.Option(help="an aggregator that should answer")] = None,
    ca: options.Authority = None,
    certificate: options.Certificate = None,
    certificate_key: options.CertificateKey = None,
    as_json: options.AsJson = False,
) -> None:
    """Check Python, packages, device, disk, ports, shard, settings with their certificates, and the aggregator."""
    wanted = tuple(require_port("--port", port) for port in ports or (8800, 8801))
    checks = examine_machine(shard=shard, folder=folder, ports=wanted, settings=settings)
    if aggregator_url is not None:
        checks.append(check_aggregator(aggregator_url, ca, certificate, certificate_key))
    if as_json:
        options.print_json([vars(check) for check in checks])
    else:
        table = word_table("check", "", "found", whole=("check", ""))
        for check in checks:
            table.add_row(check.name, "[green]good[/]" if check.good else "[red]bad[/]", check.found)
        OUT.print(table)
    if not all(check.good for check in checks):
        raise typer.Exit(1)


def secret(paths: Annotated[list[Path], typer.Argument(help="files to make, readable by their owner alone")]) -> None:
    """Make random 256-bit secrets. A file that is there already is left as it is."""
    for path in paths:
        ERR.print(f"{path}: {'made' if create_secret(path) else 'there already'}", soft_wrap=True)


def certificates(
    folder: Annotated[Path, typer.Argument(help="where they go; nothing that is there is overwritten")],
    names: Annotated[
        list[str] | None, typer.Option("--name", help="host or address to be called by; repeatable")
    ] = None,
    clients: options.Clients = 4,
) -> None:
    """Make a development authority, and certificates for aggregator, clients and operator. Not for production."""
    services = ("aggregator", *(f"client-{number}" for number in range(1, clients + 1)), "operator")
    write_files(folder, development_files(services, names or ()))
    ERR.print(
        f"{folder}: made {AUTHORITY}.crt and a certificate with its key for {', '.join(services)}", soft_wrap=True
    )
    ERR.print(
        f"For development only: whoever has {AUTHORITY}.key is believed to be any of them. They end in {DAYS} days."
    )


def run(
    operator_token_file: options.OperatorToken,
    aggregator_url: options.AggregatorUrl = options.DEFAULT_URL,
    clients: options.Clients = 4,
    rounds: Annotated[int | None, typer.Option(min=1, help="by default the preset's")] = None,
    quorum: Annotated[int | None, typer.Option(min=1, help="updates that a round needs at its deadline")] = None,
    deadline_seconds: Annotated[float, typer.Option(min=1, help="longest wait in any one phase")] = 3600.0,
    preset: options.PresetName = options.PresetName.default,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    changes: options.Changes = None,
    common_basis: options.CommonBasis = options.BasisKind.off,
    rank: options.Rank = None,
    basis_rounds: options.BasisRounds = None,
    renew_basis: Annotated[
        bool, typer.Option("--renew-basis", help="sum it anew, where a basis run like that has finished before")
    ] = False,
    changing_members: Annotated[
        bool,
        typer.Option("--changing-members", help="secure: a silo that allows it may leave or join alone"),
    ] = False,
    if_none: Annotated[
        bool, typer.Option("--if-none", help="follow the latest run with this common basis, unless it failed")
    ] = False,
    wait_seconds: Annotated[
        float, typer.Option(min=0, help="for an aggregator that does not answer")
    ] = PATIENCE_SECONDS,
    ca: options.Authority = None,
    certificate: options.Certificate = None,
    certificate_key: options.CertificateKey = None,
    as_json: options.AsJson = False,
) -> None:
    """Start a run at an aggregator, as its operator, and follow it to its end. Whom it waits for it says on stderr.

    With a common basis it holds the basis run first, unless one like that has finished before.
    """
    changed = options.method_changes(changes, common_basis, rank, basis_rounds)
    asked = {
        "rounds": rounds or PRESET_ROUNDS[preset.value],
        "seed": seed,
        "clients": clients,
        "quorum": quorum,
        "deadline_seconds": deadline_seconds,
        "method": method_settings(preset.value, **changed),
        "changing_members": changing_members,
    }
    request = validate_settings(RunIn, asked)
    calling, tell = Calling(ca, certificate, certificate_key), ignore_line if as_json else tell_on_stderr
    with open_operator(aggregator_url, operator_token_file, calling, patience=wait_seconds, tell=tell) as operator:
        if request.method.basis.kind != "off":
            request = request.model_copy(update={"method": agree_on_basis(operator, request.method)})
            with round_lines(shown=not as_json) as observe:
                hold_basis_run(operator, request, observe, renew=renew_basis)
        started = start_run_if_none(operator, request) if if_none else start_run(operator, request)
        with round_lines(shown=not as_json) as observe:
            history = follow_run(operator, started.run, observe)
    if as_json:
        options.print_json(history.model_dump(mode="json"))


def status(
    operator_token_file: options.OperatorToken,
    aggregator_url: options.AggregatorUrl = options.DEFAULT_URL,
    run: Annotated[str | None, typer.Option(help="such as run-3; by default the newest")] = None,
    ca: options.Authority = None,
    certificate: options.Certificate = None,
    certificate_key: options.CertificateKey = None,
    as_json: options.AsJson = False,
) -> None:
    """Say where a run stands: who is missing and until when, or why it failed. Exit code 1 for one that failed."""
    calling = Calling(ca, certificate, certificate_key)
    with open_operator(aggregator_url, operator_token_file, calling) as operator:
        history = fetch_run(operator, run)
    if as_json:
        options.print_json(None if history is None else history.model_dump(mode="json"))
    elif history is None or history.phase != "failed":
        OUT.print("no run yet" if history is None else describe_run(history), highlight=False, soft_wrap=True)
    if history is not None and history.phase == "failed":
        raise FederationError(describe_run(history))


def cancel(
    operator_token_file: options.OperatorToken,
    aggregator_url: options.AggregatorUrl = options.DEFAULT_URL,
    run: Annotated[str | None, typer.Option(help="such as run-3; by default the newest")] = None,
    ca: options.Authority = None,
    certificate: options.Certificate = None,
    certificate_key: options.CertificateKey = None,
    as_json: options.AsJson = False,
) -> None:
    """End a run before its time. Each silo stops at its next call, and goes on answering by the best model it has."""
    calling = Calling(ca, certificate, certificate_key)
    with open_operator(aggregator_url, operator_token_file, calling) as operator:
        name = run or (newest.run if (newest := latest_run(operator)) else None)
        if name is None:
            raise NotFoundError("expected a run to cancel, got an aggregator that has had none")
        history = cancel_run(operator, name)
    if as_json:
        options.print_json(history.model_dump(mode="json"))
    else:
        OUT.print(describe_run(history), highlight=False, soft_wrap=True)
